"""The form of a study file: what its tables may have, wherever they stand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from catchment.reading import Whole

Table = dict[str, Any]
Names = str | tuple[str, ...]
Rule = dict[str, Names]  # of axes: one of their values, or several
Seeds = Annotated[tuple[Whole, ...], Field(min_length=1, title="a list of whole numbers, such as seeds = [0, 1, 2],")]
Columns = Annotated[tuple[str, ...], Field(min_length=1, title='a list of names, such as columns = ["accuracy"],')]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of experiments."""

    use: Names = ()
    """A group of settings by its name, or a list of groups."""
    experiment: Table = field(default_factory=dict)
    """Settings, as in an experiment file."""


@dataclass(frozen=True, kw_only=True)
class Part(Settings):
    """Settings of experiments, and what they are at other scales."""

    scale: dict[str, Settings] = field(default_factory=dict)
    """Settings of one scale, which come after all others."""


@dataclass(frozen=True, kw_only=True)
class Case(Part):
    """`[[when]]`: settings of some combinations of axes."""

    axes: Rule = field(default_factory=dict)
    """The combinations: for each axis a value, or a list of values."""


@dataclass(frozen=True, kw_only=True)
class RowForm(Part):
    """`[[row]]`: a row of its own."""

    label: str
    """The name of the row."""
    paper: int | float | str | None = None
    """What the paper has for this row; the column `paper` shows it."""


@dataclass(frozen=True, kw_only=True)
class Scale(Settings):
    """`[scale.NAME]`: what another scale changes for every row."""

    note: str | None = None
    """What stands below the table."""
    seeds: Seeds | None = None
    """The seeds of every row."""
    columns: Columns | None = None
    """The columns of the table."""
    reference: str | None = None
    """The row that differences are taken to."""
    across: str | None = None
    """The axis whose values are columns."""


@dataclass(frozen=True, kw_only=True)
class Form(Settings):
    """A study file."""

    name: str | None = None
    """What its result files are called; without it, the folder and the name of the file."""
    title: str | None = None
    """What stands above the table."""
    note: str = ""
    """What stands below the table."""
    seeds: Seeds = (0,)
    """The seeds of every row."""
    columns: Columns = ("accuracy", "bytes.up", "bytes.down")
    """The columns of the table."""
    reference: str | None = None
    """The row that differences are taken to."""
    across: str | None = None
    """The axis whose values are columns, each with the first column."""
    row: tuple[RowForm, ...] = ()
    """Rows of their own."""
    axes: dict[str, dict[str, Part]] = field(default_factory=dict)
    """Axes and their values; every combination is a row."""
    when: tuple[Case, ...] = ()
    """Settings of some combinations of axes."""
    exclude: tuple[Rule, ...] = ()
    """Combinations that are no rows."""
    paper: Table | int | float | str = field(default_factory=dict)
    """What the paper has, by the values of the axes."""
    group: dict[str, Part] = field(default_factory=dict)
    """Settings that are used by name."""
    scale: dict[str, Scale] = field(default_factory=dict)
    """What other scales change for every row."""
