"""The reader: tables of files and records of runs as dataclasses; what is left out, kept beside, or does not fit."""

import datetime
import json
import math
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import Field

from catchment.errors import ExperimentError, UserError
from catchment.reading import Count, Share, parts, read_json, read_table, schema
from catchment.runs.journal import to_dict
from catchment.runs.records import AnyNumber, Open

# ---- records ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Inner(Open):
    left_out_if_empty: ClassVar = ("note",)
    further_keys = "others"

    size: int
    note: str | None = None
    others: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Outer:
    share: float | None
    way: Literal["up", "down"] = "up"
    any: AnyNumber = 0.0
    inner: list[Inner] = field(default_factory=list)
    named: dict[str, Inner] | None = None
    clients: list[int] = field(default_factory=list)


TABLE = {
    "share": 0.5,
    "way": "down",
    "any": math.inf,
    "inner": [{"size": 1, "colour": "red"}],
    "named": {"a": {"size": 2, "note": "b"}},
    "clients": [3, 1],
}
RECORD = Outer(
    share=0.5,
    way="down",
    any=math.inf,
    inner=[Inner(size=1, others={"colour": "red"})],
    named={"a": Inner(size=2, note="b")},
    clients=[3, 1],
)


def read(table):
    return read_json(Outer, json.dumps(table), "a file, line 3,")


def test_there_and_back():
    assert to_dict(RECORD) == TABLE
    assert read(TABLE) == RECORD


def test_what_is_empty_is_left_out_only_where_the_record_says_so():
    assert to_dict(Inner(size=1)) == {"size": 1}
    assert to_dict(Outer(share=None))["named"] is None
    assert to_dict(Outer(share=None))["inner"] == []


def test_what_is_missing_is_the_default_and_unknown_keys_are_ignored():
    assert read({"share": None, "new": 1}) == Outer(share=None)


def test_a_whole_number_is_a_number():
    assert read({"share": 1}).share == 1


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"share": "half"}, 'share is the text "half"; a number is expected'),
        ({"share": True}, "share is true; a number is expected"),
        ({"share": math.nan}, "share is nan; a finite number is expected"),
        ({"any": "inf"}, 'any is the text "inf"; a number is expected'),
        ({"way": "sideways"}, 'way is the text "sideways"; expected one of up, down'),
        ({"way": ["up"]}, "way is ['up']; expected one of up, down"),
        ({"inner": {}}, "inner is {}; a list is expected"),
        ({"inner": [{"size": 1}, {}]}, "inner[1].size is missing"),
        ({"inner": [{"size": 1.5}]}, "inner[0].size is 1.5; a whole number is expected"),
        ({"named": {"a": 1}}, "named.a is 1; a table is expected"),
        ({"named": {"a": {"size": None}}}, "named.a.size is None; a whole number is expected"),
        ({"clients": [1, "2"]}, 'clients[1] is the text "2"; a whole number is expected'),
    ],
)
def test_what_does_not_fit_is_named_with_its_place(change, wrong):
    with pytest.raises(UserError) as raised:
        read({**TABLE, **change})
    assert str(raised.value) == f"a file, line 3, is not what a run writes: {wrong}"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("{}", "is not what a run writes: share is missing"),
        ("[]", "is not what a run writes: it is []; a table is expected"),
        ("null", "is not what a run writes: it is null"),
        ("{", "is damaged: EOF while parsing an object at line 1 column 1"),
        ("[" * 100_000, "is damaged: recursion limit exceeded"),
    ],
)
def test_what_is_no_record_at_all(text, wrong):
    with pytest.raises(UserError) as raised:
        read_json(Outer, text, "it")
    assert str(raised.value).startswith(f"it {wrong}")


# ---- tables -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    name: str
    """Its name."""
    train: Count | None = None

    def __post_init__(self):
        if self.train == 13:
            raise ExperimentError("train is 13; another number is expected")


@dataclass(frozen=True)
class Base:
    rounds: Count = 10
    """How many."""


@dataclass(frozen=True)
class Whole(Base):
    public: Share | Part | None = None
    """A share, or a set."""
    port: Annotated[int, Field(ge=0, le=9)] = 0
    names: Annotated[tuple[str, ...], Field(min_length=1, title="at least one name")] | str = "a"
    parts: dict[str, Part] = field(default_factory=dict)
    up: float = math.inf


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"rounds": 0}, "x.rounds is 0; at least 1 is expected"),
        ({"rouns": 1, "port": "a"}, 'unknown key "x.rouns"; did you mean "rounds"?'),
        ({"port": 10}, "x.port is 10; a number from 0 to 9 is expected"),
        ({"public": 1.5}, "x.public is 1.5; a share between 0 and 1 is expected"),
        ({"public": "all"}, 'x.public is the text "all"; a number is expected'),
        ({"public": {"train": 3}}, "x.public.name is missing"),
        ({"public": {"name": "a", "size": 3}}, 'unknown key "x.public.size"; known: name, train'),
        ({"public": {"name": "a", "train": 0}}, "x.public.train is 0; at least 1 is expected"),
        ({"public": {"name": "a", "train": 13}}, "[x.public] train is 13; another number is expected"),
        ({"parts": {"a": {"nam": 3}}}, 'unknown key "x.parts.a.nam"; did you mean "name"?'),
        ({"names": []}, "x.names is []; at least one name is expected"),
        ({"names": ["a", 3]}, "x.names[1] is 3; text in quotes is expected"),
        (
            {"up": datetime.date(2020, 1, 2)},
            "x.up is 2020-01-02 of type date; text, a number, true, false, a list or a",
        ),
        (None, "x is None; a table is expected"),
        (3, "x is 3; a table is expected"),
    ],
)
def test_a_mistake_is_one_sentence(table, sentence):
    with pytest.raises(ExperimentError) as raised:
        read_table(Whole, table, "x")
    assert str(raised.value).startswith(sentence)


def test_a_schema_has_defaults_ranges_and_the_docstrings_below_the_fields_inherited_ones_too():
    [whole] = parts(Whole)
    assert whole["properties"]["rounds"] == {"type": "integer", "minimum": 1, "default": 10, "description": "How many."}
    assert whole["properties"]["up"] == {"type": "number"}  # infinity is no JSON
    assert [part.get("description") for part in parts(Whole, ("parts", "any", "name"))] == ["Its name."]
    assert json.dumps(schema(Whole), allow_nan=False)
