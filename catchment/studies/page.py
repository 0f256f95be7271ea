"""The page of a study: its table, its curves and what failed, in one HTML file that needs nothing else."""

from __future__ import annotations

from catchment.report.page import render
from catchment.report.parts import Alert, Figures, Graph, Note, Part, Section, Table
from catchment.report.tables import Column
from catchment.studies.figures import drawings
from catchment.studies.file import PAPER
from catchment.studies.results import StudyResult
from catchment.studies.tables import grid


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
    sections = [Section("Table", [_table(result), Note(_legend(result))])]
    if figures := [Graph(drawing.svg(f"f{n}"), drawing.note) for n, drawing in enumerate(drawings(result))]:
        sections.append(Section("Curves", [Figures(figures)]))
    if failed := [(row.label, seed, why) for row in result.rows for seed, why in row.failed.items()]:
        labels, seeds, reasons = zip(*failed)
        columns = [
            Column("row", labels, numeric=False), Column("seed", [*map(str, seeds)]),
            Column("why", reasons, numeric=False),
        ]  # fmt: skip
        sections.append(Section("Runs that failed", [Table(columns)]))
    return render(result.title, opening, sections)


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
