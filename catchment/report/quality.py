"""What a report says of how good models are, beside their accuracy: what no accuracy shows, class by class."""

from __future__ import annotations

from collections.abc import Sequence

from catchment.report.cells import run_column
from catchment.report.parts import Alert, Note, Part, Table
from catchment.report.showing import percent, shortened
from catchment.report.tables import Column
from catchment.report.verdicts import fallen, not_beaten, wrong_in_data
from catchment.runs.reading import RunFiles, labels

ROWS = 100  # at most this many classes are listed
NAMED = 10  # at most this many classes are named in a sentence
_COLUMNS = {
    "accuracy": "accuracy %",
    "majority": "majority class %",
    "balanced_accuracy": "balanced accuracy %",
    "macro_f1": "macro F1 %",
    "worst_recall": "worst recall %",
    "auroc": "AUROC %",
    "calibration_error": "calibration error %",
}
_NOTE = (
    "Majority class: the accuracy of always answering the most frequent class of the test set. Balanced accuracy: the "
    "mean recall over classes. Macro F1 and AUROC: means over classes, AUROC of each class against all others. "
    "Calibration error: how far confidence is from accuracy. Of methods whose clients have models of their own, means "
    "over clients."
)


def alerts(runs: Sequence[RunFiles]) -> list[Part]:
    """Models no better than a constant answer, runs that ended below an earlier round, and faults of the data."""
    return [Alert(sentence) for sentence in (*not_beaten(runs), *fallen(runs), *wrong_in_data(runs))]


def numbers(runs: Sequence[RunFiles]) -> list[Part]:
    """All shares side by side, then recall class by class; nothing of runs that did not measure them."""
    having = [run for run in runs if run.outcome.scores]
    if not having:
        return []
    columns = [
        Column(title, [percent(run.number(name)) for run in having])
        for name, title in _COLUMNS.items()
        if any(run.number(name) is not None for run in having)
    ]
    return [Table([*run_column(runs, having), *columns]), Note(_NOTE), *_recall(having)]


def class_names(run: RunFiles) -> list[str]:
    """The names of the classes; of an unfinished run, their numbers."""
    data = run.outcome.data
    known = [] if data is None else data.classes
    count = len(run.outcome.recall)
    return list(known) if len(known) == count else [str(number) for number in range(count)]


def _recall(runs: Sequence[RunFiles]) -> list[Part]:
    """Recall of every class, of all runs that have the same classes as the first."""
    first = next((class_names(run) for run in runs if run.outcome.recall), [])
    same = [run for run in runs if run.outcome.recall and class_names(run) == first]
    if not same:
        return []
    shown = first[:ROWS]
    columns = [
        Column(f"recall of {label} %" if len(runs) > 1 else "recall %", [*map(percent, run.outcome.recall[:ROWS])])
        for label, run in zip(labels(same), same)
    ]
    cells = [shortened(name, 40) for name in shown]
    return [Table([Column("class", cells, numeric=False), *columns]), *_never(same)]


def _never(runs: Sequence[RunFiles]) -> list[Part]:
    """The classes that a model never recognises."""
    found: list[Part] = []
    for label, run in zip(labels(runs), runs):
        names = [name for name, recall in zip(class_names(run), run.outcome.recall) if recall == 0]
        if names:
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            shown = ", ".join(shortened(name, 40) for name in names[:NAMED])
            found.append(Note(f"{label} never recognises {shown}{more}."))
    return found
