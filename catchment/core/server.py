"""The server side's tools: models, optimisers, batches and evaluation, with seeds of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from catchment.client.state import ClientState
from catchment.core.architecture import Architecture
from catchment.core.spool import Spool
from catchment.core.stopwatch import Stopwatch
from catchment.core.world import World
from catchment.data import Batch, Samples, batches
from catchment.learning.draws import Draws
from catchment.learning.optimizers import OptimizerSettings, set_rate
from catchment.learning.parallel import TOGETHER, why_alone
from catchment.learning.steps import Given, LossFunction, Observer, fit
from catchment.learning.training import Weights, load_weights, tensors_of
from catchment.randomness import derive
from catchment.robust.aggregators import Aggregator
from catchment.tasks import Score, Task


class Trainable(Protocol):
    """What an optimiser can step: a module, or several."""

    def parameters(self) -> Iterable[Tensor]:
        """The weights."""


class Server:
    """What a method's server routine works with, besides its state and the fleet."""

    def __init__(
        self,
        world: World,
        directory: Path | None = None,
        stopwatch: Stopwatch | None = None,
    ) -> None:
        self.world = world
        self.round = 0  # the current round; the first is 1
        self.notes: dict[str, float] = {}  # numbers of the current round that a method wants in rounds.jsonl
        self._directory = directory
        self._stopwatch = stopwatch
        self._client_modules: dict[Architecture, nn.Module] = {}
        self._architectures: WeakKeyDictionary[nn.Module, Architecture] = WeakKeyDictionary()
        self._drawing: WeakKeyDictionary[nn.Module, Draws | None] = WeakKeyDictionary()  # None before the first round
        self._optimizers: WeakKeyDictionary[torch.optim.Optimizer, OptimizerSettings] = WeakKeyDictionary()
        self._validation: Sequence[float] = ()  # accuracies of the rounds before, on validation samples
        self._validating = False

    @property
    def rounds(self) -> int:
        """How many rounds the run has."""
        return self.world.rounds

    @property
    def task(self) -> Task:
        """What labels, losses and measures are."""
        return self.world.task

    @property
    def device(self) -> torch.device:
        """The compute device."""
        return self.world.device

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return self.world.classes

    @property
    def clients(self) -> int:
        """How many clients are registered."""
        return self.world.clients

    @property
    def architecture(self) -> Architecture:
        """The server's model, and facts about it."""
        return self.world.server_architecture

    @property
    def has_whole_model(self) -> bool:
        """Whether the server has a model that takes images."""
        return self.world.whole_server_model

    @property
    def twin(self) -> Architecture:
        """The first client's model for a server that has none of its own; its first weights are the server's."""
        return self.world.server_twin()

    @property
    def client_architectures(self) -> tuple[Architecture, ...]:
        """One for every entry of `models.client`."""
        return self.world.client_architectures

    def client_architecture(self, client: int) -> Architecture:
        """The model of one client, and facts about it."""
        return self.world.client_architecture(client)

    def most_samples(self, client: int) -> int:
        """How many samples a client has, or may say that it has where it brings data of its own."""
        return self.world.most_samples if self.world.data.own else len(self.world.data.clients[client])

    @property
    def settings(self) -> OptimizerSettings:
        """`[optimizer.server]`: the learning rate, its schedule, the batch size."""
        return self.world.server_optimizer

    @property
    def client_settings(self) -> OptimizerSettings:
        """`[optimizer.client]`, for servers that train as a client does."""
        return self.world.client_optimizer

    @property
    def shared_seed(self) -> int:
        """The seed of the run, for what server and clients draw alike."""
        return self.world.seed

    @property
    def test(self) -> Samples:
        """The global test set; the validation samples while these are measured."""
        data = self.world.data
        return data.validation if self._validating and data.validation is not None else data.test

    @property
    def public(self) -> Samples | None:
        """The public data that everybody has, if the experiment has any."""
        return self.world.data.public

    @property
    def public_test(self) -> Samples | None:
        """The test part of the public data, where these have one."""
        return self.world.data.public_test

    @property
    def aggregator(self) -> Aggregator:
        """How uploads are averaged: as `[aggregation]` says, by default the mean."""
        return self.world.aggregator

    def model(self) -> nn.Module:
        """A new server model with its first weights."""
        return self.build(self.architecture)

    def build(self, architecture: Architecture) -> nn.Module:
        """A new model of an architecture with its first weights; what it draws in training is derived."""
        module = architecture.build()
        self._architectures[module] = architecture
        if architecture.facts.draws:
            self._drawing[module] = None
            if self.round:
                self._derive_draws(module)
        return module

    def first_weights(self) -> Weights:
        """The first weights of the model that all clients share, on the CPU, where states and messages are."""
        return self.client_architecture(0).facts.initial

    def client_model(self, client: int, weights: Mapping[str, Tensor] | None = None) -> nn.Module:
        """The model of a client with these weights, or with its first ones; reused by the next call."""
        architecture = self.client_architecture(client)
        if architecture not in self._client_modules:
            self._client_modules[architecture] = self.build(architecture)
        module = self._client_modules[architecture]
        load_weights(
            tensors_of(module), self.world.first_weights(client) if weights is None else weights, architecture.name
        )
        return module

    def kept_model(self, client: int, kept: ClientState) -> nn.Module:
        """The model that a client keeps, as it would be deployed; with its first weights if it never trained."""
        return self.client_model(client, kept.get("model"))

    def spool(self) -> Spool:
        """Room on the run's disk for uploads that are too large for memory."""
        return Spool(self._directory, self._stopwatch)

    def optimizer(self, model: Trainable, settings: OptimizerSettings | None = None) -> torch.optim.Optimizer:
        """An optimiser as `[optimizer.server]` (or `settings`) says; every round it has the rate of that round."""
        settings = settings or self.settings
        optimizer = settings.build(model.parameters())
        set_rate(optimizer, self.rate(settings))
        self._optimizers[optimizer] = settings
        return optimizer

    def rate(self, settings: OptimizerSettings | None = None) -> float:
        """The learning rate of this round, as `[optimizer.server]` (or `settings`) says."""
        settings = settings or self.settings
        return settings.rate(self.round, self.rounds, settings.schedule.drops(self._validation))

    @property
    def share(self) -> float:
        """The factor of the server's schedule on its learning rate in this round."""
        schedule = self.settings.schedule
        return schedule.share(self.round, self.rounds, schedule.drops(self._validation))

    def batches(
        self, samples: Samples, size: int | None = None, *, epochs: int = 1, shuffle: bool = True, augment: bool = True
    ) -> Iterator[Batch]:
        """Training batches of samples that the server holds, normalised, on the compute device.

        `size` is that of `[optimizer.server]` unless given.
        """
        world = self.world
        for epoch in range(epochs):
            for batch in batches(
                samples,
                size or self.settings.batch_size,
                normalise=world.normalise,
                seed=self.seed("shuffle", epoch) if shuffle else None,
                augment=world.augment if augment else (),
                augment_seed=self.seed("augment", epoch),
                channels_last=True,
                task=world.task,
            ):
                yield batch.to(self.device)

    def fit(
        self,
        loss: LossFunction,
        model: Callable[[Tensor], Tensor],
        optimizer: torch.optim.Optimizer,
        batches: Iterable[Batch],
        *,
        observe: Observer | None = None,
        **given: Given,
    ) -> float:
        """Train a model, one step per batch; the mean loss. What the loss takes is given by name.

        If the experiment says so, the ranks of a job share the steps of a model and an optimiser made by this server.
        """
        together = TOGETHER.get()
        if together is not None and together.takes(loss, self._why_alone(loss, model, optimizer, observe, given)):
            assert isinstance(model, nn.Module)
            built, settings = self._architectures[model].description, self._optimizers[optimizer]
            return together.fit(
                loss, model, optimizer, batches, built=built, settings=settings, task=self.task, observe=observe,
                given=given,
            )  # fmt: skip
        return fit(loss, model, optimizer, batches, criterion=self.task.loss, observe=observe, **given)

    def evaluate(self, model: nn.Module, samples: Samples | None = None) -> Score:
        """Score a model on the test set (or on `samples`)."""
        return self.world.evaluate(model, self.test if samples is None else samples)

    def seed(self, *purpose: str | int) -> int:
        """A seed for one purpose of the server in this round."""
        return derive(self.world.seed, "server", *purpose, self.round)

    def _why_alone(
        self,
        loss: LossFunction,
        model: Callable[[Tensor], Tensor],
        optimizer: torch.optim.Optimizer,
        observe: Observer | None,
        given: Mapping[str, Given],
    ) -> str:
        """Why other ranks cannot help with these training steps; nothing if they can."""
        architecture = self._architectures.get(model) if isinstance(model, nn.Module) else None
        if architecture is None or optimizer not in self._optimizers:
            return "its model and its optimiser are not those that the server gave"
        if architecture.facts.draws:
            return f"{architecture.name} draws random numbers in training"
        return why_alone(loss, self.task, observe, given)

    # ---- for the run ----

    def begin_round(self, round: int, validation: Sequence[float] = ()) -> None:
        """Set every optimiser to the rate of a round; `validation` are the accuracies of earlier rounds."""
        self.round = round
        self.notes = {}
        self._validation = validation
        for optimizer, settings in self._optimizers.items():
            set_rate(optimizer, self.rate(settings))
        for module in list(self._drawing):
            self._derive_draws(module)

    def _derive_draws(self, module: nn.Module) -> None:
        draws = self._drawing[module] = self._drawing[module] or Draws(module)
        draws.begin(self.seed("draws"))

    @contextmanager
    def validating(self) -> Iterator[None]:
        """Measure on validation samples in place of the test set."""
        self._validating = True
        try:
            yield
        finally:
            self._validating = False
