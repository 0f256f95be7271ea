"""Study files: one table of a paper, or of one's own, as settings that its rows share and those that tell them apart.

A study file has `[experiment]` (settings of every row), `[[row]]` or `[axes]` (what differs), `[[when]]` (settings
of some combinations of axes), `[scale.NAME]` (what another scale changes for every row) and `[group.NAME]` (settings
that are used by name). All of them have one form: `use` names groups, `experiment` has settings, `scale.NAME` has both
for that scale alone. They are merged in the order study, axes, combinations, row; all settings of a scale come after
all others.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from catchment.config.tables import merged
from catchment.errors import ExperimentError
from catchment.names import did_you_mean

Table = dict[str, Any]
PAPER = "paper"  # the scale of a study as it is written
_PART = {"use", "experiment", "scale"}
_KEYS = _PART | {
    "name", "title", "note", "extends", "seeds", "columns", "reference", "across", "row", "axes", "when", "exclude",
    "paper", "group",
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One row of a study: the settings of its experiment, without a seed, and what the paper has for it."""

    label: str
    settings: Table
    paper: float | str | None = None
    values: Mapping[str, str] = field(default_factory=dict)  # of the axes, by their names


@dataclass(frozen=True)
class StudyFile:
    """A study at one scale, as its file has it."""

    name: str
    scale: str
    title: str
    rows: tuple[Row, ...]
    seeds: tuple[int, ...] = (0,)
    columns: tuple[str, ...] = ("accuracy", "bytes.up", "bytes.down")
    reference: str | None = None  # the row that differences are taken against
    across: str | None = None  # the axis whose values are columns
    note: str = ""
    path: str = ""  # folder of the user's own modules

    @staticmethod
    def load(path: str | Path, scale: str = PAPER) -> StudyFile:
        """Read a study file and those that it extends."""
        path = Path(path)
        table = _read(path)
        if not table.keys() & {"row", "axes", "experiment"}:  # an experiment file: a study of one row
            table = {"title": table.get("name", path.stem), "row": [{"label": path.stem, "experiment": table}]}
        try:
            return _study(table, path, scale)
        except ExperimentError as error:
            raise ExperimentError(f"{path}: {error}") from None

    def varied(self, values: Mapping[str, Sequence[Any]]) -> StudyFile:
        """Every row with every combination of other settings, by dotted keys; `seed` sets the seeds."""
        seeds = tuple(values.get("seed", self.seeds))
        keys = [key for key in values if key != "seed"]
        rows = tuple(
            Row(
                ", ".join(([row.label] if len(self.rows) > 1 else []) + [_text(value) for value in combination])
                or row.label,
                _with(row.settings, dict(zip(keys, combination))),
                row.paper if not keys else None,
                {**row.values, **dict(zip(keys, map(_text, combination)))},
            )
            for row in self.rows
            for combination in itertools.product(*(values[key] for key in keys))
        )
        return replace(self, rows=rows, seeds=seeds, reference=None if keys else self.reference)

    @staticmethod
    def scales(path: str | Path) -> list[str]:
        """The scales that a study file has, its own first."""
        return [PAPER, *_read(Path(path)).get("scale", {})]


def _study(table: Table, path: Path, scale: str) -> StudyFile:
    for key in table.keys() - _KEYS:
        raise ExperimentError(f'unknown key "{key}"; {did_you_mean(key, _KEYS)}')
    scales = [PAPER, *table.get("scale", {})]
    if scale not in scales:
        raise ExperimentError(f'there is no scale "{scale}"; {did_you_mean(scale, scales)}')
    rows = tuple(_rows(table, scale))
    if not rows:
        raise ExperimentError("there are no rows; write [[row]] tables or [axes]")
    labels = [row.label for row in rows]
    for label in labels:
        if labels.count(label) > 1:
            raise ExperimentError(f'{labels.count(label)} rows are called "{label}"; each needs a label of its own')
    chosen = {**table, **table.get("scale", {}).get(scale, {})}
    known: Table = {key: chosen[key] for key in ("note", "reference", "across") if key in chosen}
    known |= {key: tuple(chosen[key]) for key in ("seeds", "columns") if key in chosen}
    reference, across = known.get("reference"), known.get("across")
    if reference is not None and reference not in labels:
        raise ExperimentError(f'reference is "{reference}", which is no row; {did_you_mean(reference, labels)}')
    if across is not None and across not in table.get("axes", {}):
        raise ExperimentError(f'across is "{across}", which is no axis; {did_you_mean(across, table.get("axes", {}))}')
    name = table.get("name", f"{path.resolve().parent.name}-{path.stem}")
    title = table.get("title", path.stem)
    return StudyFile(name, scale, title, rows, path=str(path.resolve().parent), **known)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _with(settings: Table, changes: Mapping[str, Any]) -> Table:
    """Settings with others at dotted keys; a table that gets another `name` starts afresh."""
    for key, value in changes.items():
        nested: Any = value
        for word in reversed(key.split(".")):
            nested = {word: nested}
        settings = merged(settings, nested)
    return settings


# ---- rows --------------------------------------------------------------------------------------------------------


def _rows(table: Table, scale: str) -> Iterator[Row]:
    groups = table.get("group", {})
    for name, group in groups.items():
        _check_part(group, f"group.{name}", _PART)
    axes: dict[str, Table] = table.get("axes", {})
    papers = table.get("paper", {})
    for names in itertools.product(*(axis for axis in axes.values())) if axes else ():
        values = dict(zip(axes, names))
        if any(_matches(values, rule) for rule in table.get("exclude", ())):
            continue
        parts = [_check_part(axes[axis][value], f"axes.{axis}.{value}", _PART) for axis, value in values.items()]
        for case in table.get("when", ()):
            _check_part(case, "when", _PART | {"axes"})
            parts += [case] if _matches(values, case.get("axes", {})) else []
        yield Row(", ".join(filter(None, names)), _settings([table, *parts], groups, scale), _at(papers, names), values)
    for number, row in enumerate(table.get("row", ())):
        _check_part(row, f"row {number + 1}", _PART | {"label", "paper"})
        if "label" not in row:
            raise ExperimentError(f"row {number + 1} has no label")
        yield Row(row["label"], _settings([table, row], groups, scale), row.get("paper"))


def _settings(parts: Sequence[Table], groups: Table, scale: str) -> Table:
    """The settings of the parts of one row, one after another, and then those of the scale."""
    found: Table = {}
    for part in parts:
        found = merged(found, _of_part(part, groups))
    for part in parts:
        for user in (*_used(part, groups), part):
            found = merged(found, _of_part(user.get("scale", {}).get(scale, {}), groups))
    return found


def _of_part(part: Table, groups: Table) -> Table:
    found: Table = {}
    for group in _used(part, groups):
        found = merged(found, group.get("experiment", {}))
    return merged(found, part.get("experiment", {}))


def _used(part: Table, groups: Table) -> list[Table]:
    """The groups that a part uses, and those that these use, each before its user."""
    names = part.get("use", [])
    found: list[Table] = []
    for name in [names] if isinstance(names, str) else names:
        if name not in groups:
            raise ExperimentError(f'use = "{name}" names no group; {did_you_mean(name, groups)}')
        found += [*_used(groups[name], groups), groups[name]]
    return found


def _matches(values: Mapping[str, str], rule: Table) -> bool:
    """Whether a combination has these values, each one value or a list of some."""
    for axis, wanted in rule.items():
        if axis not in values:
            raise ExperimentError(f'there is no axis "{axis}"; {did_you_mean(axis, values)}')
        if values[axis] not in ([wanted] if isinstance(wanted, str) else wanted):
            return False
    return True


def _at(papers: Any, names: Sequence[str]) -> float | str | None:
    """The paper's number for a combination: nested tables by the values of the axes."""
    for name in names:
        if not isinstance(papers, dict):
            return papers if isinstance(papers, int | float | str) else None
        papers = papers.get(name)
    return papers if isinstance(papers, int | float | str) else None


def _check_part(part: Any, where: str, known: set[str]) -> Table:
    if not isinstance(part, dict):
        raise ExperimentError(f"{where} is {part!r}; a table is expected")
    for key in part.keys() - known:
        raise ExperimentError(f'unknown key "{key}" in {where}; {did_you_mean(key, known)}')
    return part


# ---- files -------------------------------------------------------------------------------------------------------


def _read(path: Path, users: tuple[Path, ...] = ()) -> Table:
    """The table of a file over those of the files that it extends."""
    if path.resolve() in [user.resolve() for user in users]:
        raise ExperimentError(f"study files extend each other in a circle: {' -> '.join(map(str, (*users, path)))}")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        wanted = f", which {users[-1]} extends" if users else ""
        raise ExperimentError(f"there is no study file {path}{wanted}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ExperimentError(f"{path} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ExperimentError(f"{path} is not valid TOML: {error}") from None
    extends = table.pop("extends", [])
    found: Table = {}
    for name in [extends] if isinstance(extends, str) else extends:
        found = _over(found, _read(path.parent / name, (*users, path)))
    return _over(found, table)


def _over(earlier: Table, later: Table) -> Table:
    """Two study tables key by key; settings of experiments by the rules of experiments."""
    found = dict(earlier)
    for key, value in later.items():
        if key == "experiment":
            found[key] = merged(earlier.get(key, {}), value)
        elif isinstance(value, dict) and isinstance(earlier.get(key), dict):
            found[key] = _over(earlier[key], value)
        else:
            found[key] = value
    return found
