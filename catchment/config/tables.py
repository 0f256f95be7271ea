"""From TOML to dataclasses: files that extend each other, settings of the command line, and the types of values."""

from __future__ import annotations

import dataclasses
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from catchment.errors import ExperimentError
from catchment.names import did_you_mean

# Their `name` says what the other keys mean: under another name they start afresh.
_NAMED = (
    "method", "aggregation", "attack", "data.partition", "optimizer.client", "optimizer.server",
    "optimizer.client.schedule", "optimizer.server.schedule",
)  # fmt: skip
_EXPECTED = {
    int: "a whole number", float: "a number", bool: "true or false", str: "text in quotes",
    tuple: "a list", dict: "a table",
}  # fmt: skip
T = TypeVar("T")


def parse_setting(text: str) -> tuple[str, Any]:
    """`"method.client_epochs=2"` as key and value; the value is TOML, or plain text if it is not."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip() or "\n" in text:
        raise ExperimentError(f"--set {text}: expected key=value, such as --set method.client_epochs=2")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def parse_toml(text: str, where: str = "this") -> dict[str, Any]:
    """The table that a text stands for."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ExperimentError(f"{where} is not valid TOML: {error}") from None


def read_file(path: Path, users: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The table of a file, merged over those that it extends; `users` are the files that extend it, outermost first."""
    trail = (*users, path)
    if path.resolve() in [user.resolve() for user in users]:
        raise ExperimentError(f"experiment files extend each other in a circle: {' -> '.join(map(str, trail))}")
    try:
        table = parse_toml(path.read_text(encoding="utf-8-sig"), str(path))
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        wanted = f", which {users[-1]} extends" if users else ""
        raise ExperimentError(f"there is no experiment file {path}{wanted}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ExperimentError(f"{path} cannot be read: {error}") from None
    extends = table.pop("extends", [])
    names = [extends] if isinstance(extends, str) else extends
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ExperimentError(f"extends is {shown(extends)} in {path}; a file or a list of files is expected")
    whole: dict[str, Any] = {}
    for part in (*(read_file(path.parent / name, trail) for name in names), table):
        whole = merged(whole, part)
    return whole


def merged(earlier: Mapping[str, Any], later: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Two tables key by key, where the later one wins."""
    if where in _NAMED and "name" in earlier and later.get("name", earlier["name"]) != earlier["name"]:
        return dict(later)
    both = dict(earlier)
    for key, value in later.items():
        both_tables = isinstance(value, dict) and isinstance(earlier.get(key), dict)
        both[key] = merged(earlier[key], value, f"{where}.{key}" if where else key) if both_tables else value
    return both


def changed(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a table with other values at dotted keys such as `"method.mu"`."""
    copy = _copied(table)
    for key, value in changes.items():
        *parents, last = key.split(".")
        place = copy
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise ExperimentError(f"{key} cannot be set: {parent} is a value, not a table")
        place[last] = value
    return copy


def _copied(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copied(value) if isinstance(value, Mapping) else value for key, value in table.items()}


def read_table(kind: type[T], table: Any, where: str) -> T:
    """A dataclass from a table; errors for unknown keys and wrong types name the key."""
    if not isinstance(table, dict):
        raise ExperimentError(f"{where} is {shown(table)}; a table is expected")
    hints = typing.get_type_hints(kind)
    known = {f.name for f in dataclasses.fields(kind) if f.init}  # type: ignore[arg-type]
    values = {}
    for key, value in table.items():
        place = f"{where}.{key}" if where else key
        if key not in known:
            raise ExperimentError(f'unknown key "{place}"; {did_you_mean(key, known)}')
        values[key] = _convert(hints[key], value, place)
    try:
        return kind(**values)
    except (ExperimentError, TypeError, ValueError) as error:
        says_where = not where or f"{where}." in str(error)
        raise ExperimentError(str(error) if says_where else f"[{where}] {error}") from None


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (types.UnionType, typing.Union):
        return _convert_union(arguments, value, where)
    if origin is Literal:
        if value not in arguments:
            raise ExperimentError(f"{where} is {shown(value)}; expected one of {', '.join(map(str, arguments))}")
        return value
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_convert(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {key: _convert(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(hint):
        return read_table(typing.cast(type, hint), value, where)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint in (int, float, bool, str) and type(value) is hint:
        return value
    raise ExperimentError(f"{where} is {shown(value)}; {_EXPECTED.get(origin or hint, str(hint))} is expected")


def _convert_union(options: tuple[Any, ...], value: Any, where: str) -> Any:
    """The first option that fits; lists and tables are tried as such first, so that the error names the item."""

    def comes_late(option: Any) -> bool:
        if isinstance(value, dict):
            return not dataclasses.is_dataclass(option)
        return isinstance(value, list) and typing.get_origin(option) is not tuple

    wrong = None
    for option in sorted(options, key=comes_late):
        if option is type(None):
            continue
        try:
            return _convert(option, value, where)
        except ExperimentError as error:
            wrong = wrong or error
    raise wrong or ExperimentError(where)


def shown(value: Any) -> str:
    """A value of a file as errors quote it."""
    if isinstance(value, str):
        return f'the text "{value}"'
    return str(value).lower() if isinstance(value, bool) else str(value)


def plain(value: Any) -> Any:
    """A value as TOML has it: tuples are lists, and None is left out."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if item is not None}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value
