"""The report: one HTML file that needs nothing else, of one run or of several compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from catchment.errors import UserError, needs
from catchment.report.parts import Part, Section
from catchment.report.sections import opening, sections
from catchment.report.showing import printable
from catchment.report.tables import Column
from catchment.runs.reading import RunFiles


def write_report(runs: Sequence[RunFiles], target: str | Path) -> Path:
    """Write the report of these runs; returns the file. A `target` that is a directory gets a `report.html`."""
    if not runs:
        raise UserError("a report needs at least one run; none was given")
    page = html_report(runs)
    path = Path(target)
    if path.is_dir():
        path /= "report.html"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None
    return path


def html_report(runs: Sequence[RunFiles]) -> str:
    """The HTML of a report."""
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs compared"
    return render(title, opening(runs), sections(runs))


def render(title: str, opening: Sequence[Part], sections: Sequence[Section]) -> str:
    """The HTML of a page with these parts."""
    with needs("a report", "research"):
        from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        finalize=_printable,
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    template = environment.get_template("page.html", globals={"rows": _rows})
    return template.render(title=title, opening=opening, sections=sections)


def _printable(value: object) -> object:
    """Text without control characters; what the template calls safe stays as it is."""
    return "\n".join(map(printable, value.split("\n"))) if type(value) is str else value


def _rows(columns: Sequence[Column]) -> Iterator[list[tuple[str, str]]]:
    """The cells of each row, each with the kind of its column."""
    for cells in zip(*(column.cells for column in columns)):
        yield [(column.kind, cell) for column, cell in zip(columns, cells)]
