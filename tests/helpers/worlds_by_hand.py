"""Worlds small enough to be computed on paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from catchment.core.method import Method, Metrics
from catchment.core.world import World
from catchment.data import Dataset, Division, divide
from catchment.learning.optimizers import OptimizerSettings


@dataclass(frozen=True)
class HandlersOnly(Method[None]):
    """A method for its client handlers' sake."""

    def init(self, server):
        return None

    def round(self, server, state, fleet):
        return None

    def evaluate(self, server, state, fleet):
        return Metrics(0.0)


def linear(shape, classes):
    """A linear classifier that starts from zero."""
    layer = nn.Linear(shape[0] * shape[1] * shape[2], classes, bias=False)
    nn.init.zeros_(layer.weight)
    return nn.Sequential(nn.Flatten(), layer)


def normed(shape, classes):
    """A net with batch normalisation."""
    return nn.Sequential(nn.BatchNorm2d(shape[0]), nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))


def world(
    method: Method,
    clients: Sequence[tuple[Sequence[Sequence[float]], Sequence[int]]],
    *,
    model: str = "worlds_by_hand:linear",
    lr: float = 1.0,
    batch_size: int = 100,
    classes: int = 2,
) -> World:
    """Each client is (rows of features, labels); full-batch SGD unless said otherwise."""
    images = torch.cat([torch.tensor(rows, dtype=torch.float32) for rows, _ in clients])[:, None, None, :]
    labels = torch.cat([torch.tensor(y) for _, y in clients])
    dataset = Dataset.of(images, labels, images, labels, classes=[str(c) for c in range(classes)])
    return World(
        seed=0,
        method=method,
        data=_dealt(dataset, [len(y) for _, y in clients]),
        client_models=(model,),
        server_model=None,
        client_optimizer=OptimizerSettings(name="sgd", lr=lr, batch_size=batch_size),
        server_optimizer=OptimizerSettings(),
    )


def _dealt(dataset: Dataset, sizes: list[int]) -> Division:
    """The rows in order, so many to each client."""
    return divide(dataset, len(sizes), {"name": "worlds_by_hand:in_order", "sizes": sizes}, None, 0)


def in_order(labels: Tensor, clients: int, sizes: list[int]):
    ends = torch.tensor(sizes).cumsum(0).tolist()
    return [torch.arange(end - size, end).numpy() for size, end in zip(sizes, ends)]
