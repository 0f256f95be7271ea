"""What each client gains over training alone, against how much data it has: who federated learning serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from catchment.report.showing import MISSING
from catchment.report.tables import Column
from catchment.runs.records import ByClient

if TYPE_CHECKING:
    from catchment.report.drawing import Drawing

POINTS = 400  # at most this many clients of a run are drawn
ALONE = "standalone"  # the method that others are compared with
NOTE = (
    "Points of accuracy that a client's model has more than the one it trains alone, in the run of standalone beside "
    "it with the same data. Halves: of the clients with fewer and with more samples."
)


class Gains(NamedTuple):
    """What a run brings to each client."""

    label: str
    samples: list[int]
    points: list[float]  # shares, with the sign


def everybody(alone: ByClient, accuracy: float) -> ByClient:
    """One model for all clients of a run, as of methods that have no other."""
    return replace(alone, accuracy=[accuracy] * len(alone.clients))


def gains(label: str, run: ByClient, alone: ByClient) -> Gains | None:
    """Client by client; None if the two runs have no client with the same number of samples in common."""
    before = {one: (size, share) for one, size, share in zip(alone.clients, alone.samples, alone.accuracy)}
    known = [
        (size, own - before[client][1])
        for client, size, own in zip(run.clients, run.samples, run.accuracy)
        if client in before and size is not None and size == before[client][0]
    ]
    return Gains(label, [size for size, _ in known], [gain for _, gain in known]) if known else None


def columns(found: Sequence[Gains]) -> list[Column]:
    """A row for each run: how many gain, and whether those with little data do."""
    halves = [_halves(one) for one in found]
    return [
        Column("run", [one.label for one in found], numeric=False),
        Column("clients that gain", [f"{sum(g > 0 for g in one.points)} of {len(one.points)}" for one in found]),
        Column("least gain", [_points(min(one.points)) for one in found]),
        Column("mean gain", [_points(fmean(one.points)) for one in found]),
        Column("largest gain", [_points(max(one.points)) for one in found]),
        Column("mean, smaller half", [_points(small) for small, _ in halves]),
        Column("mean, larger half", [_points(large) for _, large in halves]),
    ]


def _halves(one: Gains) -> tuple[float | None, float | None]:
    """The mean gain of the clients with fewer samples, and of those with more; None if all have the same number."""
    if len(set(one.samples)) == 1:
        return None, None
    ordered = [gain for _, gain in sorted(zip(one.samples, one.points))]
    half = len(ordered) // 2
    return fmean(ordered[:half]), fmean(ordered[-half:])


def _points(gain: float | None) -> str:
    return MISSING if gain is None else f"{100 * gain:+.2f}"


def drawing(found: Sequence[Gains]) -> Drawing:
    """A point for each client of each run."""
    from matplotlib.axes import Axes
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    from catchment.report.drawing import GREY, LINES, MARKERS, WIDE, Drawing, label_text, set_label

    def draw(axes: Axes) -> None:
        axes.axhline(0, color=GREY, linewidth=1)
        for number, one in enumerate(found):
            step = -(-len(one.samples) // POINTS)
            axes.plot(
                one.samples[::step],
                [100 * gain for gain in one.points[::step]],
                linestyle="",
                marker=MARKERS[number % len(MARKERS)],
                color=LINES[number % len(LINES)],
                markerfacecolor="none",  # clients of several runs may lie in one place
                markersize=6 + 2 * (number % 3),
                label=label_text(one.label, 40),
            )
        sizes = [size for one in found for size in one.samples]
        wide = max(sizes) > WIDE * max(min(sizes), 1)
        if wide:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda size, place: f"{size:,.0f}"))
            axes.xaxis.set_minor_locator(NullLocator())
        set_label(axes, "x", "samples of the client", "logarithmic" if wide else "")
        set_label(axes, "y", "gain in accuracy", "points")

    return Drawing("Gain over training alone", "Each point is a client; above the line it gains.", draw)
