"""What must be said of a run: what a constant answer reaches, who does not beat it, who fell, faults of the data."""

from __future__ import annotations

from collections.abc import Sequence

from catchment.report.showing import percent
from catchment.runs.reading import RunFiles, labels, number_of, shown_headline
from catchment.runs.records import LOWER_IS_BETTER, Plan, Result, Round

NAMES = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro F1",
    "worst_recall": "worst recall",
    "auroc": "AUROC",
    "calibration_error": "calibration error",
}
"""What people call the numbers that can be the headline."""


def shared_headline(runs: Sequence[RunFiles]) -> str:
    """The headline of these runs; accuracy if they do not agree, or if one did not measure it."""
    names = {run.headline if run.headline in NAMES else "accuracy" for run in runs}
    (name,) = names if len(names) == 1 else {"accuracy"}
    return name if all(run.number(name) is not None for run in runs if run.evaluated) else "accuracy"


def constant_answer(record: Round | Result, name: str) -> float | None:
    """What a model reaches that always answers the most frequent class; None if that is not known."""
    majority = record.scores.get("majority")
    classes = sum(recall is not None for recall in record.recall)
    if majority is None:
        return None
    if name == "accuracy":
        return majority
    if name == "auroc":
        return 0.5
    if not classes or name in ("worst_recall", "calibration_error"):
        return None
    return 1 / classes if name == "balanced_accuracy" else 2 * majority / (1 + majority) / classes


def not_beaten(runs: Sequence[RunFiles]) -> list[str]:
    """A sentence for each run whose models are no better than the most frequent class, or some of whose are not."""
    found = []
    for label, run in zip(labels(runs), runs):
        majority, accuracy = run.number("majority"), run.number("accuracy")
        if majority is None or accuracy is None:
            continue
        below = [one for one in _client_accuracies(run) if one <= majority]
        constant = f"always answering the most frequent class, {percent(majority)} %"
        if accuracy <= majority:
            found.append(f"{label}: an accuracy of {percent(accuracy)} % does not beat {constant}.")
        elif below:
            found.append(
                f"{label}: the models of {len(below)} of {len(_client_accuracies(run))} clients do not beat {constant}."
            )
    return found


def wrong_in_data(runs: Sequence[RunFiles]) -> list[str]:
    """A sentence for each thing that was wrong in the files of a run's data."""
    told = ((label, run.outcome.data) for label, run in zip(labels(runs), runs))
    return [f"{label}: {fault}: {count:,}." for label, data in told if data for fault, count in data.faults.items()]


def fallen(runs: Sequence[RunFiles]) -> list[str]:
    """A sentence for each run that ended below an earlier round."""
    return [
        f"{label}: {sentence}"
        for label, run in zip(labels(runs), runs)
        if run.result is not None and (sentence := fall(run.plan, run.result))
    ]


def fall(plan: Plan, result: Result) -> str:
    """From which round on a run fell, how far, and what usually helps; "" if it did not."""
    headline = "accuracy" if plan.evaluation is None else plan.evaluation.headline
    name = shown_headline(result, headline)
    end = number_of(result, name)
    if result.fall is None or end is None:
        return ""
    worse = "rises" if name in LOWER_IS_BETTER else "falls"
    return (
        f"{NAMES.get(name, name)} {worse} after round {result.fall.from_round}, by {percent(result.fall.by)} points to "
        f"{percent(end)} % at the end; what usually helps: {_help(plan)}."
    )


def _help(plan: Plan) -> str:
    options, partition = plan.method.options, plan.data.partition or {}
    if plan.method.name == "fedgkt" and partition.get("name", "iid") != "iid":
        quieter = ', method.distill = "server-to-edge",' if options.get("distill") == "both" else ","
        slower = "a lower rate of the extractors (method.extractor_rate)"
        return f"{slower}{quieter} or fewer rounds"
    falling = 'a rate that falls (optimizer.client.schedule.name = "cosine")'
    return f"{falling}, a moving average (evaluation.average), or fewer rounds"


def _client_accuracies(run: RunFiles) -> list[float]:
    known = run.outcome.by_client
    return [] if known is None else known.accuracy
