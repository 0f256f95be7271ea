"""Study files: one table of a paper, or of one's own, as settings that its rows share and those that tell them apart.

A study file has `[experiment]` (settings of every row), `[[row]]` or `[axes]` (what differs), `[[when]]` (settings
of some combinations of axes), `[scale.NAME]` (what another scale changes for every row) and `[group.NAME]` (settings
that are used by name). All of them have one form: `use` names groups, `experiment` has settings, `scale.NAME` has both
for that scale alone. They are merged in the order study, axes, combinations, row; all settings of a scale come after
all others.
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from catchment.config.toml import merged, read_file
from catchment.errors import ExperimentError
from catchment.names import check_slug, did_you_mean
from catchment.reading import shown

Table = dict[str, Any]
PAPER = "paper"  # the scale of a study as it is written
_PART = {"use", "experiment", "scale"}
_KEYS = _PART | {
    "name", "title", "note", "extends", "seeds", "columns", "reference", "across", "row", "axes", "when", "exclude",
    "paper", "group",
}  # fmt: skip
_OF_SCALE = {"use", "experiment", "note", "seeds", "columns", "reference", "across"}
_RELATIVE = re.compile("difference|.* / reference")  # columns that need a reference


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

    @property
    def headline(self) -> str:
        """What `evaluation.headline` is in all rows; accuracy if they differ."""
        found = {row.settings.get("evaluation", {}).get("headline", "accuracy") for row in self.rows}
        return found.pop() if len(found) == 1 else "accuracy"

    @staticmethod
    def load(path: str | Path, scale: str = PAPER) -> StudyFile:
        """Read a study file and those that it extends."""
        path = Path(path)
        table = _read(path)
        if not table.keys() & _KEYS - {"name"}:  # an experiment file: a study of one row
            table = read_file(path)  # again, by the rules of experiment files that extend each other
            title, seed = table.get("name", path.stem), table.pop("seed", 0)
            table = {"title": title, "seeds": [seed], "row": [{"label": path.stem, "experiment": table}]}
        try:
            return _study(table, path, scale)
        except ExperimentError as error:
            raise ExperimentError(f"{path}: {error}") from None

    def varied(self, values: Mapping[str, Sequence[Any]]) -> StudyFile:
        """Every row with every combination of other settings, by dotted keys; `seed` sets the seeds.

        Differences are taken to the first row, and several seeds show them.
        """
        seeds = distinct_seeds(values.get("seed", self.seeds))
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
        _check_labels([row.label for row in rows])
        if not keys:
            return replace(self, seeds=seeds)
        columns = self.columns
        if columns == StudyFile.columns and len(rows) > 1 and len(seeds) > 1:
            columns = (columns[0], "difference", *columns[1:])
        return replace(self, rows=rows, seeds=seeds, columns=columns, reference=rows[0].label)

    @staticmethod
    def scales(path: str | Path) -> list[str]:
        """The scales that a study file has, its own first."""
        return [PAPER, *_read(Path(path)).get("scale", {})]


def distinct_seeds(seeds: Any) -> tuple[int, ...]:
    """Seeds as they are given, if they are some, and each is another one."""
    if not isinstance(seeds, list | tuple | range) or not all(type(seed) is int and seed >= 0 for seed in seeds):
        raise ExperimentError(
            f"seeds is {shown(seeds)}; a list of whole numbers is expected, such as seeds = [0, 1, 2]"
        )
    if not seeds:
        raise ExperimentError("seeds is an empty list; at least one is expected, such as seeds = [0]")
    for seed in seeds:
        if seeds.count(seed) > 1:
            raise ExperimentError(
                f"seeds has {seed} {seeds.count(seed)} times; equal seeds give equal runs: name it once"
            )
    return tuple(seeds)


def _study(table: Table, path: Path, scale: str) -> StudyFile:
    _check_form(table)
    scales = [PAPER, *table.get("scale", {})]
    if scale not in scales:
        raise ExperimentError(f'there is no scale "{scale}"; {did_you_mean(scale, scales)}')
    rows = tuple(_rows(table, scale))
    if not rows:
        left_out = "[axes] leave no row: one is empty, or [[exclude]] leaves out every combination"
        raise ExperimentError(left_out if "axes" in table else "there are no rows; write [[row]] tables or [axes]")
    labels = [row.label for row in rows]
    _check_labels(labels)
    chosen = {**table, **table.get("scale", {}).get(scale, {})}
    known: Table = {key: chosen[key] for key in ("note", "reference", "across") if key in chosen}
    known |= {key: tuple(chosen[key]) for key in ("seeds", "columns") if key in chosen}
    reference, across = known.get("reference"), known.get("across")
    if reference is not None and reference not in labels:
        raise ExperimentError(f'reference is "{reference}", which is no row; {did_you_mean(reference, labels)}')
    for column in known.get("columns", ()) if reference is None else ():
        if _RELATIVE.fullmatch(column):
            raise ExperimentError(
                f'the column "{column}" needs a reference; write reference = "{labels[0]}", or another'
            )
    if across is not None and across not in table.get("axes", {}):
        raise ExperimentError(f'across is "{across}", which is no axis; {did_you_mean(across, table.get("axes", {}))}')
    name = table.get("name", f"{path.resolve().parent.name}-{path.stem}")
    title = table.get("title", path.stem)
    return StudyFile(name, scale, title, rows, path=str(path.resolve().parent), **known)


def _check_labels(labels: Sequence[str]) -> None:
    for label in labels:
        if labels.count(label) > 1:
            raise ExperimentError(f'{labels.count(label)} rows are called "{label}"; each needs a label of its own')


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
    axes: dict[str, Table] = table.get("axes", {})
    papers = table.get("paper", {})
    for names in itertools.product(*(axis for axis in axes.values())) if axes else ():
        values = dict(zip(axes, names))
        if any(_matches(values, rule) for rule in table.get("exclude", ())):
            continue
        parts = [axes[axis][value] for axis, value in values.items()]
        parts += [case for case in table.get("when", ()) if _matches(values, case.get("axes", {}))]
        yield Row(", ".join(filter(None, names)), _settings([table, *parts], groups, scale), _at(papers, names), values)
    for row in table.get("row", ()):
        yield Row(row["label"], _settings([table, row], groups, scale), row.get("paper"))


def _settings(parts: Sequence[Table], groups: Table, scale: str) -> Table:
    """The settings of the parts of one row, one after another, and then those of the scale."""
    found: Table = {}
    for part in parts:
        found = merged(found, _of_part(part, groups))
    for part in parts:
        for user in (*_used(part, groups), part):
            found = merged(found, _of_part(user.get("scale", {}).get(scale, {}), groups))
    if "seed" in found:
        raise ExperimentError(f"experiment.seed is {shown(found['seed'])}; a study has a list: seeds = [0, 1, 2]")
    return found


def _of_part(part: Table, groups: Table) -> Table:
    found: Table = {}
    for group in _used(part, groups):
        found = merged(found, group.get("experiment", {}))
    return merged(found, part.get("experiment", {}))


def _used(part: Table, groups: Table, users: tuple[str, ...] = ()) -> list[Table]:
    """The groups that a part uses, and those that these use, each before its user."""
    names = part.get("use", [])
    found: list[Table] = []
    for name in [names] if isinstance(names, str) else names:
        if name not in groups:
            raise ExperimentError(f'use = "{name}" names no group; {did_you_mean(name, groups)}')
        if name in users:
            raise ExperimentError(f"groups use each other in a circle: {' -> '.join((*users, name))}")
        found += [*_used(groups[name], groups, (*users, name)), groups[name]]
    return found


def _matches(values: Mapping[str, str], rule: Table) -> bool:
    """Whether a combination has these values, each one value or a list of some."""
    return all(values[axis] in ([wanted] if isinstance(wanted, str) else wanted) for axis, wanted in rule.items())


def _at(papers: Any, names: Sequence[str]) -> float | str | None:
    """The paper's number for a combination: nested tables by the values of the axes."""
    for name in names:
        if not isinstance(papers, dict):
            return papers if isinstance(papers, int | float | str) else None
        papers = papers.get(name)
    return papers if isinstance(papers, int | float | str) else None


# ---- the form of a file ------------------------------------------------------------------------------------------


def _check_form(table: Table) -> None:
    """Refuse what is misspelt or of another kind wherever it stands, at the scale that is asked for or not."""
    for key in table.keys() - _KEYS:
        raise ExperimentError(f'unknown key "{key}"; {did_you_mean(key, _KEYS)}')
    scales = _tables(table.get("scale", {}), "scale")
    for scale, part in scales.items():
        _check_part(part, f"scale.{scale}", _OF_SCALE, {})
    for place in (table, *scales.values()):
        _check_values(place)
    if "name" in table:
        check_slug(table["name"])
    _check_part({key: table[key] for key in table.keys() & {"use", "experiment"}}, "the study", _PART, scales)
    for group, part in _tables(table.get("group", {}), "group").items():
        _check_part(part, f"group.{group}", _PART, scales)
    axes = _tables(table.get("axes", {}), "axes")
    for axis, values in axes.items():
        for value, part in _tables(values, f"axes.{axis}").items():
            _check_part(part, f"axes.{axis}.{value}", _PART, scales)
    for case in _tables_in_list(table, "when"):
        _check_part(case, "when", _PART | {"axes"}, scales)
        _check_rule(_tables(case.get("axes", {}), "when.axes"), axes)
    for rule in _tables_in_list(table, "exclude"):
        _check_rule(rule, axes)
    if "paper" in table:
        _check_paper(table["paper"], list(axes.items()), "paper")
    for number, row in enumerate(_tables_in_list(table, "row"), start=1):
        _check_part(row, f"row {number}", _PART | {"label", "paper"}, scales)
        if "label" not in row:
            raise ExperimentError(f"row {number} has no label")
        if not isinstance(row["label"], str):
            raise ExperimentError(f"the label of row {number} is {shown(row['label'])}; text in quotes is expected")
        _check_paper(row.get("paper", 0), [], f"paper of row {number}")


def _check_values(table: Table) -> None:
    """The kinds of what is no table."""
    for key in ("name", "title", "note", "reference", "across"):
        if not isinstance(table.get(key, ""), str):
            raise ExperimentError(f"{key} is {shown(table[key])}; text in quotes is expected")
    distinct_seeds(table.get("seeds", [0]))
    columns = table.get("columns", ["accuracy"])
    if not isinstance(columns, list) or not columns or not all(isinstance(column, str) for column in columns):
        raise ExperimentError(
            f'columns is {shown(columns)}; a list of names is expected, such as columns = ["accuracy"]'
        )


def _check_part(part: Any, where: str, known: set[str], scales: Table) -> None:
    for key in _tables(part, where).keys() - known:
        raise ExperimentError(f'unknown key "{key}" in {where}; {did_you_mean(key, known)}')
    _tables(part.get("experiment", {}), f"experiment of {where}")
    names = part.get("use", [])
    if not isinstance(names, str) and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ExperimentError(f"use is {shown(names)} in {where}; the name of a group or a list of names is expected")
    for scale, inner in _tables(part.get("scale", {}), f"scale of {where}").items() if "scale" in known else ():
        if scale not in scales and scale != PAPER:
            raise ExperimentError(
                f'{where} has settings for scale "{scale}", which is none; {did_you_mean(scale, scales)}'
            )
        _check_part(inner, f"scale.{scale} of {where}", {"use", "experiment"}, scales)


def _check_rule(rule: Table, axes: Table) -> None:
    """The axes and their values that `exclude` or `when` name."""
    for axis, wanted in rule.items():
        if axis not in axes:
            raise ExperimentError(f'there is no axis "{axis}"; {did_you_mean(axis, axes)}')
        for value in wanted if isinstance(wanted, list) else [wanted]:
            if value not in axes[axis]:
                raise ExperimentError(
                    f"{axis} = {shown(value)} is no value of that axis; {did_you_mean(str(value), axes[axis])}"
                )


def _check_paper(papers: Any, axes: Sequence[tuple[str, Table]], where: str) -> None:
    """Numbers or words in tables by the values of the axes."""
    if isinstance(papers, dict) and axes:
        (axis, values), *others = axes
        for value, inner in papers.items():
            if value not in values:
                raise ExperimentError(
                    f'{where} has "{value}", which is no value of axis {axis}; {did_you_mean(value, values)}'
                )
            _check_paper(inner, others, f"{where}.{value}")
    elif not isinstance(papers, int | float | str):
        raise ExperimentError(f"{where} is {shown(papers)}; a number or text is expected")


def _tables(value: Any, where: str) -> Table:
    if not isinstance(value, dict):
        raise ExperimentError(f"{where} is {shown(value)}; a table is expected")
    return value


def _tables_in_list(table: Table, key: str) -> list[Table]:
    found = table.get(key, [])
    if not isinstance(found, list):
        raise ExperimentError(f"{key} is not a list of tables; write [[{key}]] above each")
    return [_tables(one, f"{key} {number}") for number, one in enumerate(found, start=1)]


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
    names = [extends] if isinstance(extends, str) else extends
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ExperimentError(f"extends is {shown(extends)} in {path}; a file or a list of files is expected")
    found: Table = {}
    for name in names:
        found = _over(found, _read(path.parent / name, (*users, path)))
    return _over(found, table)


def _over(earlier: Table, later: Table) -> Table:
    """Two study tables key by key; settings of experiments by the rules of experiments."""
    found = dict(earlier)
    for key, value in later.items():
        if key == "experiment" and isinstance(value, dict):
            found[key] = merged(earlier.get(key, {}), value)
        elif isinstance(value, dict) and isinstance(earlier.get(key), dict):
            found[key] = _over(earlier[key], value)
        else:
            found[key] = value
    return found
