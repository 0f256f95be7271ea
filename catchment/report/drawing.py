"""How figures look: one drawing as SVG for a page, with its axes, lines and bars."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple
from xml.etree import ElementTree

from catchment.errors import needs
from catchment.report.showing import BYTES, fitting, printable, shortened

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

FEW = 60  # at most this many points get markers, and this many bars are drawn one by one
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


# ---- axes, lines and bars ---------------------------------------------------------------------------------------


class Curve(NamedTuple):
    """The line of one run."""

    label: str
    form: int  # number of the run, which decides how its line looks in every figure
    x: list[float]
    y: list[float]


def plot(axes: Axes, curves: Sequence[Curve]) -> None:
    """A line for each curve."""
    for curve in curves:
        axes.plot(curve.x, curve.y, label=curve.label, **line_form(curve.form, len(curve.x)))


def line_form(index: int, points: int) -> dict[str, Any]:
    """The form of the line with this number; a line of few points shows them."""
    marker = MARKERS[index % len(MARKERS)] if points <= FEW else None
    return {"color": LINES[index % len(LINES)], "linestyle": DASHES[index % len(DASHES)], "marker": marker}


def label_text(text: str, length: int) -> str:
    """A label; Matplotlib would leave out one that begins with an underscore."""
    name = shortened(printable(text), length)
    return f" {name}" if name.startswith("_") else name


def set_label(axes: Axes, side: Literal["x", "y"], what: str, unit: str = "") -> None:
    """What an axis shows, and in which unit."""
    axes.set(**{f"{side}label": f"{what} ({unit})" if unit else what})


def round_axis(axes: Axes) -> None:
    """An x axis of rounds."""
    axes.xaxis.set_major_locator(whole_numbers())
    set_label(axes, "x", "round")


def whole_numbers() -> MaxNLocator:
    """Ticks at whole numbers only."""
    return MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10])


def from_zero(axes: Axes) -> None:
    """Begin the y axis at zero."""
    axes.set_ylim(0, 1.06 * axes.dataLim.ymax)


def accuracy_axis(axes: Axes, what: str = "accuracy") -> None:
    """A y axis in percent."""
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, 0.0), min(high, 100.5))
    set_label(axes, "y", what, "%")


def constant_lines(axes: Axes, shares: Iterable[float | None]) -> None:
    """What always answering the most frequent class reaches, as a line for each different number."""
    known = sorted({round(100 * share, 2) for share in shares if share is not None})
    for number, height in enumerate(known):
        label = None if number else "most frequent class, always"
        axes.axhline(height, color=GREY, linestyle=(0, (1, 1.5)), linewidth=1.4, label=label)


def byte_axis(axes: Axes, side: Literal["x", "y"], what: str, largest: Sequence[float]) -> float:
    """An axis of bytes for runs with these largest values; returns by what to divide them."""
    if min(largest) > 0 and max(largest) > WIDE * min(largest):
        axis, set_scale = (axes.xaxis, axes.set_xscale) if side == "x" else (axes.yaxis, axes.set_yscale)
        set_scale("log", base=4, nonpositive="mask")
        axis.set_major_formatter(FuncFormatter(_byte_tick))
        axis.set_minor_locator(NullLocator())
        set_label(axes, side, what, "logarithmic")
        return 1.0
    unit = fitting(max(largest), BYTES)
    set_label(axes, side, what, unit.name)
    return unit.size


def _byte_tick(value: float, position: int | None = None) -> str:
    unit = fitting(value, BYTES)
    return f"{value / unit.size:g} {unit.name}"


def stacked(axes: Axes, positions: Sequence[float], series: dict[str, list[float]], colours: Sequence[str]) -> None:
    """Bars on top of each other; where they are too many to be told apart, their outline filled."""
    base = [0.0] * len(positions)
    edges = [position - 0.5 for position in positions] + [positions[-1] + 0.5]
    for (name, values), colour in zip(series.items(), colours):
        label = label_text(name, 40)
        top = [low + value for low, value in zip(base, values)]
        if len(positions) <= FEW:
            axes.bar(positions, values, bottom=base, color=colour, label=label, width=0.72)
        else:
            axes.stairs(top, edges, baseline=base, fill=True, color=colour, label=label)
        base = top
    axes.xaxis.set_major_locator(whole_numbers())
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
            if name in attributes and not attributes[name].startswith("data:"):
                attributes[name] = prefix + attributes[name].removeprefix("#")
        if "d" in attributes:  # hundredths of a point are enough
            attributes["d"] = re.sub(r"(\.\d\d)\d+", r"\1", attributes["d"])
        element.attrib = attributes
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": title}
    return ElementTree.tostring(root, encoding="unicode")


def _local(name: str) -> str:
    """A name without its namespace."""
    return name.rpartition("}")[2]
