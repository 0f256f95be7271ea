"""Tables of TOML: files that extend each other, settings of the command line, and values as files have them."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from catchment.errors import ExperimentError
from catchment.reading import Table, shown

# Their `name` says what the other keys mean: under another name they start afresh.
_NAMED = (
    "method", "aggregation", "attack", "data.partition", "optimizer.client", "optimizer.server",
    "optimizer.client.schedule", "optimizer.server.schedule",
)  # fmt: skip
Over = Callable[[Table, Table], Table]


def parse_setting(text: str) -> tuple[str, Any]:
    """`"method.client_epochs=2"` as key and value; the value is TOML, or plain text if it is not."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip() or "\n" in text:
        raise ExperimentError(f"--set {text}: expected key=value, such as --set method.client_epochs=2")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def parse_toml(text: str, where: str = "this") -> Table:
    """The table that a text stands for."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ExperimentError(f"{where} is not valid TOML: {error}") from None


def read_file(path: Path, kind: str = "experiment", over: Over | None = None, users: tuple[Path, ...] = ()) -> Table:
    """The table of a file over the files that it extends; `users` are the files that extend it, outermost first."""
    trail = (*users, path)
    if path.resolve() in [user.resolve() for user in users]:
        raise ExperimentError(f"{kind} files extend each other in a circle: {' -> '.join(map(str, trail))}")
    try:
        table = parse_toml(path.read_text(encoding="utf-8-sig"), str(path))
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        wanted = f", which {users[-1]} extends" if users else ""
        raise ExperimentError(f"there is no {kind} file {path}{wanted}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ExperimentError(f"{path} cannot be read: {error}") from None
    extends = table.pop("extends", [])
    names = [extends] if isinstance(extends, str) else extends
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ExperimentError(f"extends is {shown(extends)} in {path}; a file or a list of files is expected")
    whole: Table = {}
    for part in (*(read_file(path.parent / name, kind, over, trail) for name in names), table):
        whole = (over or merged)(whole, part)
    return whole


def merged(earlier: Mapping[str, Any], later: Mapping[str, Any], where: str = "") -> Table:
    """Two tables key by key, where the later one wins."""
    if where in _NAMED and "name" in earlier and later.get("name", earlier["name"]) != earlier["name"]:
        return dict(later)
    both = dict(earlier)
    for key, value in later.items():
        both_tables = isinstance(value, dict) and isinstance(earlier.get(key), dict)
        both[key] = merged(earlier[key], value, f"{where}.{key}" if where else key) if both_tables else value
    return both


def changed(table: Mapping[str, Any], changes: Mapping[str, Any]) -> Table:
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


def _copied(table: Mapping[str, Any]) -> Table:
    return {key: _copied(value) if isinstance(value, Mapping) else value for key, value in table.items()}


def plain(value: Any) -> Any:
    """A value as TOML has it: tuples are lists, and None is left out."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if item is not None}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value
