"""The server side's tools: models, optimisers, batches and evaluation, with seeds of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from catchment.aggregators import Aggregator
from catchment.data import Batch, Samples, batches
from catchment.evaluate import Score, evaluate
from catchment.randomness import derive
from catchment.spool import Spool
from catchment.training import load_weights, tensors_of
from catchment.world import Architecture, World


class Server:
    """What a method's server routine works with, besides its state and the fleet."""

    def __init__(self, world: World, rounds: int = 1, directory: Path | None = None) -> None:
        self.world = world
        self.rounds = rounds  # of the run
        self.round = 0  # the round under way; the first is 1
        self.history: list[float] = []  # headline accuracies measured so far
        self.notes: dict[str, float] = {}  # numbers of the round under way that a method wants in rounds.jsonl
        self._directory = directory
        self._client_modules: dict[Architecture, nn.Module] = {}

    @property
    def test(self) -> Samples:
        """The global test set."""
        return self.world.data.test

    @property
    def public(self) -> Samples | None:
        """The public data that everybody has, if the experiment has any."""
        return self.world.data.public

    @property
    def aggregator(self) -> Aggregator:
        """What makes one upload of many, as `[aggregation]` says; the mean if it says nothing."""
        return self.world.aggregator

    def model(self) -> nn.Module:
        """A new server model with its first weights."""
        return self.world.server_architecture.build()

    def client_model(self, client: int, weights: Mapping[str, Tensor]) -> nn.Module:
        """The model of a client with these weights; one module an architecture, reused by the next call."""
        architecture = self.world.client_architecture(client)
        if architecture not in self._client_modules:
            self._client_modules[architecture] = architecture.build()
        module = self._client_modules[architecture]
        load_weights(tensors_of(module), weights, architecture.name)
        return module

    def spool(self) -> Spool:
        """Room on the run's disk for uploads that are too large for memory."""
        return Spool(self._directory)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """An optimiser as `[optimizer.server]` says."""
        return self.world.server_optimizer.build(model.parameters())

    def batches(
        self, samples: Samples, size: int, *, epochs: int = 1, shuffle: bool = True, augment: bool = True
    ) -> Iterator[Batch]:
        """Training batches of samples that the server holds, normalised, on the compute device."""
        world = self.world
        for epoch in range(epochs):
            for batch in batches(
                samples,
                size,
                normalise=world.normalise,
                seed=self.seed("shuffle", epoch) if shuffle else None,
                augment=world.augment if augment else (),
                augment_seed=self.seed("augment", epoch),
                channels_last=True,
            ):
                yield batch.to(world.device)

    def evaluate(self, model: nn.Module, samples: Samples | None = None) -> Score:
        """Score a model on the test set (or on `samples`)."""
        return evaluate(model, self.test if samples is None else samples, self.world.normalise, self.world.device)

    def seed(self, *purpose: str | int) -> int:
        """A seed for one purpose of the server in this round."""
        return derive(self.world.seed, "server", *purpose, self.round)
