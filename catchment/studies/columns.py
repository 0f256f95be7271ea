"""Columns of a study's table: a number of every run, put together over seeds and set against the reference row.

A column is the name of a number (`accuracy`, `bytes.up`, `clients.min`, `edge_accuracy`), or one of these forms:
`bytes to 40 %` (up and down until the headline reaches it), `up to 40 %`, `rounds to 40 %`, `time to 40 %`;
`largest fall` (of the headline, from one evaluation to the next); `NAME in round 8` (what the method noted);
`bytes.up / reference` (a ratio); `difference` (of the headline, to the reference row, paired by seed, with its 95 %
interval); `paper` (what the paper prints).
"""

from __future__ import annotations

import difflib
import itertools
import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from catchment.errors import ExperimentError
from catchment.report.showing import MISSING, human_bytes, human_seconds
from catchment.runs.records import LOWER_IS_BETTER, SHARES
from catchment.studies.results import CURVE, RowResult, StudyResult
from catchment.studies.statistics import paired, spread

AVERAGE_PRECISION = "server.AP"  # what the measures of detection begin with
FALL = "largest fall"

_TO = re.compile(r"(bytes|up|rounds|time) to (\d+(?:\.\d+)?) %")
_NOTED = re.compile(r"(\w+) in round (\d+)")
_RATIO = re.compile(r"(\S+) / reference")
_NEARLY_A_FORM = re.compile(r"%|/|\b(to|in round) *\d")
_HEADS = {
    "accuracy": "accuracy, %",
    "validation": "validation, %",
    "balanced_accuracy": "balanced accuracy, %",
    "macro_f1": "macro F1, %",
    "worst_recall": "worst recall, %",
    "auroc": "AUROC, %",
    "calibration_error": "calibration error, %",
    "majority": "majority class, %",
    "best": "best round, %",
    "clients.mean": "clients' mean, %",
    "clients.min": "worst client, %",
    "clients.max": "best client, %",
    "server.accuracy": "server, %",
    "edge_accuracy": "edge model, %",
    "bytes.up": "up",
    "bytes.down": "down",
    "virtual_seconds": "virtual time",
    "seconds": "time",
    "probe.correlation": "correlation of rebuilt images",
    "probe.ssim": "SSIM of rebuilt images",
    "probe.identified": "images identified, %",
    FALL: "largest fall, points",
    "difference": "difference to the reference, points",
    "paper": "paper",
}
_NUMBERS = {
    *_HEADS, "bytes.evaluation", "rounds", "lost", "late", "failed", "refused", "parameters.client",
    "parameters.server", "macs_per_sample.client", "macs_per_sample.server",
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """What stands in one place of a table, and the numbers behind it."""

    text: str
    numbers: tuple[float, ...] = ()  # by seed
    best: bool = False


def head(column: str) -> str:
    """The heading of a column."""
    if match := _RATIO.fullmatch(column):
        return f"{head(match[1]).removesuffix(', %')}, times the reference"
    if column.startswith(("models.", AVERAGE_PRECISION)):
        return f"{column.partition('.')[2]}, %"
    return _HEADS.get(column, column.replace("_", " "))


def cell(result: StudyResult, row: RowResult, column: str) -> Cell:
    """One cell; a dash if the row has no such number."""
    if column == "paper":
        return Cell(MISSING if row.paper is None else f"{row.paper}")
    if column == "difference":
        return _difference(result, row)
    if match := _RATIO.fullmatch(column):
        return _ratio(result, row, match[1])
    values = numbers(row, column, result.headline)
    if not values:
        return Cell(_missing(row))
    part = f" ({len(values)} of {len(row.runs)} seeds)" if len(values) < len(row.runs) else ""
    return Cell(
        _shown(column, list(values.values())) + part,
        tuple(values.values()),
        column in (*SHARES, *LOWER_IS_BETTER, "best") and _best(result, row, column),
    )


def numbers(row: RowResult, column: str, headline: str = "accuracy") -> dict[int, float]:
    """The number of a column for every seed that has it; `headline` is what the curves of runs are of."""
    if match := _NOTED.fullmatch(column):
        return _noted(row, match[1], int(match[2]))
    if column == FALL:
        return _falls(row, -1 if headline in LOWER_IS_BETTER else 1)
    match = _TO.fullmatch(column)
    if match is None:
        return row.numbers(column)
    place = CURVE.index({"bytes": "bytes", "up": "up", "rounds": "round", "time": "virtual_seconds"}[match[1]])
    goal = float(f"{match[2]}e-2")  # a division could end above the nearest number, and miss an accuracy of just this
    reached = operator.le if headline in LOWER_IS_BETTER else operator.ge
    found = {
        run.seed: next((point[place] for point in run.curve if point[1] is not None and reached(point[1], goal)), None)
        for run in row.runs
    }
    return {seed: value for seed, value in found.items() if value is not None}


def _noted(row: RowResult, name: str, round: int) -> dict[int, float]:
    values = {run.seed: run.notes.get(name, [])[round - 1 : round] for run in row.runs}
    return {seed: value for seed, found in values.items() for value in found if value is not None}


def _falls(row: RowResult, sign: int) -> dict[int, float]:
    """The largest fall of each run that was evaluated more than once; 0 if it never fell."""
    curves = {run.seed: [sign * point[1] for point in run.curve if point[1] is not None] for run in row.runs}
    return {
        seed: max(0.0, *itertools.starmap(operator.sub, itertools.pairwise(curve)))
        for seed, curve in curves.items()
        if len(curve) > 1
    }


def check(columns: Iterable[str], known: Iterable[str] = ()) -> None:
    """Refuse a column that is misspelt: nearly the name of a number, or nearly one of the forms.

    A name that is like none of them may be what a method measures that has not run yet: it is a column of dashes.
    """
    names = {*_NUMBERS, *known}
    for column in columns:
        name = match[1] if (match := _RATIO.fullmatch(column)) else column
        if name in names or _TO.fullmatch(name) or _NOTED.fullmatch(name):
            continue
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.85)
        if near and not name.startswith("models."):
            raise ExperimentError(f'unknown column "{column}"; did you mean "{near[0]}"?')
        if not name.startswith("models.") and _NEARLY_A_FORM.search(name):
            raise ExperimentError(
                f'unknown column "{column}"; such columns are "bytes to 80 %", "up to 80 %", "rounds to 80 %", '
                '"time to 80 %", "NAME in round 8" and "NAME / reference"'
            )


def _missing(row: RowResult) -> str:
    return "failed" if row.failed and not row.runs else MISSING


def _shown(column: str, values: list[float]) -> str:
    found = spread(values)
    if _is_share(column):
        deviation = "" if found.deviation is None else f" ± {100 * found.deviation:.1f}"
        return f"{100 * found.mean:.1f}{deviation}"
    if column.startswith(("bytes", "up to")):
        return human_bytes(found.mean)
    if column.startswith(("time to", "seconds", "virtual_seconds")):
        return human_seconds(found.mean)
    deviation = "" if found.deviation is None else f" ± {found.deviation:.3g}"
    return f"{found.mean:,.4g}{deviation}"


def _is_share(column: str) -> bool:
    shares = (*SHARES, *LOWER_IS_BETTER, "validation", "best", "majority", "probe.identified", FALL)
    known = column in shares or column.endswith("accuracy")
    return known or column.startswith(("clients.", "models.", AVERAGE_PRECISION))


def _difference(result: StudyResult, row: RowResult) -> Cell:
    reference = result.row(result.reference) if result.reference else None
    if reference is None or reference is row:
        return Cell(MISSING)
    found = paired(row.numbers(result.headline), reference.numbers(result.headline))
    if found is None:
        return Cell(MISSING)
    if found.low is None or found.high is None:
        return Cell(f"{100 * found.mean:+.1f} (one seed)", (found.mean,))
    return Cell(f"{100 * found.mean:+.1f} [{100 * found.low:+.1f}, {100 * found.high:+.1f}]", (found.mean,))


def _ratio(result: StudyResult, row: RowResult, column: str) -> Cell:
    reference = result.row(result.reference) if result.reference else None
    mine = numbers(row, column, result.headline)
    others = {} if reference is None else numbers(reference, column, result.headline)
    ratios = [mine[seed] / others[seed] for seed in sorted(mine.keys() & others.keys()) if others[seed]]
    return Cell(f"{spread(ratios).mean:.3g}", tuple(ratios)) if ratios else Cell(MISSING)


def _best(result: StudyResult, row: RowResult, column: str) -> bool:
    """Whether a row is better than every other, beyond doubt: all paired intervals leave zero out."""
    sign = -1 if column in LOWER_IS_BETTER else 1
    others: list[Mapping[int, float]] = [numbers(other, column) for other in result.rows if other is not row]
    differences = [paired(numbers(row, column), other) for other in others if other]
    return bool(differences) and all(
        found is not None and found.certain and sign * found.mean > 0 for found in differences
    )
