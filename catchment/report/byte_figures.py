"""The figures of a report about bytes: per round, by tensor, per client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from catchment.errors import needs
from catchment.report.curves import curves, round_numbers, training_bytes
from catchment.report.drawing import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    Drawing,
    byte_axis,
    from_zero,
    label_text,
    plot,
    round_axis,
    set_label,
    stacked,
    whole_numbers,
)
from catchment.report.showing import BYTES, fitting, human_bytes
from catchment.runs.reading import RunFiles
from catchment.runs.records import LedgerEntry, LedgerRound

with needs("a report", "research"):
    import numpy as np
    from matplotlib.axes import Axes

STREAMS = ((BLUE, VERMILLION), (SKY, ORANGE), (GREEN, PURPLE), (GREY, BLACK))  # up and down, of each purpose in turn
TRAINING = "training"  # the purpose that comes first
FRAMING = "(framing)"  # as the ledger calls it
TENSORS = 12  # bars in the figure of bytes by tensor
MANY = 200  # clients: from more of them on, a histogram in place of a bar for each
BINS = 40  # of a histogram


def bytes_per_round(runs: Sequence[RunFiles]) -> Drawing | None:
    """Bytes of each round: of a single run by direction and purpose, of several the sum of training."""
    if len(runs) == 1:
        rounds = [line.round for line in runs[0].ledger]
        streams = _streams(runs[0], rounds, lambda line, entry: {line.round: len(entry.clients)})
        note = "What was sent in each round, by purpose and direction; up is from the clients to the server."
        if not streams:
            return None
        return Drawing("Bytes per round", note, lambda axes: _stacked_bytes(axes, rounds, streams, "round"))

    lines = curves(runs, lambda run: (round_numbers(run.rounds), training_bytes(run)))
    lines = [curve for curve in lines if any(curve.y)]
    if not lines:
        return None

    def draw(axes: Axes) -> None:
        scale = byte_axis(axes, "y", "training bytes", [max(curve.y) for curve in lines])
        plot(axes, [curve._replace(y=[value / scale for value in curve.y]) for curve in lines])
        if axes.get_yscale() == "linear":
            from_zero(axes)
        round_axis(axes)

    note = "Up and down together, without evaluation."
    if not all(all(curve.y) for curve in lines):
        note += " A logarithmic axis cannot show rounds of 0 bytes."
    return Drawing("Bytes per round", note, draw)


def bytes_by_tensor(run: RunFiles) -> Drawing | None:
    """The tensors with the most bytes, and what messages need beside their tensors."""
    ways: dict[str, Counter[str]] = {"up": Counter(), "down": Counter()}
    for line in run.ledger:
        for entry in line.entries:
            for name, size in entry.tensors.items():
                ways[entry.direction][name] += size * len(entry.clients)
    totals = sum(ways.values(), Counter())
    if not totals:
        return None
    ranked = [name for name, _ in totals.most_common()]
    shown = [name for name in ranked if name != FRAMING][: TENSORS - (FRAMING in totals)]
    others = [name for name in ranked if name != FRAMING and name not in shown]
    groups = [(name, [name]) for name in ranked if name in {*shown, FRAMING}]
    if others:
        groups.append((f"(others: {len(others)})", others))
    rows = max(len(groups), 3)  # a single bar should not look like a wall

    def draw(axes: Axes) -> None:
        unit = fitting(max(totals.values()), BYTES)
        left = [0.0] * len(groups)
        for way, colour in zip(ways, (BLUE, VERMILLION)):
            widths = [sum(ways[way][name] for name in names) / unit.size for _, names in groups]
            axes.barh(range(len(groups)), widths, left=left, color=colour, label=way, height=0.72)
            left = [start + width for start, width in zip(left, widths)]
        axes.set_yticks(range(len(groups)), [label_text(name, 34) for name, _ in groups])
        axes.set_ylim(rows - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        set_label(axes, "x", "bytes of the whole run", unit.name)

    note = "All purposes together. Framing is what messages need beside their tensors: headers, names and numbers."
    return Drawing("Bytes by tensor", note, draw, height=1.2 + 0.27 * rows)


def bytes_per_client(run: RunFiles) -> Drawing | None:
    """Bytes per client, by direction and purpose; for many clients, a histogram."""
    moved: Counter[int] = Counter()
    for line in run.ledger:
        for entry in line.entries:
            size = sum(entry.tensors.values())
            for client, messages in Counter(entry.clients).items():
                moved[client] += messages * size
    if not moved:
        return None
    clients = range(max(run.plan.data.clients, max(moved) + 1))
    if len(clients) > MANY:
        return _clients_by_bytes(list(moved.values()), len(clients))
    streams = _streams(run, clients, lambda line, entry: Counter(entry.clients))
    return Drawing(
        "Bytes per client",
        "What each client sent and received in the whole run, by purpose and direction.",
        lambda axes: _stacked_bytes(axes, clients, streams, "client"),
    )


def _clients_by_bytes(moved: Sequence[int], clients: int) -> Drawing:
    """A histogram in place of a bar per client."""
    low, high, silent = min(moved), max(moved), clients - len(moved)

    def draw(axes: Axes) -> None:
        unit = fitting(high, BYTES)
        counts, edges = np.histogram(np.array(moved) / unit.size, bins=BINS)
        axes.stairs(counts, edges, fill=True, color=BLUE)
        axes.yaxis.set_major_locator(whole_numbers())
        set_label(axes, "x", "bytes of the whole run", unit.name)
        set_label(axes, "y", "clients")

    note = f"Of {clients:,} clients {len(moved):,} had traffic, each from {human_bytes(low)} to {human_bytes(high)}"
    return Drawing("Bytes per client", f"{note}, up and down together; {silent:,} had none.", draw)


def _streams(
    run: RunFiles, positions: Sequence[int], where: Callable[[LedgerRound, LedgerEntry], Mapping[int, int]]
) -> dict[tuple[str, str], list[float]]:
    """(purpose, direction) -> bytes at each position; `where` gives how many messages of an entry are where."""
    found: dict[tuple[str, str], Counter[int]] = {}
    for line in run.ledger:
        for entry in line.entries:
            size = sum(entry.tensors.values())
            stream = found.setdefault((entry.purpose, entry.direction), Counter())
            for position, messages in where(line, entry).items():
                stream[position] += messages * size
    order = sorted(found, key=lambda key: (key[0] != TRAINING, key[0], key[1] != "up"))
    return {key: [float(found[key][position]) for position in positions] for key in order}


def _stacked_bytes(
    axes: Axes, positions: Sequence[float], streams: dict[tuple[str, str], list[float]], what: str
) -> None:
    unit = fitting(max(map(sum, zip(*streams.values()))), BYTES)
    purposes = list(dict.fromkeys([TRAINING, *(purpose for purpose, _ in streams)]))
    colours = [STREAMS[purposes.index(purpose) % len(STREAMS)][way == "down"] for purpose, way in streams]
    series = {f"{purpose}, {way}": [size / unit.size for size in sizes] for (purpose, way), sizes in streams.items()}
    stacked(axes, positions, series, colours)
    set_label(axes, "x", what)
    set_label(axes, "y", "bytes", unit.name)
