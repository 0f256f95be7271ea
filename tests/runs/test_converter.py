"""Records as dicts and back: what is left out, what is kept beside, what does not fit."""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import pytest

from catchment.errors import UserError
from catchment.runs.converter import AnyNumber, from_dict, to_dict


@dataclass(frozen=True, kw_only=True)
class Inner:
    left_out_if_empty: ClassVar = ("note",)
    further_keys: ClassVar = "others"

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


def test_there_and_back():
    assert to_dict(RECORD) == TABLE
    assert from_dict(Outer, TABLE, "it") == RECORD


def test_what_is_empty_is_left_out_only_where_the_record_says_so():
    assert to_dict(Inner(size=1)) == {"size": 1}
    assert to_dict(Outer(share=None))["named"] is None
    assert to_dict(Outer(share=None))["inner"] == []


def test_missing_and_null_are_the_default_and_unknown_keys_are_ignored():
    assert from_dict(Outer, {"share": None, "inner": None, "new": 1}, "it") == Outer(share=None)


def test_a_whole_number_is_a_number():
    assert from_dict(Outer, {"share": 1}, "it").share == 1


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"share": "half"}, 'share is "half"'),
        ({"share": True}, "share is true"),
        ({"share": math.nan}, "share is NaN"),
        ({"any": "inf"}, 'any is "inf"'),
        ({"way": "sideways"}, 'way is "sideways"'),
        ({"way": ["up"]}, 'way is ["up"]'),
        ({"inner": {}}, "inner is {}"),
        ({"inner": [{"size": 1}, {}]}, "inner[1].size is missing"),
        ({"inner": [{"size": 1.5}]}, "inner[0].size is 1.5"),
        ({"named": {"a": 1}}, "named.a is 1"),
        ({"named": {"a": {"size": None}}}, "named.a.size is null"),
        ({"clients": [1, "2"]}, 'clients[1] is "2"'),
    ],
)
def test_what_does_not_fit_is_named_with_its_place(change, wrong):
    with pytest.raises(UserError) as raised:
        from_dict(Outer, {**TABLE, **change}, "a file, line 3,")
    assert str(raised.value) == f"a file, line 3, is not what a run writes: {wrong}"


def test_a_key_that_must_be_there():
    with pytest.raises(UserError, match="it is not what a run writes: share is missing"):
        from_dict(Outer, {}, "it")
    with pytest.raises(UserError, match=r"it is not what a run writes: it is \[\]"):
        from_dict(Outer, [], "it")
