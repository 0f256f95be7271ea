"""Records as JSON and back: the one converter by which runs are written and read.

A record is a frozen dataclass of numbers, words, lists, dicts and other records. Reading checks every type, ignores
keys that it does not know, and takes a missing or null key for the default of its field. Numbers
are finite unless a field says `AnyNumber`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from catchment.errors import UserError

T = TypeVar("T")
Record = dict[str, Any]
AnyNumber = Annotated[float, "also infinite, or not a number"]
Reader = Callable[[Any, str], Any]  # of a value, and of the place where it stands


def to_dict(record: Any) -> Record:
    """A record as a dict for JSON."""
    optional, further = getattr(record, "left_out_if_empty", ()), getattr(record, "further_keys", None)
    found: Record = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if field.name == further:
            found.update(value)
        elif field.name not in optional or value not in (None, [], {}):
            found[field.name] = _value(value)
    return found


def _value(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_dict(value)
    if isinstance(value, dict):
        return {key: _value(item) for key, item in value.items()}
    if isinstance(value, list) and value and dataclasses.is_dataclass(value[0]):
        return [to_dict(item) for item in value]
    return value


def from_dict(kind: type[T], value: Any, where: str) -> T:
    """A record from what JSON or TOML gave; what does not fit is a sentence that begins with `where`."""
    try:
        return _reader(kind)(value, "")  # type: ignore[arg-type, no-any-return]
    except _Misfit as misfit:
        raise UserError(f"{where} is not what a run writes: {misfit}") from None


class _Misfit(Exception):
    """What is wrong, and in which place."""


def _is(value: Any, place: str) -> _Misfit:
    return _Misfit(f"{place or 'it'} is {json.dumps(value, default=str)[:40]}")


@functools.cache
def _reader(hint: Any) -> Reader:
    """The function that checks and converts values of a type."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda value, place: value
    if dataclasses.is_dataclass(hint):
        return _record_reader(hint)  # type: ignore[arg-type]
    if origin in (Union, types.UnionType):
        (wanted,) = (option for option in inner if option is not types.NoneType)
        some = _reader(wanted)
        return lambda value, place: None if value is None else some(value, place)
    if origin is list:
        return _list_reader(inner[0])
    if origin is dict:
        return _dict_reader(_reader(inner[1]))
    if origin is Literal:
        return _checked(lambda value: isinstance(value, str) and value in inner)
    if hint == AnyNumber:
        return _checked(lambda value: type(value) in (int, float))
    if hint is float:
        return _checked(lambda value: type(value) in (int, float) and math.isfinite(value))
    return _checked(lambda value: type(value) is hint)


def _checked(fits: Callable[[Any], bool]) -> Reader:
    def check(value: Any, place: str) -> Any:
        if not fits(value):
            raise _is(value, place)
        return value

    return check


def _list_reader(hint: Any) -> Reader:
    item = _reader(hint)

    def convert(value: Any, place: str) -> list[Any]:
        if not isinstance(value, list):
            raise _is(value, place)
        if hint is int and set(map(type, value)) <= {int}:  # clients, of which there may be a million
            return value
        return [item(one, f"{place}[{index}]") for index, one in enumerate(value)]

    return convert


def _dict_reader(item: Reader) -> Reader:
    def convert(value: Any, place: str) -> Record:
        if not isinstance(value, dict):
            raise _is(value, place)
        return {key: item(one, f"{place}.{key}") for key, one in value.items()}

    return convert


def _record_reader(kind: type[Any]) -> Reader:
    hints, fields, missing = get_type_hints(kind, include_extras=True), dataclasses.fields(kind), dataclasses.MISSING
    further = getattr(kind, "further_keys", None)
    named = {field.name: _reader(hints[field.name]) for field in fields if field.name != further}
    needed = {field.name for field in fields if field.default is missing and field.default_factory is missing}

    def convert(value: Any, place: str) -> Any:
        if not isinstance(value, dict):
            raise _is(value, place)
        found = {}
        for name, item in named.items():
            inner = f"{place}.{name}" if place else name
            if value.get(name) is not None:
                found[name] = item(value[name], inner)
            elif name in needed:
                if name not in value:
                    raise _Misfit(f"{inner} is missing")
                found[name] = item(None, inner)
        if further is not None:
            found[further] = {key: one for key, one in value.items() if key not in named}
        return kind(**found)

    return convert
