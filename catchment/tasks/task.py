"""What data, models, losses and evaluation agree on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from catchment.errors import ExperimentError
from catchment.names import did_you_mean
from catchment.tasks.quality import Quality


class Label(NamedTuple):
    """What the label of one sample looks like."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    low: float  # of its numbers
    high: float


class Rows(NamedTuple):
    """Some samples, or all of them."""

    images: Tensor  # uint8 or float32 [B, C, H, W]
    labels: Tensor  # [B, ...], as the task's `label` says
    ids: Tensor  # int64 [B]


class Score(NamedTuple):
    """Result of one evaluation."""

    accuracy: float  # the task's main measure, from 0 to 1
    loss: float
    samples: int
    more: Mapping[str, float] = {}  # other measures by name
    by_class: Quality | None = None  # in classification: what the accuracy hides

    @property
    def quality(self) -> Quality:
        """What is told of clients' models, too."""
        return self.by_class or Quality(self.accuracy)

    def as_dict(self) -> dict[str, float]:
        """For metrics."""
        return {"accuracy": self.accuracy, "loss": self.loss, **self.more}


class Task(ABC):
    """A kind of problem. The task of an experiment is that of its data set: `Dataset(..., task=...)`.

    A task of your own is a subclass; a function that makes the data set, and one that makes the model, go with it.
    """

    name: ClassVar[str]
    augmentations: ClassVar[tuple[str, ...]] = ()
    evaluation_batch: ClassVar[int] = 500  # samples per forward pass without gradients

    @abstractmethod
    def label(self, classes: int) -> Label:
        """What the label of one sample looks like."""

    def refuses(self, labels: Tensor, classes: int) -> str:
        """Why labels `[N, ...]` cannot be used, or nothing if they can."""
        label = self.label(classes)
        if labels.dtype != label.dtype or labels.shape[1:] != label.shape:
            dtype, given = (str(kind).removeprefix("torch.") for kind in (label.dtype, labels.dtype))
            expected = ", ".join(["N", *map(str, label.shape)])
            return f"labels are {given} of shape {list(labels.shape)}, expected {dtype} of shape [{expected}]"
        return ""

    @abstractmethod
    def refuses_model(self, outputs: tuple[int, ...], classes: int) -> str:
        """Why a model with outputs of this shape, for two samples, cannot be used, or nothing if it can."""

    @abstractmethod
    def main_classes(self, labels: Tensor, classes: int) -> Tensor:
        """One class for each sample, int64 `[N]`, by which partitions deal them."""

    def counts(self, labels: Tensor, classes: int) -> Tensor:
        """How much of each class there is, `[classes]`."""
        return torch.bincount(self.main_classes(labels, classes), minlength=classes)

    def check_augmentations(self, names: Sequence[str]) -> None:
        """Refuse augmentations that the task does not have."""
        for name in names:
            if name not in self.augmentations:
                known = did_you_mean(name, self.augmentations)
                raise ExperimentError(f'data.augment has "{name}", which is none of {self.name}; {known}')

    def augment(self, batch: Rows, everything: Rows, names: Sequence[str], seed: int) -> tuple[Tensor, Tensor]:
        """Images and labels of a batch, changed at random by (seed, id) alone; others may be mixed in."""
        return batch.images, batch.labels

    @abstractmethod
    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of a model's outputs, mean over the batch."""

    def drawn(self, images: Tensor, outputs: Tensor, labels: Tensor) -> Tensor | None:
        """Images of pixels from 0 to 1 with what is true, then with what was found, `[2 B, C, H, W]`; None: no need."""
        return None

    @abstractmethod
    def score(self, results: Iterable[tuple[Tensor, Tensor]], classes: Sequence[str]) -> Score:
        """Measure the outputs of a model in evaluation mode, batch after batch with their labels."""
