"""Cells that several tables of a report have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from catchment.report.showing import MISSING, human_bytes
from catchment.report.tables import Column
from catchment.runs.reading import RunFiles, labels


def run_column(runs: Sequence[RunFiles], of: Sequence[RunFiles]) -> list[Column]:
    """The run of each row, where there is more than one."""
    if len(runs) == 1:
        return []
    names = {id(run): label for run, label in zip(runs, labels(runs))}
    return [Column("run", [names[id(run)] for run in of], numeric=False)]


def bytes_cell(size: int | None) -> str:
    """A size, or a dash where there is none."""
    return MISSING if size is None else human_bytes(size)


def counted(number: int, what: str) -> str:
    """`"1 round"`, `"1,200 rounds"`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def number_cell(value: Any) -> str:
    """Any number, or a dash for what is none."""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else MISSING
