"""The pictures of the pages in `docs/`, as SVG that is the same whenever the results are."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from catchment.report.drawing import BLUE, GREY, ORANGE, STYLE, VERMILLION
from catchment.report.showing import human_bytes
from catchment.studies.results import RowResult, StudyResult
from catchment.studies.statistics import spread

SENT_ONCE = "sent once, augmented, 4 bits, 16 maps of 16x16, twice the epochs"
# Letters as outlines: a page that shows an image has no say in fonts.
LOOK = style.context(["default", {**STYLE, "svg.fonttype": "path", "font.size": 9, "axes.titlesize": 10.5}])


@dataclass(frozen=True)
class Beside:
    """Rows of a study as bars of accuracy, and the bytes of each beside them."""

    study: str
    rows: dict[str, str]  # label in the study: label in the picture, from top to bottom
    ours: tuple[str, ...]  # rows that the picture is about
    column: str = "accuracy"
    title: str = "Accuracy"
    most: float = 100  # of the axis of accuracy

    @LOOK
    def __call__(self, results: Path) -> bytes:
        ran = _ran(results, self.study)
        shown = [(ran[name], label, name in self.ours) for name, label in self.rows.items()][::-1]
        figure, (left, right) = _figure(0.85 + 0.49 * len(shown), left=0.215, right=0.965, wspace=0.16)
        figure.subplots_adjust(bottom=0.62 / figure.get_figheight(), top=1 - 0.32 / figure.get_figheight())
        for place, (row, _, ours) in enumerate(shown):
            colour = BLUE if ours else GREY
            _bar(left, place, _percents(row, self.column), colour, self.most)
            sent = spread([up + down for up, down in zip(_values(row, "bytes.up"), _values(row, "bytes.down"))]).mean
            right.plot(sent, place, "D", color=colour, markersize=7)
            right.annotate(human_bytes(sent), (sent, place), (8, -3), textcoords="offset points", fontsize=8)
        left.set_yticks(range(len(shown)), [label for _, label, _ in shown])
        left.set(xlim=(0, self.most), xlabel="accuracy (%)", title=self.title)
        right.set_yticks(range(len(shown)), [])
        right.set_ylim(left.get_ylim())
        _byte_axis(right, 4 * 1024, 2**40, "up and down in training", 64)
        right.set_title("Bytes of all devices")
        _only_grid_of_x(left)
        return _svg(figure, f"{self.title}, and bytes: {', '.join(self.rows)}")


@LOOK
def attacks(results: Path) -> bytes:
    """What one lying client of eight does to each method, and with each defence."""
    methods = _ran(results, "fedgems-table8-small")
    defences = _ran(results, "fedgems-defences-small")
    names = ("FedGEMS", "FedGEM", "FedGKT", "FedAvg", "FedDF", "Cronus", "FedMD", "DS-FL")
    robust = {
        "mean": "mean", "median": "median", "trimmed mean, a quarter at each end": "trimmed mean",
        "Multi-Krum, 4 of 8": "Multi-Krum", "filter of Cronus": "filter of Cronus",
    }  # fmt: skip
    figure, (left, right) = _figure(3.8, left=0.09, right=0.985, bottom=0.22, wspace=0.6)
    pairs = [(name, methods[f"{name}, no attack"], methods[f"{name}, PAF"]) for name in names]
    _fall(left, pairs, "Methods as they are")
    pairs = [
        (f"{method}, {short}", defences[f"{method}, {name}, no attack"], defences[f"{method}, {name}, PAF"])
        for method in ("FedAvg", "FedMD")
        for name, short in robust.items()
    ]
    _fall(right, pairs, "With another mean on the server")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=2)
    return _svg(figure, "Accuracy with and without a client that sends large random numbers (PAF)")


@LOOK
def accuracy_for_bytes(results: Path) -> bytes:
    """Accuracy and bytes of methods that send knowledge, and of methods that send smaller updates."""
    figure, (left, right) = _figure(3.4, left=0.07, right=0.97, bottom=0.18, wspace=0.2)
    knowledge = _ran(results, "fedgems-table2-small")
    shifts = {"FedMD": (-42, -3), "FedGEMS": (-30, 9), "FedGEM": (0, 9), "FedGKT": (8, -3), "FedDF": (8, -3),
              "DS-FL": (8, -3), "Cronus": (-42, -3)}  # fmt: skip
    for name, shift in shifts.items():
        _point(left, knowledge[f"CIFAR-10, hetero, {name}"], "clients.mean", name, shift, name in ("FedGEM", "FedGEMS"))
    left.set(ylabel="mean of the clients (%)", ylim=(40, 85), title="Eight clients with seven architectures")
    _byte_axis(left, 2 * 2**20, 256 * 2**20, "up and down in training")
    compressed = _ran(results, "fedkgf-table1-small")
    labels = {
        "Fed-KGF": ("Fed-KGF", (8, -3)),
        "Fed-KGF without module upload": ("Fed-KGF without\nmodule upload", (-68, 9)),
        "FedAvg": ("FedAvg", (8, -3)), "DGC": ("DGC", (5, 8)), "FedCOM": ("FedCOM", (0, -18)),
        "FedCAMS, scaled sign": ("FedCAMS", (-46, 0)), "SmartIdx": ("SmartIdx", (-50, -3)), "FedPM": ("FedPM", (8, -3)),
    }  # fmt: skip
    for name, (label, shift) in labels.items():
        _point(right, compressed[f"IID, {name}"], "accuracy", label, shift, name.startswith("Fed-KGF"))
    right.set(ylabel="accuracy (%)", ylim=(12, 42), title="Smaller updates of one model")
    _byte_axis(right, 32 * 2**20, 1024 * 2**20, "up and down in training", 2)
    return _svg(figure, "Accuracy against bytes")


@LOOK
def long_run(results: Path) -> bytes:
    """Memory, and the time of a checkpoint, over a run of many rounds."""
    measured = json.loads((results.parents[1] / "benchmarks" / "results" / "long.json").read_text())
    ((rounds, run),) = measured.items()
    figure, (left, right) = _figure(2.8, left=0.08, right=0.97, bottom=0.18, wspace=0.2)
    for axes, key, unit, title in (
        (left, "memory_mb", 1, "Memory of the process (MB)"),
        (right, "checkpoints_s", 1000, "CPU time of a checkpoint (ms)"),
    ):
        values = [unit * value for value in run[key]]
        step = int(rounds.replace(",", "")) / len(values)
        axes.plot([step * (place + 1) for place in range(len(values))], values, color=BLUE)
        axes.set(xlabel="round", ylim=(0, 1.25 * max(values)), title=title)
    return _svg(figure, f"Memory and checkpoints over {rounds} rounds")


# ---- parts ---------------------------------------------------------------------------------------------------------


def _ran(results: Path, study: str) -> dict[str, RowResult]:
    return {row.label: row for row in StudyResult.read(results / f"{study}.json").rows if row.runs}


def _values(row: RowResult, name: str) -> list[float]:
    return list(row.numbers(name).values())


def _percents(row: RowResult, name: str) -> list[float]:
    return [100 * value for value in _values(row, name)]


def _figure(height: float, **margins: float) -> tuple[Figure, Sequence[Axes]]:
    figure = Figure(figsize=(8.6, height))
    figure.subplots_adjust(top=0.9, **margins)
    return figure, figure.subplots(1, 2)


def _bar(axes: Axes, place: float, values: Sequence[float], colour: str, most: float) -> None:
    """The mean, the standard deviation, and every seed."""
    found = spread(values)
    axes.barh(place, found.mean, color=colour, height=0.62, xerr=found.deviation, ecolor="black", capsize=3)
    axes.plot(values, [place] * len(values), "o", color="white", markeredgecolor="black", markersize=3.5)
    text = f"{found.mean:.1f}" if found.deviation is None else f"{found.mean:.1f} ± {found.deviation:.1f}"
    axes.text(most / 60, place, text, va="center", fontsize=8, color="white", fontweight="bold")


def _fall(axes: Axes, rows: Sequence[tuple[str, RowResult, RowResult]], title: str) -> None:
    for place, (_, before, after) in enumerate(rows[::-1]):
        ends = [spread(_percents(row, "accuracy")).mean for row in (before, after)]
        axes.plot(ends, [place, place], color="#B8BEC6", linewidth=2.5, zorder=1)
        for end, colour, marker, label in zip(
            ends, (BLUE, VERMILLION), "oD", ("nobody lies", "one client of eight lies")
        ):
            axes.plot(end, place, marker, color=colour, markersize=6, label="" if place else label)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows[::-1]])
    axes.set(xlim=(10, 90), xlabel="accuracy (%)", title=title)
    _only_grid_of_x(axes)


def _point(axes: Axes, row: RowResult, column: str, label: str, shift: tuple[int, int], ours: bool) -> None:
    found = spread(_percents(row, column))
    sent = spread([up + down for up, down in zip(_values(row, "bytes.up"), _values(row, "bytes.down"))]).mean
    form = {"color": ORANGE if ours else BLUE, "marker": "D" if ours else "o", "markersize": 5.5}
    axes.errorbar(sent, found.mean, yerr=found.deviation, capsize=3, elinewidth=1, linestyle="none", **form)
    axes.annotate(label, (sent, found.mean), shift, textcoords="offset points", fontsize=8)


def _byte_axis(axes: Axes, low: float, high: float, label: str, step: int = 4) -> None:
    axes.set_xscale("log", base=step)
    axes.set_xlim(low, high)
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: human_bytes(value).replace(".00", "").replace(".0 ", " "))
    )
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(f"{label} (logarithmic)")


def _only_grid_of_x(*all_axes: Axes) -> None:
    for axes in all_axes:
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)


def _svg(figure: Figure, title: str) -> bytes:
    file = io.StringIO()
    FigureCanvasSVG(figure).print_svg(file, metadata={"Date": None, "Creator": None, "Title": title})
    return file.getvalue().encode()


PICTURES: dict[str, Callable[[Path], bytes]] = {
    "fedgkt": Beside(
        "fedgkt-headline-small",
        {
            "each client alone, with the edge's ResNet-8": "each client alone,\nResNet-8",
            "centralized, the edge's ResNet-8": "all data in one place,\nResNet-8",
            "FedAvg of the whole model": "FedAvg, ResNet-20\non every device",
            "FedGKT": "FedGKT, ResNet-8 on the\ndevices, ResNet-19 above",
            "centralized, the whole model": "all data in one place,\nResNet-20",
        },
        ours=("FedGKT",),
        most=65,
    ),
    "fedgkt-full": Beside(
        "fedgkt-full",
        {
            "centralized, the edge's ResNet-8": "all data in one place,\nResNet-8",
            "FedAvg of ResNet-20": "FedAvg, ResNet-20\non every device",
            "FedGKT: ResNet-8 on the edge, ResNet-19 on the server": "FedGKT, ResNet-8 below,\nResNet-19 on the server",
            "centralized, ResNet-20": "all data in one place,\nResNet-20",
        },
        ours=("FedGKT: ResNet-8 on the edge, ResNet-19 on the server",),
    ),
    "fedgkt-bytes-full": Beside(
        "fedgkt-bytes",
        {
            "FedAvg of ResNet-20": "FedAvg, ResNet-20\non every device",
            "FedGKT, features in every round": "FedGKT, features in\nevery round",
            "SplitFed of the same two halves": "SplitFed of the\nsame two halves",
            "sent once, augmented, 4 bits": "features sent once,\nin 4 bits",
            SENT_ONCE: "small features sent\nonce, in 4 bits",
            "all images in one place, ResNet-20": "all images in one place,\nResNet-20",
        },
        ours=("FedGKT, features in every round", "sent once, augmented, 4 bits", SENT_ONCE),
    ),
    "fedgkt-bytes": Beside(
        "fedgkt-bytes-small",
        {
            "SplitFed of the same two halves": "SplitFed",
            "FedGKT, features in every round": "FedGKT, features in every round",
            "features in 4 bits": "features in 4 bits",
            "sent once, augmented, 4 bits": "sent once, augmented,\n4 bits",
            "sent once, augmented, 4 bits, 8 maps of 16x16": "... 8 maps of 16x16",
            "FedAvg of ResNet-20": "FedAvg, ResNet-20",
            "all images in one place, ResNet-20": "all images in one place,\nResNet-20",
        },
        ours=(
            "FedGKT, features in every round",
            "features in 4 bits",
            "sent once, augmented, 4 bits",
            "sent once, augmented, 4 bits, 8 maps of 16x16",
        ),
        most=65,
    ),
    "fedkgf": Beside(
        "fedkgf-limits-small",
        {
            "IID, FedAvg": "IID: FedAvg",
            "IID, Fed-KGF": "IID: Fed-KGF",
            "IID, Fed-KGF without alpha": "IID: without alpha",
            "non-IID, FedAvg": "main classes: FedAvg",
            "non-IID, Fed-KGF": "main classes: Fed-KGF",
            "non-IID, Fed-KGF, last layer averaged": "main classes: last\nlayer averaged",
        },
        ours=(
            "IID, Fed-KGF",
            "IID, Fed-KGF without alpha",
            "non-IID, Fed-KGF",
            "non-IID, Fed-KGF, last layer averaged",
        ),
        most=50,
    ),
    "fedgems": Beside(
        "fedgems-server",
        {
            "Stand-Alone, cosine schedule": "each alone",
            "FedGEM, epsilon = 0.1, cosine schedule": "FedGEM",
            "FedGEMS, epsilon = 0.1, cosine schedule": "FedGEMS",
            "Stand-Alone, 320 public images": "each alone, twice the\npublic images",
        },
        ours=("FedGEM, epsilon = 0.1, cosine schedule", "FedGEMS, epsilon = 0.1, cosine schedule"),
        column="server.accuracy",
        title="Accuracy of the server's model",
    ),
    "fedzkt": Beside(
        "fedzkt-headline-small",
        {
            "IID: each device alone (lower bound)": "IID: each device alone",
            "IID: FedZKT": "IID: FedZKT",
            "Dirichlet(0.5): each device alone (lower bound)": "Dirichlet(0.5): each\ndevice alone",
            "Dirichlet(0.5): FedZKT": "Dirichlet(0.5): FedZKT",
            "all data in one place (upper bound)": "all data in one place",
        },
        ours=("IID: FedZKT", "Dirichlet(0.5): FedZKT"),
        title="Mean accuracy of five devices",
    ),
    "attacks": attacks,
    "accuracy-for-bytes": accuracy_for_bytes,
    "long-run": long_run,
}
