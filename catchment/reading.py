"""The one reader of tables: files become dataclasses, whose types pydantic checks.

A dataclass says what a table may have: fields with a type and its range (`Count`), a default, and below each a
docstring, which editors show. A rule over several fields is its `__post_init__`. What does not fit is one sentence:
where, what was given, what is expected.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import ErrorDetails

from catchment.errors import ExperimentError, UserError
from catchment.names import did_you_mean

Whole = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(gt=0, lt=1, title="a share between 0 and 1")]
ShareFrom0 = Annotated[float, Field(ge=0, lt=1, title="a share from 0 to below 1")]
ShareTo1 = Annotated[float, Field(gt=0, le=1, title="a share above 0 up to 1")]
AnyShare = Annotated[float, Field(ge=0, le=1, title="a share from 0 to 1")]
Chance = Annotated[float, Field(ge=0, le=1, title="a chance from 0 to 1")]
Table = dict[str, Any]
Place = tuple[str | int, ...]
T = TypeVar("T")


def read_table(kind: Callable[..., T], table: Any, where: str = "") -> T:
    """A dataclass from a table of a file; `where` is its key there."""
    for place, value in _strange(table, ()):
        raise ExperimentError(
            f"{_dotted(where, place)} is {value} of type {type(value).__name__}; text, a number, true, false, a list "
            "or a table is expected"
        )
    try:
        found = _adapter(kind, "forbid").validate_json(json.dumps(table), strict=True)
    except ValidationError as error:
        raise ExperimentError(_sentence(error, kind, table, where)) from None
    except TypeError as error:  # such as a class that is abstract
        raise ExperimentError(f"[{where}] {error}") from None
    if found is None:
        raise ExperimentError(f"{where} is None; a table is expected")
    return found  # type: ignore[no-any-return]


def read_json(kind: Callable[..., T], text: str | bytes, where: str) -> T:
    """A record from the JSON that a run wrote; unknown keys are ignored, and `where` begins the sentence."""
    if rb"\ud" in (text if isinstance(text, bytes) else text.encode()):  # half a character, perhaps, of another machine
        with suppress(ValueError):
            text = json.dumps(json.loads(text), ensure_ascii=False).encode("utf-8", "replace")
    try:
        found = _adapter(kind, "ignore").validate_json(text, strict=True)
    except ValidationError as error:
        (first, *_) = error.errors(include_url=False)
        if first["type"] == "json_invalid":
            raise UserError(f"{where} is damaged: {first['ctx']['error']}") from None
        raise UserError(f"{where} is not what a run writes: {_sentence(error, kind, json.loads(text), '')}") from None
    if found is None:
        raise UserError(f"{where} is not what a run writes: it is null")
    return found  # type: ignore[no-any-return]


def shown(value: Any) -> str:
    """A value of a file as errors quote it."""
    if isinstance(value, str):
        return f'the text "{value}"'
    return str(value).lower() if isinstance(value, bool) else str(value)


# ---- types ------------------------------------------------------------------------------------------------------


@functools.cache
def _adapter(kind: Any, extra: str) -> TypeAdapter[Any]:
    """The reader of a kind and of all that it is made of; only a type around a dataclass may say how."""
    config = ConfigDict(extra=extra, arbitrary_types_allowed=True, allow_inf_nan=extra == "forbid")  # type: ignore[typeddict-item]
    return TypeAdapter(kind | None, config=config)


class _Schema(GenerateJsonSchema):
    """As TOML and JSON are: without null and infinity; a title only where a type has one; anything for other types."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Never: the name of a field says no more in capital letters."""
        return False

    def nullable_schema(self, schema: Any) -> Table:
        """A key that may be left out."""
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: Any) -> Table:
        """The default, where there is one that files can have."""
        found = super().default_schema(schema)
        return {key: value for key, value in found.items() if key != "default" or value not in (None, float("inf"))}

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> Table:
        """An option of another type, which a user's own class may have."""
        return {}


@functools.cache
def schema(kind: Any) -> Table:
    """The JSON schema of a dataclass; the docstrings below its fields are the descriptions, inherited ones too."""
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, use_attribute_docstrings=True)
    whole = TypeAdapter(kind | None, config=config).json_schema(schema_generator=_Schema)
    for base in filter(is_dataclass, kind.__mro__[1:]):  # pydantic has the docstrings of the class itself alone
        for name, field in parts(base)[0]["properties"].items():
            parts(whole)[0]["properties"][name].setdefault("description", field.get("description", ""))
    for table in (whole, *whole.get("$defs", {}).values()):
        for field in table.get("properties", {}).values():
            if "description" in field:
                field["description"] = " ".join(field["description"].split())
    return whole


def parts(kind: Any, place: Place = ()) -> list[Table]:
    """The schemas that a value at a place of a dataclass, or of its schema, may fit."""
    whole = kind if isinstance(kind, dict) else schema(kind)

    def options(part: Table) -> Iterator[Table]:
        if "$ref" in part:
            part = whole["$defs"][part["$ref"].rpartition("/")[2]] | part
        yield part
        for option in part.get("anyOf", ()):
            yield from options(option)

    found = list(options(whole))
    for key in place:
        inner = [part.get("items") if isinstance(key, int) else _inner(part, key) for part in found]
        found = [option for part in inner if isinstance(part, dict) for option in options(part)]
    return found


def _inner(part: Table, key: str) -> Any:
    return part.get("properties", {}).get(key, part.get("additionalProperties"))


def range_of(part: Table) -> str | None:
    """The range of a number or the form of a text, in words, if its schema has one."""
    if "title" in part:
        return None if part["type"] == "object" else str(part["title"])
    above, least, below, most = (part.get(f"{side}imum") for side in ("exclusiveMin", "min", "exclusiveMax", "max"))
    if below is None and most is None:
        return f"at least {least}" if least is not None else f"a number above {above}" if above is not None else None
    if above is not None and below is not None:
        return f"a number between {above} and {below}"
    begin = f"from {least}" if above is None else f"above {above}"
    return f"a number {begin} to {most}" if below is None else f"a number {begin} to below {below}"


# ---- sentences --------------------------------------------------------------------------------------------------

_TYPES = {
    "int_type": "a whole number", "float_type": "a number", "bool_type": "true or false",
    "string_type": "text in quotes", "tuple_type": "a list", "list_type": "a list", "dict_type": "a table",
    "dataclass_type": "a table",
}  # fmt: skip


def _sentence(error: ValidationError, kind: Any, table: Any, where: str) -> str:
    """One of the mistakes: a key that is unknown, or else the one that lies deepest, as options of a union go."""

    def rank(found: tuple[Place, ErrorDetails]) -> tuple[bool, int, bool]:
        place, details = found
        return details["type"] == "unexpected_keyword_argument", len(place), details["type"] not in _TYPES

    errors = error.errors(include_url=False)
    place, details = max(((_place(one["loc"], table), one) for one in errors), key=rank)
    key, given, what = _dotted(where, place), _brief(details["input"]), details["type"]
    if what == "unexpected_keyword_argument":
        names = {name for part in parts(kind, place[:-1]) for name in part.get("properties", ())}
        return f'unknown key "{key}"; {did_you_mean(str(place[-1]), names)}'
    if what == "missing":
        return f"{_dotted(where, (*place, details['loc'][-1]))} is missing"
    if what == "value_error":
        said = str(details["ctx"]["error"])
        return said if not key or f"{key}." in said else f"[{key}] {said}"
    allowed = parts(kind, place)
    if what in _TYPES:
        title = next((part["title"] for part in allowed if part.get("type") == "array" and "title" in part), None)
        words = title if title is not None and what.endswith(("list_type", "tuple_type")) else _TYPES[what]
        return f"{key or 'it'} is {given}; {words} is expected"
    words = next(filter(None, map(range_of, allowed)), "a finite number" if what == "finite_number" else None)
    if words is not None:
        return f"{key} is {given}; {words} is expected"
    if what == "literal_error":
        known = [str(value) for part in allowed for value in part.get("enum", [part.get("const")])]
        return f"{key} is {given}; expected one of {', '.join(known)}"
    return f"{key} is {given}, which does not fit: {details['msg']}"


def _brief(value: Any) -> str:
    """A value, or the beginning of a long one."""
    text = shown(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def _place(location: Place, table: Any) -> Place:
    """The keys of a location; what else is in it are the names of options of a union."""
    place: Place = ()
    for key in location:
        if isinstance(table, list | tuple):
            table = dict(enumerate(table))
        if isinstance(table, Mapping) and key in table:
            place, table = (*place, key), table[key]
    return place


def _dotted(where: str, place: Place) -> str:
    """Keys as files write them, such as `data.mean[1]`."""
    for key in place:
        where += f"[{key}]" if isinstance(key, int) else f".{key}" if where else key
    return where


def _strange(value: Any, place: Place) -> Iterator[tuple[Place, Any]]:
    """What is neither text, number, list nor table: dates, and objects of programs."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strange(item, (*place, key))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _strange(item, (*place, number))
    elif not isinstance(value, str | int | float | None):
        yield place, value
