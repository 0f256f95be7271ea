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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from catchment.config.toml import merged, read_file
from catchment.errors import ExperimentError
from catchment.names import check_slug, did_you_mean
from catchment.reading import read_table, shown
from catchment.studies.form import Form, Names, Part, Rule, Settings, Table

PAPER = "paper"  # the scale of a study as it is written
_KEYS = {part.name for part in fields(Form)}
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
        table = read_file(path, "study", _over)
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
        return [PAPER, *read_file(Path(path), "study", _over).get("scale", {})]


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
    form = _form(table)
    scales = [PAPER, *form.scale]
    if scale not in scales:
        raise ExperimentError(f'there is no scale "{scale}"; {did_you_mean(scale, scales)}')
    rows = tuple(_rows(form, scale))
    if not rows:
        left_out = "[axes] leave no row: one is empty, or [[exclude]] leaves out every combination"
        raise ExperimentError(left_out if form.axes else "there are no rows; write [[row]] tables or [axes]")
    labels = [row.label for row in rows]
    _check_labels(labels)
    of_scale = {name: value for name, value in vars(form.scale.get(scale, Settings())).items() if value is not None}
    chosen = {**vars(form), **of_scale}
    reference, across, columns = (chosen[name] for name in ("reference", "across", "columns"))
    if reference is not None and reference not in labels:
        raise ExperimentError(f'reference is "{reference}", which is no row; {did_you_mean(reference, labels)}')
    for column in columns if reference is None else ():
        if _RELATIVE.fullmatch(column):
            raise ExperimentError(
                f'the column "{column}" needs a reference; write reference = "{labels[0]}", or another'
            )
    if across is not None and across not in form.axes:
        raise ExperimentError(f'across is "{across}", which is no axis; {did_you_mean(across, form.axes)}')
    folder = path.resolve().parent
    return StudyFile(
        form.name or f"{folder.name}-{path.stem}", scale, form.title or path.stem, rows, chosen["seeds"], columns,
        reference, across, chosen["note"], str(folder),
    )  # fmt: skip


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


def _rows(form: Form, scale: str) -> Iterator[Row]:
    whole = Part(use=form.use, experiment=form.experiment, scale={**form.scale})
    for names in itertools.product(*form.axes.values()) if form.axes else ():
        values = dict(zip(form.axes, names))
        if any(_matches(values, rule) for rule in form.exclude):
            continue
        parts = [form.axes[axis][value] for axis, value in values.items()]
        parts += [case for case in form.when if _matches(values, case.axes)]
        label = ", ".join(filter(None, names))
        yield Row(label, _settings([whole, *parts], form.group, scale), _at(form.paper, names), values)
    for row in form.row:
        yield Row(row.label, _settings([whole, row], form.group, scale), row.paper)


def _settings(parts: Sequence[Part], groups: Mapping[str, Part], scale: str) -> Table:
    """The settings of the parts of one row, one after another, and then those of the scale."""
    found: Table = {}
    for part in parts:
        found = merged(found, _of_part(part, groups))
    for part in parts:
        for user in (*_used(part, groups), part):
            found = merged(found, _of_part(user.scale.get(scale, Settings()), groups))
    if "seed" in found:
        raise ExperimentError(f"experiment.seed is {shown(found['seed'])}; a study has a list: seeds = [0, 1, 2]")
    return found


def _of_part(part: Settings, groups: Mapping[str, Part]) -> Table:
    found: Table = {}
    for group in _used(part, groups):
        found = merged(found, group.experiment)
    return merged(found, part.experiment)


def _used(part: Settings, groups: Mapping[str, Part], users: tuple[str, ...] = ()) -> list[Part]:
    """The groups that a part uses, and those that these use, each before its user."""
    found: list[Part] = []
    for name in _several(part.use):
        if name not in groups:
            raise ExperimentError(f'use = "{name}" names no group; {did_you_mean(name, groups)}')
        if name in users:
            raise ExperimentError(f"groups use each other in a circle: {' -> '.join((*users, name))}")
        found += [*_used(groups[name], groups, (*users, name)), groups[name]]
    return found


def _several(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


def _matches(values: Mapping[str, str], rule: Rule) -> bool:
    """Whether a combination has these values, each one value or a list of some."""
    return all(values[axis] in _several(wanted) for axis, wanted in rule.items())


def _at(papers: Any, names: Sequence[str]) -> int | float | str | None:
    """The paper's number for a combination: nested tables by the values of the axes."""
    for name in names:
        papers = papers.get(name) if isinstance(papers, dict) else papers
    return papers if isinstance(papers, int | float | str) else None


# ---- the form of a file ------------------------------------------------------------------------------------------


def _form(table: Table) -> Form:
    """The tables of a file; what is misspelt or of another kind is refused, at the scale that is asked for or not."""
    for key in ("row", "when", "exclude"):
        if isinstance(table.get(key, []), dict):
            raise ExperimentError(f"{key} is not a list of tables; write [[{key}]] above each")
    try:
        form = read_table(Form, table)
    except ExperimentError as error:
        counted = re.sub(r"\b(row|when|exclude)\[(\d+)\]", lambda found: f"{found[1]} {int(found[2]) + 1}", str(error))
        raise ExperimentError(counted) from None
    if form.name is not None:
        check_slug(form.name)
    for seeds in (form.seeds, *(scale.seeds for scale in form.scale.values() if scale.seeds is not None)):
        distinct_seeds(seeds)
    for rule in (*form.exclude, *(case.axes for case in form.when)):
        _check_rule(rule, form.axes)
    for where, part in _parts(form):
        for scale in part.scale.keys() - {PAPER, *form.scale}:
            raise ExperimentError(
                f'{where} has settings for scale "{scale}", which is none; {did_you_mean(scale, form.scale)}'
            )
    _check_paper(form.paper, list(form.axes.items()), "paper")
    return form


def _parts(form: Form) -> Iterator[tuple[str, Part]]:
    """All parts that may have settings of their own for a scale, and where they stand."""
    for name, group in form.group.items():
        yield f"group.{name}", group
    for axis, values in form.axes.items():
        for value, part in values.items():
            yield f"axes.{axis}.{value}", part
    for kind, found in (("when", form.when), ("row", form.row)):
        for number, part in enumerate(found, start=1):
            yield f"{kind} {number}", part


def _check_rule(rule: Rule, axes: Mapping[str, Mapping[str, Part]]) -> None:
    """The axes and their values that `exclude` or `when` name."""
    for axis, wanted in rule.items():
        if axis not in axes:
            raise ExperimentError(f'there is no axis "{axis}"; {did_you_mean(axis, axes)}')
        for value in _several(wanted):
            if value not in axes[axis]:
                raise ExperimentError(
                    f"{axis} = {shown(value)} is no value of that axis; {did_you_mean(value, axes[axis])}"
                )


def _check_paper(papers: Any, axes: Sequence[tuple[str, Mapping[str, Part]]], where: str) -> None:
    """Numbers or words in tables by the values of the axes."""
    if isinstance(papers, dict) and axes:
        (axis, values), *others = axes
        for value, inner in papers.items():
            if value not in values:
                raise ExperimentError(
                    f'{where} has "{value}", which is no value of axis {axis}; {did_you_mean(value, values)}'
                )
            _check_paper(inner, others, f"{where}.{value}")
    elif papers and not isinstance(papers, int | float | str):
        raise ExperimentError(f"{where} is {shown(papers)}; a number or text is expected")


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
