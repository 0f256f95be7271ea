"""Numbers of runs as lines of a figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from catchment.report.drawing import Curve, label_text
from catchment.runs.reading import RunFiles, labels
from catchment.runs.records import Round


def curves(runs: Sequence[RunFiles], points: Callable[[RunFiles], tuple[list[float], list[float]]]) -> list[Curve]:
    """A curve for each run."""
    named = enumerate(zip(labels(runs), runs))
    return [Curve(label_text(label, 40), index, *points(run)) for index, (label, run) in named]


def round_numbers(records: Sequence[Round]) -> list[float]:
    """The numbers of these rounds."""
    return [float(record.round) for record in records]


def training_bytes(run: RunFiles) -> list[float]:
    """Up and down together, of each round."""
    return [float(record.bytes.up + record.bytes.down) for record in run.rounds]
