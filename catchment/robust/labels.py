"""An attack on data: wrong labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from catchment.data import Division
from catchment.data.samples import Samples
from catchment.errors import ExperimentError
from catchment.randomness import derive, torch_generator
from catchment.reading import ShareTo1
from catchment.robust.attack import Attack
from catchment.tasks import CLASSIFICATION


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Attackers train on labels C - 1 - y, and follow the method in all else."""

    share: ShareTo1 = 1.0
    """The share of an attacker's samples."""

    def poison(self, data: Division, attackers: Sequence[int], seed: int) -> Division:
        """The same samples, those of the attackers with other labels."""
        task, train = data.dataset.task, data.dataset.train
        if task is not CLASSIFICATION:
            raise ExperimentError(f"attack label-flip changes the class of an image, and the task is {task.name}")
        labels = train.labels.clone()
        for client in attackers:
            rows = data.clients[client]
            order = torch.randperm(len(rows), generator=torch_generator(derive(seed, "label-flip", client)))
            wrong = rows[order[: max(1, round(self.share * len(rows)))]]
            labels[wrong] = len(data.dataset.classes) - 1 - labels[wrong]
        dataset = replace(data.dataset, train=Samples(train.images, labels, train.index))
        return replace(data, dataset=dataset)
