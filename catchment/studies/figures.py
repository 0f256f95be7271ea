"""Curves of a study: the headline over rounds, bytes and virtual time; means over seeds in bands from least to most."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from catchment.report.drawing import (
    Drawing,
    accuracy_axis,
    byte_axis,
    constant_lines,
    label_text,
    line_form,
    round_axis,
    set_label,
)
from catchment.report.showing import SECONDS, fitting
from catchment.report.verdicts import NAMES
from catchment.studies.results import CURVE, RowResult, StudyResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

VIRTUAL_TIME = "The time that the simulated devices would have needed."
MOST_LINES = 8  # in one figure
_ROUND, _HEADLINE, _BYTES, _, _TIME = range(len(CURVE))


class Band(NamedTuple):
    """The line of one row: the mean over seeds, and how far they lie apart."""

    label: str
    points: list[list[float]]  # as in CURVE, means over seeds
    low: list[float]  # in percent
    high: list[float]


class Scale(NamedTuple):
    """The y axis: what it shows, and what always answering the most frequent class reaches."""

    name: str
    constant: list[float]


def drawings(result: StudyResult) -> list[Drawing]:
    """Every figure for which there are curves: a few rows each."""
    found = []
    for title, rows in _panels(result):
        bands = [band for row in rows if (band := _band(row, title)) is not None]
        if not bands:
            continue
        name = NAMES[result.headline]
        begin = f"{title}: {name}" if title else name[0].upper() + name[1:]
        scale = Scale(name, _majorities(rows) if result.headline == "accuracy" else [])
        found.append(Drawing(f"{begin} per round", _note(bands), partial(_over_rounds, bands, scale)))
        if any(band.points[-1][_BYTES] for band in bands):
            note = "Up and down together, without evaluation."
            found.append(Drawing(f"{begin} against bytes", note, partial(_over_bytes, bands, scale)))
        if any(band.points[-1][_TIME] for band in bands):
            found.append(Drawing(f"{begin} against virtual time", VIRTUAL_TIME, partial(_over_time, bands, scale)))
    return found


def _panels(result: StudyResult) -> Iterator[tuple[str, Sequence[RowResult]]]:
    """Rows that are drawn together: with axes, those that differ in the last one."""
    rows = [row for row in result.rows if row.runs]
    if len(rows) <= MOST_LINES:
        yield "", rows
        return
    groups: dict[str, list[RowResult]] = {}
    for row in rows:
        groups.setdefault(", ".join(value for value in list(row.values.values())[:-1] if value), []).append(row)
    for title, group in groups.items():
        for start in range(0, len(group), MOST_LINES):
            yield title, group[start : start + MOST_LINES]


def _majorities(rows: Sequence[RowResult]) -> list[float]:
    return [share for row in rows for share in row.numbers("majority").values()]


def _band(row: RowResult, title: str) -> Band | None:
    """The points that all seeds of a row have."""
    curves = [{point[_ROUND]: point for point in run.curve} for run in row.runs]
    rounds = sorted(number for number in set.intersection(*map(set, curves)) if number is not None)
    if not rounds:
        return None
    at = [[curve[number] for curve in curves] for number in rounds]
    points = [[_mean(values) for values in zip(*seeds)] for seeds in at]
    shares = [[100 * (point[_HEADLINE] or 0.0) for point in seeds] for seeds in at]
    label = label_text(row.label.removeprefix(f"{title}, "), 40)
    return Band(label, points, list(map(min, shares)), list(map(max, shares)))


def _mean(values: Sequence[float | None]) -> float:
    """NaN, which is not drawn, where a result lacks the number: early ones have no bytes up and no times of rounds."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if len(known) == len(values) else math.nan


def _note(bands: Sequence[Band]) -> str:
    spread = any(band.low != band.high for band in bands)
    return "The mean over seeds, in a band from the lowest to the highest." if spread else "One seed."


def _draw(axes: Axes, bands: Sequence[Band], scale: Scale, place: int, unit: float = 1.0) -> None:
    for number, band in enumerate(bands):
        x = [point[place] / unit for point in band.points]
        form = line_form(number, len(x))
        axes.plot(x, [100 * point[_HEADLINE] for point in band.points], label=band.label, **form)
        if band.low != band.high:
            axes.fill_between(x, band.low, band.high, color=form["color"], alpha=0.18, linewidth=0)
    constant_lines(axes, scale.constant)
    accuracy_axis(axes, scale.name)


def _over_rounds(bands: Sequence[Band], scale: Scale, axes: Axes) -> None:
    _draw(axes, bands, scale, _ROUND)
    round_axis(axes)


def _over_bytes(bands: Sequence[Band], scale: Scale, axes: Axes) -> None:
    moving = [band for band in bands if band.points[-1][_BYTES]]
    unit = byte_axis(axes, "x", "training bytes so far", [band.points[-1][_BYTES] for band in moving])
    _draw(axes, moving, scale, _BYTES, unit)


def _over_time(bands: Sequence[Band], scale: Scale, axes: Axes) -> None:
    timed = [band for band in bands if band.points[-1][_TIME]]
    unit = fitting(max(band.points[-1][_TIME] for band in timed), SECONDS)
    _draw(axes, timed, scale, _TIME, unit.size)
    set_label(axes, "x", "virtual time", unit.name)
