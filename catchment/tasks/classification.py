"""Classification: one class per image, cross-entropy, accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from catchment.tasks.pixels import AUGMENTATIONS, augmented
from catchment.tasks.quality import Answers
from catchment.tasks.task import Label, Rows, Score, Task


class Classification(Task):
    """Labels are numbers of classes, outputs are logits `[B, C]`."""

    name: ClassVar[str] = "classification"
    augmentations: ClassVar[tuple[str, ...]] = AUGMENTATIONS

    def label(self, classes: int) -> Label:
        """The number of a class."""
        return Label((), torch.int64, 0, classes - 1)

    def refuses(self, labels: Tensor, classes: int) -> str:
        """Labels must be numbers of classes."""
        why = super().refuses(labels, classes)
        if why or not len(labels):
            return why
        low, high = int(labels.min()), int(labels.max())
        fits = low >= 0 and high < classes
        return "" if fits else f"labels run from {low} to {high}, but {classes} classes are numbered 0 to {classes - 1}"

    def refuses_model(self, outputs: tuple[int, ...], classes: int) -> str:
        """Logits are vectors with a number for each class."""
        if len(outputs) == 2 and outputs[1] == classes:
            return ""
        return (
            f"outputs have shape {list(outputs)} for two images, expected logits [2, {classes}]: one number for each "
            "class; a function that makes a model is told how many there are if it has an argument `classes`"
        )

    def main_classes(self, labels: Tensor, classes: int) -> Tensor:
        """The labels themselves."""
        return labels

    def augment(self, batch: Rows, everything: Rows, names: Sequence[str], seed: int) -> tuple[Tensor, Tensor]:
        """Crops and flips; labels stay."""
        return augmented(batch.images, batch.ids, names, seed), batch.labels

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy."""
        return F.cross_entropy(outputs, labels)

    def score(self, results: Iterable[tuple[Tensor, Tensor]], classes: Sequence[str]) -> Score:
        """Accuracy, mean cross-entropy, and what accuracy hides."""
        answers, loss, samples = Answers(), 0.0, 0
        for logits, labels in results:
            answers.add(logits, labels)
            loss += float(F.cross_entropy(logits, labels, reduction="sum"))
            samples += len(labels)
        quality = answers.judged()
        return Score(quality.accuracy, loss / max(samples, 1), samples, by_class=quality)


CLASSIFICATION = Classification()
