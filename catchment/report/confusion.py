"""The confusion matrix as a figure."""

from __future__ import annotations

from collections.abc import Sequence

from catchment.errors import needs
from catchment.report.drawing import HEIGHT, Drawing, label_text

with needs("a report", "research"):
    from matplotlib.axes import Axes

NAMED = 20  # up to this many classes their names and all numbers are written
NOTE = "Of every 100 samples of a class (row), how many were predicted to be of which (column)."


def drawing(classes: Sequence[str], rates: Sequence[Sequence[float]], run: str = "") -> Drawing:
    """A field for each pair of classes, the darker the more often one is predicted in place of the other."""

    def draw(axes: Axes) -> None:
        axes.imshow(rates, cmap="Blues", vmin=0, vmax=1, interpolation="none")
        axes.grid(visible=False)
        axes.set(xlabel="predicted class", ylabel="true class")
        if len(classes) > NAMED:
            return
        size = 10 if len(classes) <= 10 else 7
        names = [label_text(name, 16) for name in classes]
        slanted = max(map(len, names)) * len(names) > 60
        axes.set_xticks(range(len(names)), names, rotation=45 if slanted else 0, ha="right" if slanted else "center")
        axes.set_yticks(range(len(names)), names)
        for i, row in enumerate(rates):
            for j, rate in enumerate(row):
                colour = "white" if rate > 0.55 else "black"
                axes.text(j, i, f"{100 * rate:.0f}", ha="center", va="center", fontsize=size, color=colour)

    title = "Confusion matrix" + (f" of {label_text(run, 40)}" if run else "")
    return Drawing(title, NOTE, draw, HEIGHT if len(classes) <= 4 else 1.6 * HEIGHT)
