"""How good a classifier is: accuracy, and the numbers that show what accuracy hides.

All follow scikit-learn's definitions, and need only PyTorch, as devices measure their models themselves. What is kept
of a test set is bounded: a label and an answer per sample, and class scores up to `MOST_SCORES` of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

MOST_CLASSES = 100  # of a confusion matrix that is kept
MOST_SCORES = 2**21  # samples times classes, up to which AUROC is measured: 16 MiB
BINS = 15  # of confidence
NUMBERS = ("balanced_accuracy", "macro_f1", "worst_recall", "auroc", "calibration_error", "majority")


@dataclass(frozen=True, eq=False)
class Quality:
    """What a model's answers to test samples are worth; None: not measured. Classes without samples count for nothing.

    All but the accuracy, a task's main measure, are of classification.
    """

    accuracy: float
    majority: float | None = None  # share of the most frequent class: the accuracy of always answering it
    balanced_accuracy: float | None = None  # mean recall over classes
    macro_f1: float | None = None  # mean over classes that are there or are answered
    worst_recall: float | None = None  # of the class that is recognised least
    auroc: float | None = None  # mean over classes, each against all others
    calibration_error: float | None = None  # expected calibration error
    rates: Tensor | None = None  # [C, C] float32: share of class i that is taken for class j, 0 if i has no samples

    @property
    def confusion(self) -> list[list[float]]:
        """The rates to six digits; empty if there are too many classes."""
        return [] if self.rates is None else [[round(rate, 6) for rate in row] for row in self.rates.tolist()]

    @property
    def recall(self) -> list[float | None]:
        """By class; None for a class without samples."""
        return [row[number] if any(row) else None for number, row in enumerate(self.confusion)]

    def numbers(self) -> dict[str, float]:
        """By name, without the accuracy and without what was not measured."""
        found = {name: getattr(self, name) for name in NUMBERS}
        return {name: number for name, number in found.items() if number is not None}


class Answers:
    """Collects what a model answers, batch by batch."""

    def __init__(self) -> None:
        self._labels: list[Tensor] = []
        self._answers: list[Tensor] = []
        self._confidences: list[Tensor] = []
        self._scores: list[Tensor] = []
        self._classes = 0
        self._kept = 0  # class scores

    def add(self, logits: Tensor, labels: Tensor) -> None:
        """The logits `[n, C]` of a batch, and its labels `[n]`."""
        answers = logits.argmax(1, keepdim=True).cpu()
        scores = logits.cpu().double().softmax(1)
        self._classes = scores.shape[1]
        self._labels.append(labels.cpu())
        self._answers.append(answers[:, 0])
        self._confidences.append(scores.gather(1, answers)[:, 0])
        self._kept += scores.numel()
        self._scores = [*self._scores, scores] if self._kept <= MOST_SCORES else []

    def judged(self) -> Quality:
        """All of them together."""
        if not self._labels:
            return Quality(0.0)
        labels, answers, confidences = map(torch.cat, (self._labels, self._answers, self._confidences))
        finite = bool(confidences.isfinite().all())
        return Quality(
            **_by_class(labels, answers, self._classes),
            auroc=auroc(torch.cat(self._scores), labels) if finite and self._scores else None,
            calibration_error=calibration_error(confidences, answers == labels) if finite else None,
            rates=_rates(labels, answers, self._classes) if self._classes <= MOST_CLASSES else None,
        )


def _by_class(labels: Tensor, answers: Tensor, classes: int) -> dict[str, float]:
    """Whatever can be said by counting."""
    own = torch.bincount(labels, minlength=classes).double()
    answered = torch.bincount(answers, minlength=classes).double()
    right = torch.bincount(labels[labels == answers], minlength=classes).double()
    recall = (right / own)[own > 0]
    f1 = (2 * right / (own + answered))[own + answered > 0]
    return {
        "accuracy": float(right.sum()) / len(labels),
        "majority": float(own.max()) / len(labels),
        "balanced_accuracy": float(recall.mean()),
        "macro_f1": float(f1.mean()),
        "worst_recall": float(recall.min()),
    }


def _rates(labels: Tensor, answers: Tensor, classes: int) -> Tensor:
    counts = torch.bincount(labels * classes + answers, minlength=classes**2).view(classes, classes).double()
    return (counts / counts.sum(1, keepdim=True).clamp(min=1)).float()


def auroc(scores: Tensor, labels: Tensor) -> float | None:
    """The area under the ROC curve of scores `[n, C]`, mean over classes; None if there is only one class.

    By ranks (Mann and Whitney), where equal scores share theirs: exactly the area under the curve of trapezoids.
    """
    areas, columns = [], scores.T.contiguous().sort(1).values
    own = scores.gather(1, labels[:, None])[labels.argsort(), 0]  # class after class
    for positive, column in zip(torch.split(own, torch.bincount(labels).tolist()), columns):
        others = len(labels) - len(positive)
        if len(positive) and others:
            below = torch.searchsorted(column, positive) + torch.searchsorted(column, positive, right=True)
            areas.append((int(below.sum()) - len(positive) ** 2) / (2 * len(positive) * others))
    return fmean(areas) if areas else None


def calibration_error(confidences: Tensor, right: Tensor) -> float:
    """How far confidence is from accuracy, over bins of equal width (Guo et al., 2017)."""
    bins = (confidences * BINS).ceil().long().sub(1).clamp(0, BINS - 1)
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add_(0, bins, confidences.double() - right.double())
    return float(gaps.abs().sum()) / len(confidences)


def mean(found: Iterable[Quality]) -> Quality | None:
    """The mean over several models; of rates, over those that were tested with the class. None if there is no model."""
    models = list(found)
    if not models:
        return None

    def over(name: str) -> float | None:
        known = [number for model in models if (number := getattr(model, name)) is not None]
        return fmean(known) if known else None

    rates = [model.rates for model in models if model.rates is not None]
    return Quality(
        fmean(model.accuracy for model in models),
        **{name: over(name) for name in NUMBERS},
        rates=_mean_rates(torch.stack(rates)) if rates else None,
    )


def _mean_rates(rates: Tensor) -> Tensor:
    tested = (rates.sum(2, keepdim=True) > 0).sum(0).clamp(min=1)  # [C, 1]: how many models, by class
    return rates.sum(0) / tested
