"""The page of a study: its table, its curves and what failed, in one HTML file that needs nothing else."""

from __future__ import annotations

from catchment.report import gains
from catchment.report.page import render
from catchment.report.parts import Alert, Figures, Graph, Note, Part, Section, Table
from catchment.report.tables import Column
from catchment.runs.records import ByClient
from catchment.studies.figures import drawings
from catchment.studies.file import PAPER
from catchment.studies.results import RunResult, StudyResult
from catchment.studies.tables import grid, not_beaten


def page(result: StudyResult) -> str:
    """The HTML of a study, finished or not."""
    done = sum(len(row.runs) for row in result.rows)
    wanted = len(result.rows) * len(result.seeds)
    scale = "" if result.scale == PAPER else f"Scale: {result.scale}. "
    opening: list[Part] = [Note(f"{scale}Seeds: {', '.join(map(str, result.seeds))}.")]
    if result.note:
        opening.append(Note(result.note))
    if done < wanted:
        opening.append(Alert(f"{done} of {wanted} runs are done."))
    sections = [Section("Table", [_table(result), *map(Alert, not_beaten(result)), Note(_legend(result))])]
    if figures := [Graph(drawing.svg(f"f{n}"), drawing.note) for n, drawing in enumerate(drawings(result))]:
        sections.append(Section("Curves", [Figures(figures)]))
    if gained := _gains(result):
        figure = gains.drawing(gained)
        parts: list[Part] = [Table(gains.columns(gained)), Note(gains.NOTE)]
        sections.append(Section("What clients gain", [*parts, Figures([Graph(figure.svg("gains"), figure.note)])]))
    if failed := [(row.label, seed, why) for row in result.rows for seed, why in row.failed.items()]:
        labels, seeds, reasons = zip(*failed)
        columns = [
            Column("row", labels, numeric=False), Column("seed", [*map(str, seeds)]),
            Column("why", reasons, numeric=False),
        ]  # fmt: skip
        sections.append(Section("Runs that failed", [Table(columns)]))
    return render(result.title, opening, sections)


def _gains(result: StudyResult) -> list[gains.Gains]:
    """What clients of each row gain over training alone, all seeds together."""
    alone = [run for row in result.rows for run in row.runs if run.method == gains.ALONE and run.by_client is not None]
    found = []
    for row in result.rows:
        parts = [
            one
            for run in row.runs
            for before in alone
            if run.method != gains.ALONE and run.seed == before.seed and before.by_client is not None
            if (one := gains.gains(row.label, _own(run, before.by_client), before.by_client)) is not None
        ]
        if parts:
            samples = [size for one in parts for size in one.samples]
            found.append(gains.Gains(row.label, samples, [gain for one in parts for gain in one.points]))
    return found


def _own(run: RunResult, alone: ByClient) -> ByClient:
    return run.by_client or gains.everybody(alone, run.numbers["accuracy"])


def _table(result: StudyResult) -> Table:
    found = grid(result)
    texts = [[f"{cell.text} *" if cell.best else cell.text for cell in row] for row in found.rows]
    columns = [
        Column(title or "row", cells, numeric=number > 0)
        for number, (title, cells) in enumerate(zip(found.heads, zip(*texts)))
    ]
    return Table(columns)


def _legend(result: StudyResult) -> str:
    several = len(result.seeds) > 1
    return (
        "Mean and standard deviation over seeds. A difference is paired by seed, with its 95 % interval. "
        "*: better than every other row beyond doubt, by such intervals."
        if several
        else "One seed: differences may be chance."
    )
