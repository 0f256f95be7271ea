"""The figures of a report. Every figure is of one run, or compares several; one without numbers is None."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, pairwise

from catchment.errors import needs
from catchment.report.byte_figures import bytes_by_tensor, bytes_per_client, bytes_per_round
from catchment.report.clock import clock_name, clock_note
from catchment.report.curves import curves, round_numbers, training_bytes
from catchment.report.drawing import (
    BLACK,
    GREEN,
    ORANGE,
    PURPLE,
    VERMILLION,
    WIDE,
    Curve,
    Drawing,
    accuracy_axis,
    byte_axis,
    constant_lines,
    from_zero,
    label_text,
    line_form,
    plot,
    round_axis,
    set_label,
    stacked,
    whole_numbers,
)
from catchment.report.showing import SECONDS, fitting, printable
from catchment.report.verdicts import NAMES, constant_answer, shared_headline
from catchment.runs.reading import RunFiles
from catchment.runs.records import TROUBLES, Round

with needs("a report", "research"):
    from matplotlib.axes import Axes

EVENTS = {"lost": VERMILLION, "late": ORANGE, "failed": BLACK, "refused": PURPLE}


def drawings(runs: Sequence[RunFiles]) -> list[Drawing]:
    """Every figure for which there are numbers: of one run, or of several in the same axes."""
    found = [
        headline_per_round(runs),
        accuracy_per_round(runs),
        accuracy_per_byte(runs),
        accuracy_per_second(runs),
        bytes_per_round(runs),
        bytes_by_tensor(runs[0]) if len(runs) == 1 else None,
        bytes_per_client(runs[0]) if len(runs) == 1 else None,
        notes_per_round(runs[0]) if len(runs) == 1 else None,
        events_per_round(runs),
        time_per_round(runs),
        *(further_per_round(runs[0]) if len(runs) == 1 else []),
    ]
    return [drawing for drawing in found if drawing is not None]


def notes_per_round(run: RunFiles) -> Drawing | None:
    """The numbers that the method noted in each round."""
    lines: list[Curve] = []
    for name in dict.fromkeys(name for record in run.rounds for name in record.notes):
        known = [record for record in run.rounds if math.isfinite(record.notes.get(name, math.nan))]
        if known:
            values = [record.notes[name] for record in known]
            lines.append(Curve(label_text(name.replace("_", " "), 34), len(lines), round_numbers(known), values))
    if not lines:
        return None

    def draw(axes: Axes) -> None:
        plot(axes, lines)
        from_zero(axes)
        round_axis(axes)

    return Drawing(
        "Notes of the method", "Numbers of each round, which the page of the method in docs/methods explains.", draw
    )


# ---- accuracy ---------------------------------------------------------------------------------------------------


def headline_per_round(runs: Sequence[RunFiles]) -> Drawing | None:
    """The headline after each evaluated round, where it is not the accuracy."""
    name = shared_headline(runs)
    if name == "accuracy" or not any(run.evaluated for run in runs):
        return None

    def draw(axes: Axes) -> None:
        plot(axes, curves(runs, lambda run: (round_numbers(run.evaluated), _shares(run, name))))
        round_axis(axes)
        _share_axis(axes, runs, name)

    return Drawing(f"{_title(name)} per round", "The headline that the experiment asks for.", draw)


def accuracy_per_round(runs: Sequence[RunFiles]) -> Drawing | None:
    """Accuracy after each evaluated round; of a single run, the server's and the clients' apart."""
    if not any(run.evaluated for run in runs):
        return None
    single = len(runs) == 1

    def draw(axes: Axes) -> None:
        if single:
            _own_accuracy(axes, runs[0])
        else:
            plot(axes, curves(runs, lambda run: (round_numbers(run.evaluated), _shares(run, "accuracy"))))
        round_axis(axes)
        _share_axis(axes, runs, "accuracy")

    if single and any(record.clients for record in runs[0].evaluated):
        note = "Clients: the mean over their models, and a band from the worst to the best where they differ."
    else:
        note = "The accuracy of the method's model, or the mean over clients."
    return Drawing("Accuracy per round", note, draw)


def accuracy_per_byte(runs: Sequence[RunFiles]) -> Drawing | None:
    """The headline against the bytes that training has sent until then."""
    name = shared_headline(runs)
    lines = [curve for curve in curves(runs, lambda run: (_bytes_so_far(run), _shares(run, name))) if any(curve.x)]
    if not lines:
        return None

    def draw(axes: Axes) -> None:
        scale = byte_axis(axes, "x", "training bytes so far", [max(curve.x) for curve in lines])
        plot(axes, [curve._replace(x=[value / scale for value in curve.x]) for curve in lines])
        _share_axis(axes, runs, name)

    return Drawing(f"{_title(name)} against bytes", "Up and down together, without evaluation.", draw)


def accuracy_per_second(runs: Sequence[RunFiles]) -> Drawing | None:
    """The headline against the time that devices have needed until then."""
    name = shared_headline(runs)

    def points(run: RunFiles) -> tuple[list[float], list[float]]:
        return [record.virtual_seconds for record in run.evaluated], _shares(run, name)

    lines = [curve for curve in curves(runs, points) if any(curve.x)]
    if not lines:
        return None

    def draw(axes: Axes) -> None:
        unit = fitting(max(max(curve.x) for curve in lines), SECONDS)
        plot(axes, [curve._replace(x=[value / unit.size for value in curve.x]) for curve in lines])
        set_label(axes, "x", clock_name(runs), unit.name)
        _share_axis(axes, runs, name)

    return Drawing(f"{_title(name)} against {clock_name(runs)}", clock_note(runs), draw)


def _own_accuracy(axes: Axes, run: RunFiles) -> None:
    """The server's accuracy, and the clients' mean with a band from the worst to the best."""
    server = [(record.round, record.server.accuracy) for record in run.evaluated if record.server]
    server = [(number, accuracy) for number, accuracy in server if accuracy is not None]
    clients = [(record.round, record.clients.accuracy) for record in run.evaluated if record.clients]
    if server:
        rounds, accuracies = zip(*server)
        axes.plot(rounds, [100 * accuracy for accuracy in accuracies], label="server", **line_form(0, len(server)))
    if clients:
        numbers = [number for number, _ in clients]
        low, mean, high = ([100 * getattr(s, which) for _, s in clients] for which in ("min", "mean", "max"))
        axes.plot(numbers, mean, label="clients, mean", **line_form(1, len(clients)))
        if low != high:
            axes.fill_between(
                numbers, low, high, color=VERMILLION, alpha=0.18, linewidth=0, label="clients, worst to best"
            )
    if not server and not clients:
        axes.plot(round_numbers(run.evaluated), _shares(run, "accuracy"), **line_form(0, len(run.evaluated)))


def _shares(run: RunFiles, name: str) -> list[float]:
    """In percent, after each evaluated round; NaN, which is not drawn, where it was not measured."""
    values = [run.number(name, record) for record in run.evaluated]
    return [math.nan if value is None else 100 * value for value in values]


def _share_axis(axes: Axes, runs: Sequence[RunFiles], name: str) -> None:
    constant_lines(axes, (constant_answer(run.outcome, name) for run in runs))
    accuracy_axis(axes, NAMES[name])


def _title(name: str) -> str:
    return NAMES[name][0].upper() + NAMES[name][1:]


def _bytes_so_far(run: RunFiles) -> list[float]:
    """What training has sent until the end of each evaluated round."""
    sums = accumulate(training_bytes(run))
    return [size for size, record in zip(sums, run.rounds) if record.accuracy is not None]


# ---- what methods add -------------------------------------------------------------------------------------------


def further_per_round(run: RunFiles) -> list[Drawing]:
    """Further numbers of a method that belong together: those whose names begin alike, `norm_a` and `norm_b`."""
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for record in run.evaluated for name in _further_numbers(record)):
        begin, _, rest = name.partition("_")
        if rest:
            groups.setdefault(begin, []).append(name)
    return [_further(run, begin, names) for begin, names in groups.items() if len(names) > 1]


def _further_numbers(record: Round) -> dict[str, float]:
    return {
        name: value for name, value in record.more.items() if isinstance(value, int | float) and math.isfinite(value)
    }


def _further(run: RunFiles, begin: str, names: Sequence[str]) -> Drawing:
    lines = []
    for index, name in enumerate(names):
        records = [record for record in run.evaluated if name in _further_numbers(record)]
        values = [float(record.more[name]) for record in records]
        lines.append(Curve(label_text(name, 40), index, round_numbers(records), values))
    values = [value for curve in lines for value in curve.y]
    wide = min(values) > 0 and max(values) > WIDE * min(values)

    def draw(axes: Axes) -> None:
        plot(axes, lines)
        if wide:
            axes.set_yscale("log")
        set_label(axes, "y", label_text(begin, 40), "logarithmic" if wide else "")
        round_axis(axes)

    title = f"{printable(begin).capitalize()} per round"
    return Drawing(title, "As the method measured it in each evaluated round.", draw)


# ---- events and time --------------------------------------------------------------------------------------------


def events_per_round(runs: Sequence[RunFiles]) -> Drawing | None:
    """Replies that went wrong: of a single run by kind, of several their number."""

    def points(run: RunFiles) -> tuple[list[float], list[float]]:
        return round_numbers(run.rounds), [float(_troubles(record).total()) for record in run.rounds]

    lines = [curve for curve in curves(runs, points) if any(curve.y)]
    if not lines:
        return None

    def draw(axes: Axes) -> None:
        if len(runs) == 1:
            counts = [_troubles(record) for record in runs[0].rounds]
            kinds = sorted(sum(counts, Counter()), key=[*EVENTS].index)
            series = {kind: [float(count[kind]) for count in counts] for kind in kinds}
            stacked(axes, lines[0].x, series, [EVENTS[kind] for kind in kinds])
        else:
            plot(axes, lines)
        axes.yaxis.set_major_locator(whole_numbers())
        from_zero(axes)
        round_axis(axes)
        set_label(axes, "y", "replies")

    note = (
        "Lost: no reply came. Late: it came after its deadline. Failed: the client could not do the work. Refused: the "
        "server did not accept it."
    )
    return Drawing("Lost, late, failed and refused replies", note, draw)


def _troubles(record: Round) -> Counter[str]:
    """The replies of a round that went wrong, by kind."""
    return Counter(event.what for event in record.events if event.what in TROUBLES)


def time_per_round(runs: Sequence[RunFiles]) -> Drawing | None:
    """The time that devices needed for each round."""

    def points(run: RunFiles) -> tuple[list[float], list[float]]:
        clock = [0.0, *(record.virtual_seconds for record in run.rounds)]
        return round_numbers(run.rounds), [after - before for before, after in pairwise(clock)]

    lines = [curve for curve in curves(runs, points) if any(curve.y)]
    if not lines:
        return None

    def draw(axes: Axes) -> None:
        unit = fitting(max(max(curve.y) for curve in lines), SECONDS)
        scaled = [curve._replace(y=[value / unit.size for value in curve.y]) for curve in lines]
        if len(runs) == 1:
            stacked(axes, scaled[0].x, {clock_name(runs): scaled[0].y}, [GREEN])
        else:
            plot(axes, scaled)
        from_zero(axes)
        round_axis(axes)
        set_label(axes, "y", clock_name(runs), unit.name)

    return Drawing(f"{clock_name(runs).capitalize()} per round", clock_note(runs), draw)
