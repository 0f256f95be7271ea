"""Runs side by side: one row per run, for the terminal and for documents."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.table import Table
from rich.text import Text

from catchment.report.clock import clock_name
from catchment.report.showing import MISSING, human_bytes, human_seconds, percent, printable
from catchment.report.verdicts import NAMES, shared_headline
from catchment.runs.reading import RunFiles, labels
from catchment.runs.records import TROUBLES, Result

EVALUATION = "bytes to evaluate"


@dataclass(frozen=True)
class Column:
    """A column of any of the tables: a heading, and one cell per row."""

    title: str
    cells: Sequence[str]
    numeric: bool = True

    @property
    def kind(self) -> str:
        """`"number"` or `"text"`."""
        return "number" if self.numeric else "text"


def summary_columns(runs: Sequence[RunFiles]) -> list[Column]:
    """What every form of the summary shows; columns without information are left out."""
    outcomes = [run.outcome for run in runs]
    sizes = [outcome.bytes for outcome in outcomes]
    evaluation = Column(EVALUATION, [human_bytes(size.evaluation) for size in sizes])
    method = Column("method", [printable(run.method) for run in runs], numeric=False)
    headline = shared_headline(runs)
    first = Column(f"{NAMES[headline]} %", [percent(run.number(headline)) for run in runs])
    majority = [run.number("majority") for run in runs]
    columns = [
        Column("run", [printable(label) for label in labels(runs)], numeric=False),
        *([] if all(run.method == run.name for run in runs) else [method]),
        *([] if headline == "accuracy" else [first]),
        Column("accuracy %", [percent(outcome.accuracy) for outcome in outcomes]),
        *([Column("majority %", [*map(percent, majority)])] if any(majority) else []),
        Column("clients %", [_spread(outcome) for outcome in outcomes]),
        Column("rounds", [f"{run.done}" if run.result else f"{run.done} of {run.planned}" for run in runs]),
        Column("bytes up", [human_bytes(size.up) for size in sizes]),
        Column("bytes down", [human_bytes(size.down) for size in sizes]),
        *([evaluation] if any(size.evaluation for size in sizes) else []),
        Column("wall time", [human_seconds(outcome.seconds) for outcome in outcomes]),
    ]
    said = [", ".join(outcome.self_reported) or MISSING for outcome in outcomes]
    if any(cell != MISSING for cell in said):
        columns.append(Column("self-reported", said, numeric=False))
    if any(outcome.virtual_seconds for outcome in outcomes):
        columns.append(Column(clock_name(runs), [human_seconds(outcome.virtual_seconds) for outcome in outcomes]))
    troubles = [[getattr(outcome, what) for what in TROUBLES] for outcome in outcomes]
    if any(map(any, troubles)):
        columns.append(Column(", ".join(TROUBLES), [", ".join(map(str, counts)) for counts in troubles]))
    return columns


def summary_table(runs: Sequence[RunFiles], width: int = 120) -> Table:
    """The summary for a terminal of some width; the bytes of evaluation are only in the report.

    Names are folded first; numbers are broken only where the terminal is too narrow for them.
    """
    columns = [column for column in summary_columns(runs) if column.title != EVALUATION]
    widths = [_width(column) for column in columns]
    fits = sum(widths) + len(widths) <= width
    table = Table(box=box.SIMPLE, padding=0, show_edge=False)
    for column, least in zip(columns, widths):
        justify: Literal["right", "left"] = "right" if column.numeric else "left"
        heading = column.title.replace(" ", "\n")
        table.add_column(
            heading, justify=justify, vertical="bottom", overflow="fold", min_width=least if fits else None
        )
    for cells in zip(*(column.cells for column in columns)):
        table.add_row(*(Text(cell) for cell in cells))
    return table


def markdown_table(runs: Sequence[RunFiles]) -> str:
    """The summary in Markdown."""
    columns = summary_columns(runs)
    rows = [
        [column.title for column in columns],
        ["---:" if column.numeric else "---" for column in columns],
        *zip(*([_markdown(cell) for cell in column.cells] for column in columns)),
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _spread(outcome: Result) -> str:
    """From the worst client to the best."""
    if outcome.clients is None:
        return MISSING
    accuracy = outcome.clients.accuracy
    low, high = percent(accuracy.min), percent(accuracy.max)
    return low if low == high else f"{low} \N{EN DASH} {high}"


def _width(column: Column) -> int:
    """Numbers are never broken, names may be."""
    return max(len(cell) for cell in (*column.title.split(), *column.cells)) if column.numeric else 8


def _markdown(text: str) -> str:
    return re.sub(r"([\\`*\[\]<>|])", r"\\\1", text)
