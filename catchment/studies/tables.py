"""A study's table as text for a terminal, Markdown, CSV, LaTeX and HTML."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from catchment.studies.columns import Cell, cell, check, head
from catchment.studies.file import PAPER
from catchment.studies.results import RowResult, StudyResult


@dataclass(frozen=True)
class Grid:
    """A table before it has a form."""

    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]


def grid(result: StudyResult) -> Grid:
    """The table of a study: a line per row, or, with `across`, a line per row of the other axes."""
    check(result.columns, {name for row in result.rows for run in row.runs for name in run.numbers})
    if result.across is not None:
        return _across(result, result.across)
    columns = [*result.columns]
    rows = [[Cell(row.label), *(cell(result, row, column) for column in columns)] for row in result.rows]
    return Grid(["", *map(head, columns)], rows)


def not_beaten(result: StudyResult) -> list[str]:
    """A sentence for each row whose models are no better than always answering the most frequent class."""
    found = []
    for row in result.rows:
        majority, accuracy = row.numbers("majority"), row.numbers("accuracy")
        seeds = [seed for seed in majority if accuracy[seed] <= majority[seed]]
        if seeds:
            where = f" in {len(seeds)} of {len(majority)} seeds" if len(majority) > 1 else ""
            share = f"{100 * max(majority[seed] for seed in seeds):.1f} %"
            found.append(
                f"{row.label}: the accuracy does not beat always answering the most frequent class, {share}{where}."
            )
    return found


def _across(result: StudyResult, axis: str) -> Grid:
    """The values of one axis side by side, each with the first column, and the paper's number in brackets."""
    names = list(dict.fromkeys(row.values[axis] for row in result.rows if axis in row.values)) or [""]
    lines: dict[str, dict[str, RowResult]] = {}
    for row in result.rows:
        if axis in row.values:
            rest = ", ".join(value for name, value in row.values.items() if name != axis and value)
            lines.setdefault(rest, {})[row.values[axis]] = row
        else:
            lines.setdefault(row.label, {})[names[0]] = row
    shows_paper = "paper" in result.columns

    def place(row: RowResult | None) -> Cell:
        if row is None:
            return Cell("")
        found = cell(result, row, result.columns[0])
        paper = f" ({row.paper})" if shows_paper and row.paper is not None else ""
        return Cell(found.text + paper, found.numbers, found.best)

    rows = [[Cell(line), *(place(found.get(name)) for name in names)] for line, found in lines.items()]
    return Grid([head(result.columns[0]) + (" (paper)" if shows_paper else ""), *names], rows)


def text(result: StudyResult) -> RichTable:
    """For a terminal."""
    found = grid(result)
    scale = "" if result.scale == PAPER else f" ({result.scale})"
    title = Text(result.title + scale)  # brackets in a plain string would be markup
    table = RichTable(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    for number, title in enumerate(map(Text, found.heads)):
        table.add_column(title, justify="right" if number else "left", overflow="fold")
    for row in found.rows:
        table.add_row(*(Text(one.text, style="bold" if one.best else "") for one in row))
    return table


def markdown(result: StudyResult) -> str:
    """For a page on GitHub."""
    found = grid(result)
    lines = [
        [_markdown(title) for title in found.heads],
        ["---", *["---:"] * (len(found.heads) - 1)],
        *([_markdown_cell(one) for one in row] for row in found.rows),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _markdown_cell(one: Cell) -> str:
    return f"**{_markdown(one.text)}**" if one.best else _markdown(one.text)


def _markdown(text: str) -> str:
    """A text of one line, without signs that begin a cell, a tag, code or emphasis."""
    return re.sub(r"[\\|<*`]", lambda sign: f"\\{sign[0]}", " ".join(text.split()))


def comma_separated(result: StudyResult) -> str:
    """One line per run with every number, for programs."""
    rows = list(result)
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def latex(result: StudyResult) -> str:
    """A `tabular` with the rules of `booktabs`."""
    found = grid(result)
    lines = [
        f"\\begin{{tabular}}{{l{'r' * (len(found.heads) - 1)}}}",
        "\\toprule",
        " & ".join(map(_latex, found.heads)) + r" \\",
        "\\midrule",
        *(" & ".join(_latex_cell(one) for one in row) + r" \\" for row in found.rows),
        "\\bottomrule",
        "\\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _latex_cell(one: Cell) -> str:
    return f"\\textbf{{{_latex(one.text)}}}" if one.best else _latex(one.text)


_LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",  # other signs in LaTeX's first encoding
    "[": "{[}",  # after a rule or the end of a row, it would begin an option
}  # fmt: skip


def _latex(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in " ".join(text.split()))


def html_table(result: StudyResult) -> str:
    """A `table` element."""
    found = grid(result)
    heads = "".join(f"<th>{html.escape(title)}</th>" for title in found.heads)
    body = "".join(
        "<tr>"
        + "".join(
            f"<td>{'<b>' if one.best else ''}{html.escape(one.text)}{'</b>' if one.best else ''}</td>" for one in row
        )
        + "</tr>\n"
        for row in found.rows
    )
    return f"<table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>"


FORMS = {"markdown": markdown, "csv": comma_separated, "latex": latex, "html": html_table}
