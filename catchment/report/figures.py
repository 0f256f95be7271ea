"""The figures of a report, as SVG to be put into a page. Every figure is of one run, or compares several.

A figure for which a run has no numbers is None.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal, NamedTuple
from xml.etree import ElementTree

from catchment.errors import needs
from catchment.report.reading import TROUBLES, Record, RunFiles, labels
from catchment.report.showing import BYTES, SECONDS, fitting, printable, shortened

with needs("a report", "research"):
    from matplotlib import style
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

# Okabe and Ito's colours, which people with any kind of colour vision can tell apart; lines differ in form as well.
BLUE, VERMILLION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, BLACK, GREY = "#E69F00", "#56B4E9", "#222222", "#767676"
LINES = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK)
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v")
EVENTS = {"lost": VERMILLION, "late": ORANGE, "failed": BLACK, "refused": PURPLE}
STREAMS = ((BLUE, VERMILLION), (SKY, ORANGE), (GREEN, PURPLE), (GREY, BLACK))  # up and down, of each purpose in turn

TRAINING = "training"  # the purpose that comes first
FRAMING = "(framing)"  # as the ledger calls it
TENSORS = 12  # bars in the figure of bytes by tensor
FEW = 60  # so many points get markers, so many bars are drawn one by one
WIDE = 30  # times the smallest: from there on an axis of sizes is logarithmic
WIDTH, HEIGHT = 6.6, 3.9  # inches

STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E7EB",
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "legend.columnspacing": 1.2,
    "svg.fonttype": "none",
    "svg.hashsalt": "catchment",  # the same run gives the same page
    "text.parse_math": False,
}

VIRTUAL_TIME = "The time that the simulated devices would have needed; runs on ideal devices need none."


@dataclass(frozen=True)
class Drawing:
    """A figure that can be drawn."""

    title: str
    note: str  # one sentence on how to read it
    draw: Callable[[Axes], None]
    height: float = HEIGHT

    def svg(self, identity: str = "figure") -> str:
        """An `<svg>` element for an HTML page; `identity` keeps its ids apart from those of other figures."""
        with style.context(["default", STYLE]), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from")  # the browser has other fonts
            figure = Figure(figsize=(WIDTH, self.height), layout="constrained")
            axes = figure.add_subplot()
            self.draw(axes)
            axes.set_title(self.title)
            handles, names = axes.get_legend_handles_labels()
            if len(handles) > 1:
                columns = max(1, min(4, int(WIDTH / (0.47 + 0.072 * max(map(len, names))))))  # about, in inches
                figure.set_figheight(self.height + 0.18 * math.ceil(len(names) / columns))
                figure.legend(handles, names, loc="outside lower center", ncols=columns)
            file = io.StringIO()
            FigureCanvasSVG(figure).print_svg(file)  # type: ignore[no-untyped-call]
        return _element(file.getvalue(), identity, self.title)


def drawings(runs: Sequence[RunFiles]) -> list[Drawing]:
    """Every figure for which there are numbers: of one run, or of several in the same axes."""
    found = [
        accuracy_per_round(runs),
        accuracy_per_byte(runs),
        accuracy_per_virtual_second(runs),
        bytes_per_round(runs),
        bytes_by_tensor(runs[0]) if len(runs) == 1 else None,
        bytes_per_client(runs[0]) if len(runs) == 1 else None,
        notes_per_round(runs[0]) if len(runs) == 1 else None,
        events_per_round(runs),
        virtual_time_per_round(runs),
        *(further_per_round(runs[0]) if len(runs) == 1 else []),
    ]
    return [drawing for drawing in found if drawing is not None]


def notes_per_round(run: RunFiles) -> Drawing | None:
    """The numbers that the method left of each round."""
    noted = [record for record in run.rounds if record.get("notes")]
    names = dict.fromkeys(name for record in noted for name in record["notes"])
    if not names:
        return None

    def draw(axes: Axes) -> None:
        for number, name in enumerate(names):
            known = [record for record in noted if name in record["notes"]]
            values = [record["notes"][name] for record in known]
            axes.plot(_numbers(known), values, label=_name(name.replace("_", " "), 34), **_line(number, len(known)))
        _from_zero(axes)
        _round_axis(axes)

    return Drawing("What the method noted", "Numbers of each round, as the method's page explains them.", draw)


# ---- accuracy ---------------------------------------------------------------------------------------------------


def accuracy_per_round(runs: Sequence[RunFiles]) -> Drawing | None:
    """Accuracy after each evaluated round; of a single run, the server's and the clients' apart."""
    if not any(run.evaluated for run in runs):
        return None
    single = len(runs) == 1

    def draw(axes: Axes) -> None:
        if single:
            _own_accuracy(axes, runs[0])
        else:
            _plot(axes, _curves(runs, lambda run: (_numbers(run.evaluated), _accuracies(run))))
        _round_axis(axes)
        _accuracy_axis(axes)

    if single and any(record.get("clients") for record in runs[0].evaluated):
        note = "Clients: the mean over their models, and a band from the worst to the best where they differ."
    else:
        note = "The headline accuracy of the method."
    return Drawing("Accuracy per round", note, draw)


def accuracy_per_byte(runs: Sequence[RunFiles]) -> Drawing | None:
    """Accuracy against the bytes that training has moved until then."""
    curves = [curve for curve in _curves(runs, lambda run: (_bytes_so_far(run), _accuracies(run))) if any(curve.x)]
    if not curves:
        return None

    def draw(axes: Axes) -> None:
        scale = _byte_axis(axes, "x", "training bytes so far", [max(curve.x) for curve in curves])
        _plot(axes, [curve._replace(x=[value / scale for value in curve.x]) for curve in curves])
        _accuracy_axis(axes)

    return Drawing("Accuracy against bytes", "Up and down together, without evaluation.", draw)


def accuracy_per_virtual_second(runs: Sequence[RunFiles]) -> Drawing | None:
    """Accuracy against the time that the simulated devices have needed until then."""

    def points(run: RunFiles) -> tuple[list[float], list[float]]:
        return [float(record["virtual_seconds"]) for record in run.evaluated], _accuracies(run)

    curves = [curve for curve in _curves(runs, points) if any(curve.x)]
    if not curves:
        return None

    def draw(axes: Axes) -> None:
        unit = fitting(max(max(curve.x) for curve in curves), SECONDS)
        _plot(axes, [curve._replace(x=[value / unit.size for value in curve.x]) for curve in curves])
        _label(axes, "x", "virtual time", unit.name)
        _accuracy_axis(axes)

    return Drawing("Accuracy against virtual time", VIRTUAL_TIME, draw)


def _own_accuracy(axes: Axes, run: RunFiles) -> None:
    """The server's accuracy, and the clients' mean with a band from the worst to the best."""
    server = [record for record in run.evaluated if (record.get("server") or {}).get("accuracy") is not None]
    clients = [record for record in run.evaluated if record.get("clients")]
    if server:
        accuracy = [100 * record["server"]["accuracy"] for record in server]
        axes.plot(_numbers(server), accuracy, label="server", **_line(0, len(server)))
    if clients:
        low, mean, high = (
            [100 * record["clients"]["accuracy"][which] for record in clients] for which in ("min", "mean", "max")
        )
        axes.plot(_numbers(clients), mean, label="clients, mean", **_line(1, len(clients)))
        if low != high:
            axes.fill_between(
                _numbers(clients), low, high, color=VERMILLION, alpha=0.18, linewidth=0, label="clients, worst to best"
            )
    if not server and not clients:
        axes.plot(_numbers(run.evaluated), _accuracies(run), **_line(0, len(run.evaluated)))


def _accuracies(run: RunFiles) -> list[float]:
    return [100 * record["accuracy"] for record in run.evaluated]


def _bytes_so_far(run: RunFiles) -> list[float]:
    """What training has moved until the end of each evaluated round."""
    sums = accumulate(_training_bytes(run))
    return [size for size, record in zip(sums, run.rounds) if record.get("accuracy") is not None]


# ---- bytes ------------------------------------------------------------------------------------------------------


def bytes_per_round(runs: Sequence[RunFiles]) -> Drawing | None:
    """Bytes of each round: of a single run by direction and purpose, of several the sum of training."""
    if len(runs) == 1:
        rounds = [line["round"] for line in runs[0].ledger]
        streams = _streams(runs[0], rounds, lambda line, entry: [line["round"]] * len(entry["clients"]))
        note = "What crossed in each round, by purpose and direction; up is from the clients to the server."
        if not streams:
            return None
        return Drawing("Bytes per round", note, lambda axes: _stacked_bytes(axes, rounds, streams, "round"))

    curves = _curves(runs, lambda run: (_numbers(run.rounds), _training_bytes(run)))
    curves = [curve for curve in curves if any(curve.y)]
    if not curves:
        return None

    def draw(axes: Axes) -> None:
        scale = _byte_axis(axes, "y", "training bytes", [max(curve.y) for curve in curves])
        _plot(axes, [curve._replace(y=[value / scale for value in curve.y]) for curve in curves])
        if axes.get_yscale() == "linear":
            _from_zero(axes)
        _round_axis(axes)

    note = "Up and down together, without evaluation; a logarithmic axis has no place for rounds of 0 bytes."
    return Drawing("Bytes per round", note, draw)


def bytes_by_tensor(run: RunFiles) -> Drawing | None:
    """The tensors that moved most bytes, and what messages need beside their tensors."""
    ways: dict[str, Counter[str]] = {"up": Counter(), "down": Counter()}
    for line in run.ledger:
        for entry in line["entries"]:
            for name, size in entry["tensors"].items():
                ways[entry["direction"]][name] += size * len(entry["clients"])
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
        axes.set_yticks(range(len(groups)), [_name(name, 34) for name, _ in groups])
        axes.set_ylim(rows - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        _label(axes, "x", "bytes of the whole run", unit.name)

    note = "All purposes together. Framing is what messages need beside their tensors: headers, names and numbers."
    return Drawing("Bytes by tensor", note, draw, height=1.2 + 0.27 * rows)


def bytes_per_client(run: RunFiles) -> Drawing | None:
    """Bytes of each client, by direction and purpose."""
    seen = [client for line in run.ledger for entry in line["entries"] for client in entry["clients"]]
    clients = list(range(max([run.experiment["data"]["clients"] - 1, *seen]) + 1))
    streams = _streams(run, clients, lambda line, entry: entry["clients"])
    if not streams:
        return None
    return Drawing(
        "Bytes per client",
        "What each client sent and received in the whole run, by purpose and direction.",
        lambda axes: _stacked_bytes(axes, clients, streams, "client"),
    )


def _training_bytes(run: RunFiles) -> list[float]:
    """Up and down together, of each round."""
    return [float(record["bytes"]["up"] + record["bytes"]["down"]) for record in run.rounds]


def _streams(
    run: RunFiles, positions: Sequence[int], where: Callable[[Record, Record], Sequence[int]]
) -> dict[tuple[str, str], list[float]]:
    """(purpose, direction) -> bytes at each position; `where` gives the position of each message of an entry."""
    found: dict[tuple[str, str], Counter[int]] = {}
    for line in run.ledger:
        for entry in line["entries"]:
            size = sum(entry["tensors"].values())
            stream = found.setdefault((entry["purpose"], entry["direction"]), Counter())
            for position in where(line, entry):
                stream[position] += size
    order = sorted(found, key=lambda key: (key[0] != TRAINING, key[0], key[1] != "up"))
    return {key: [float(found[key][position]) for position in positions] for key in order}


def _stacked_bytes(
    axes: Axes, positions: Sequence[float], streams: dict[tuple[str, str], list[float]], what: str
) -> None:
    unit = fitting(max(map(sum, zip(*streams.values()))), BYTES)
    purposes = list(dict.fromkeys([TRAINING, *(purpose for purpose, _ in streams)]))
    colours = [STREAMS[purposes.index(purpose) % len(STREAMS)][way == "down"] for purpose, way in streams]
    series = {f"{purpose}, {way}": [size / unit.size for size in sizes] for (purpose, way), sizes in streams.items()}
    _stacked(axes, positions, series, colours)
    _label(axes, "x", what)
    _label(axes, "y", "bytes", unit.name)


# ---- what methods add -------------------------------------------------------------------------------------------


def further_per_round(run: RunFiles) -> list[Drawing]:
    """Further numbers of a method that belong together: those whose names begin alike, `norm_a` and `norm_b`."""
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for record in run.evaluated for name in _further_numbers(record)):
        begin, _, rest = name.partition("_")
        if rest:
            groups.setdefault(begin, []).append(name)
    return [_further(run, begin, names) for begin, names in groups.items() if len(names) > 1]


def _further_numbers(record: Record) -> Record:
    return {name: value for name, value in (record.get("more") or {}).items() if isinstance(value, int | float)}


def _further(run: RunFiles, begin: str, names: Sequence[str]) -> Drawing:
    curves = []
    for index, name in enumerate(names):
        records = [record for record in run.evaluated if name in _further_numbers(record)]
        values = [float(record["more"][name]) for record in records]
        curves.append(Curve(_name(name, 40), index, _numbers(records), values))
    values = [value for curve in curves for value in curve.y]
    wide = min(values) > 0 and max(values) > WIDE * min(values)

    def draw(axes: Axes) -> None:
        _plot(axes, curves)
        if wide:
            axes.set_yscale("log")
        _label(axes, "y", _name(begin, 40), "logarithmic" if wide else "")
        _round_axis(axes)

    title = f"{printable(begin).capitalize()} per round"
    return Drawing(title, "As the method measured it in each evaluated round.", draw)


# ---- events and time --------------------------------------------------------------------------------------------


def events_per_round(runs: Sequence[RunFiles]) -> Drawing | None:
    """Replies that did not arrive as asked: of a single run by kind, of several their number."""

    def points(run: RunFiles) -> tuple[list[float], list[float]]:
        return _numbers(run.rounds), [float(_troubles(record).total()) for record in run.rounds]

    curves = [curve for curve in _curves(runs, points) if any(curve.y)]
    if not curves:
        return None

    def draw(axes: Axes) -> None:
        if len(runs) == 1:
            found = [_troubles(record) for record in runs[0].rounds]
            kinds = sorted(sum(found, Counter()), key=[*EVENTS].index)
            series = {kind: [float(count[kind]) for count in found] for kind in kinds}
            _stacked(axes, curves[0].x, series, [EVENTS[kind] for kind in kinds])
        else:
            _plot(axes, curves)
        axes.yaxis.set_major_locator(_whole_numbers())
        _from_zero(axes)
        _round_axis(axes)
        _label(axes, "y", "replies")

    note = (
        "Replies that were lost on the way, came after their deadline, that the client failed to give, or that the "
        "server did not accept."
    )
    return Drawing("Lost, late, failed and refused replies", note, draw)


def _troubles(record: Record) -> Counter[str]:
    """What did not arrive as asked in a round, by kind."""
    return Counter(event["what"] for event in record["events"] if event["what"] in TROUBLES)


def virtual_time_per_round(runs: Sequence[RunFiles]) -> Drawing | None:
    """The time that the simulated devices needed for each round."""

    def points(run: RunFiles) -> tuple[list[float], list[float]]:
        clock = [0.0, *(float(record["virtual_seconds"]) for record in run.rounds)]
        return _numbers(run.rounds), [after - before for before, after in pairwise(clock)]

    curves = [curve for curve in _curves(runs, points) if any(curve.y)]
    if not curves:
        return None

    def draw(axes: Axes) -> None:
        unit = fitting(max(max(curve.y) for curve in curves), SECONDS)
        scaled = [curve._replace(y=[value / unit.size for value in curve.y]) for curve in curves]
        if len(runs) == 1:
            _stacked(axes, scaled[0].x, {"virtual time": scaled[0].y}, [GREEN])
        else:
            _plot(axes, scaled)
        _from_zero(axes)
        _round_axis(axes)
        _label(axes, "y", "virtual time", unit.name)

    return Drawing("Virtual time per round", VIRTUAL_TIME, draw)


# ---- axes, lines and bars ---------------------------------------------------------------------------------------


class Curve(NamedTuple):
    """The line of one run."""

    label: str
    form: int  # number of the run, which decides how its line looks in every figure
    x: list[float]
    y: list[float]


def _curves(runs: Sequence[RunFiles], points: Callable[[RunFiles], tuple[list[float], list[float]]]) -> list[Curve]:
    """A curve for each run."""
    return [Curve(_name(label, 40), index, *points(run)) for index, (label, run) in enumerate(zip(labels(runs), runs))]


def _plot(axes: Axes, curves: Sequence[Curve]) -> None:
    for curve in curves:
        axes.plot(curve.x, curve.y, label=curve.label, **_line(curve.form, len(curve.x)))


def _line(index: int, points: int) -> dict[str, Any]:
    """The form of the line with this number; a line of few points shows them."""
    marker = MARKERS[index % len(MARKERS)] if points <= FEW else None
    return {"color": LINES[index % len(LINES)], "linestyle": DASHES[index % len(DASHES)], "marker": marker}


def _numbers(records: Sequence[Record]) -> list[float]:
    """The numbers of these rounds."""
    return [float(record["round"]) for record in records]


def _name(text: str, length: int) -> str:
    """A label; Matplotlib would leave out one that begins with an underscore."""
    name = shortened(printable(text), length)
    return f" {name}" if name.startswith("_") else name


def _label(axes: Axes, side: Literal["x", "y"], what: str, unit: str = "") -> None:
    axes.set(**{f"{side}label": f"{what} ({unit})" if unit else what})


def _round_axis(axes: Axes) -> None:
    axes.xaxis.set_major_locator(_whole_numbers())
    _label(axes, "x", "round")


def _whole_numbers() -> MaxNLocator:
    return MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10])


def _from_zero(axes: Axes) -> None:
    axes.set_ylim(0, 1.06 * axes.dataLim.ymax)


def _accuracy_axis(axes: Axes) -> None:
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, 0.0), min(high, 100.5))
    _label(axes, "y", "accuracy", "%")


def _byte_axis(axes: Axes, side: Literal["x", "y"], what: str, largest: Sequence[float]) -> float:
    """An axis of bytes for runs with these largest values; returns by what to divide them."""
    if min(largest) > 0 and max(largest) > WIDE * min(largest):
        axis, set_scale = (axes.xaxis, axes.set_xscale) if side == "x" else (axes.yaxis, axes.set_yscale)
        set_scale("log", base=4, nonpositive="mask")
        axis.set_major_formatter(FuncFormatter(_byte_tick))
        axis.set_minor_locator(NullLocator())
        _label(axes, side, what, "logarithmic")
        return 1.0
    unit = fitting(max(largest), BYTES)
    _label(axes, side, what, unit.name)
    return unit.size


def _byte_tick(value: float, position: int | None = None) -> str:
    unit = fitting(value, BYTES)
    return f"{value / unit.size:g} {unit.name}"


def _stacked(axes: Axes, positions: Sequence[float], series: dict[str, list[float]], colours: Sequence[str]) -> None:
    """Bars on top of each other; where they are too many to be told apart, their outline filled."""
    base = [0.0] * len(positions)
    edges = [position - 0.5 for position in positions] + [positions[-1] + 0.5]
    for (name, values), colour in zip(series.items(), colours):
        label = _name(name, 40)
        top = [low + value for low, value in zip(base, values)]
        if len(positions) <= FEW:
            axes.bar(positions, values, bottom=base, color=colour, label=label, width=0.72)
        else:
            axes.stairs(top, edges, baseline=base, fill=True, color=colour, label=label)
        base = top
    axes.xaxis.set_major_locator(_whole_numbers())
    axes.grid(visible=False, axis="x")
    axes.margins(x=0.02)


# ---- SVG in HTML ------------------------------------------------------------------------------------------------


def _element(svg: str, identity: str, title: str) -> str:
    """An SVG file as an element of an HTML page: bare of namespaces and metadata, with ids of its own, and short."""
    root = ElementTree.fromstring(svg)
    for element in root.iter():
        for child in [child for child in element if _local(child.tag) in ("metadata", "style")]:
            element.remove(child)
        element.tag = _local(element.tag)
        attributes = {_local(name): value.replace("url(#", f"url(#{identity}-") for name, value in element.items()}
        for name, prefix in (("id", f"{identity}-"), ("href", f"#{identity}-")):
            if name in attributes:
                attributes[name] = prefix + attributes[name].removeprefix("#")
        if "d" in attributes:  # hundredths of a point are enough
            attributes["d"] = re.sub(r"(\.\d\d)\d+", r"\1", attributes["d"])
        element.attrib = attributes
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": title}
    return ElementTree.tostring(root, encoding="unicode")


def _local(name: str) -> str:
    """A name without its namespace."""
    return name.rpartition("}")[2]
