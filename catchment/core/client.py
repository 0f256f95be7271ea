"""What a handler sees of the client that it runs on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import islice

import torch
from torch import Tensor, nn

from catchment.client.state import ClientState
from catchment.codecs import Codecs
from catchment.core.architecture import Architecture
from catchment.core.worker import WorkerCache
from catchment.core.world import World
from catchment.data import Batch, Samples, batches
from catchment.data.batching import batch_sizes
from catchment.errors import DataError
from catchment.exchange.request import TRAINING, VALIDATION, Request
from catchment.learning.moving_average import MovingAverage
from catchment.learning.optimizers import OptimizerSettings, load_optimizer_tensors, optimizer_tensors, set_rate
from catchment.learning.steps import Given, LossFunction, Observer, fit
from catchment.learning.training import Weights, load_weights, tensors_of
from catchment.randomness import derive
from catchment.tasks import Score, Task

AVERAGE = "(average)"  # the part of a client's state that is the moving average of its own model


class Client:
    """One client while it serves one request."""

    def __init__(
        self, world: World, request: Request, state: ClientState, cache: WorkerCache, average: Weights | None = None
    ) -> None:
        self.id = request.client
        self.round = request.round
        self.state = state
        self.world = world
        self._request = request
        self._cache = cache
        self.average = average or {}  # of the own model, as it is kept; empty: there is none
        self._following: MovingAverage | None = None  # the same while the own model trains

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
    def rounds(self) -> int:
        """How many rounds the run has."""
        return self.world.rounds

    @property
    def architecture(self) -> Architecture:
        """The client's model, and facts about it."""
        return self.world.client_architecture(self.id)

    @property
    def settings(self) -> OptimizerSettings:
        """`[optimizer.client]`: the learning rate, its schedule, the batch size."""
        return self.world.client_optimizer

    @property
    def server_settings(self) -> OptimizerSettings:
        """`[optimizer.server]`, for what follows from the server's learning rate."""
        return self.world.server_optimizer

    @property
    def codecs(self) -> Codecs:
        """The codecs that a reply goes through."""
        return self.world.codecs

    @property
    def shared_seed(self) -> int:
        """The seed of the run, for what server and clients draw alike."""
        return self.world.seed

    @cached_property
    def train(self) -> Samples:
        """The client's private training data."""
        return self.world.private(self.id)

    @property
    def test(self) -> Samples:
        """The global test set; the validation samples where the server asks for these."""
        data = self.world.data
        return data.validation if self._request.purpose == VALIDATION and data.validation is not None else data.test

    @property
    def public(self) -> Samples | None:
        """The public data that everybody has, if the experiment has any."""
        return self.world.data.public

    def model(self, weights: Mapping[str, Tensor] | None = None) -> nn.Module:
        """The client's model in training mode, with these weights; without any, with the first weights of the run."""
        weights = self.world.first_weights(self.id) if weights is None else weights
        return self._module(self.architecture, weights)

    def server_model(self, weights: Mapping[str, Tensor]) -> nn.Module:
        """The server's model with these weights, for clients that run it."""
        return self._module(self.world.server_architecture, weights)

    def _module(self, architecture: Architecture, weights: Mapping[str, Tensor]) -> nn.Module:
        built = self._cache.built(architecture)
        load_weights(built.tensors, weights, architecture.name)
        for parameter in built.parameters:
            parameter.grad = None
        if not built.module.training:
            built.module.train()
        return built.module

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """A fresh optimiser for a model, as `[optimizer.client]` says, with the learning rate of the round."""
        optimizer = self._cache.optimizer(model, self.world)
        set_rate(optimizer, self.rate)
        return optimizer

    @property
    def rate(self) -> float:
        """The learning rate of the round."""
        return self.settings.rate(self.round, self.rounds, self._request.rate_drops)

    def own_model(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        """The model and the optimiser that the client keeps between requests, as `keep` left them; new at first."""
        model = self.model(self.state.get("model"))
        optimizer = self.optimizer(model)
        load_optimizer_tensors(optimizer, self.state.get("optimizer", {}))
        if self.world.average:
            weights = tensors_of(model)
            average = MovingAverage.from_tensors(self.average) if self.average else MovingAverage.starting_at(weights)
            self._cache.after_steps(optimizer, lambda: average.follow(weights, self.world.average))
            self._following = average
        return model, optimizer

    def keep(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Leave model and optimiser for the next request; `persistent` must name both."""
        self.state = {**self.state, "model": model.state_dict(), "optimizer": optimizer_tensors(optimizer)}
        if self._following is not None:
            self.average = self._following.tensors()

    def kept_model(self) -> nn.Module:
        """The client's own model as it would be deployed, to be measured: its moving average, if there is one."""
        average = MovingAverage.from_tensors(self.average).weights if self.average else None
        return self.model(average or self.state.get("model"))

    def batches(
        self, samples: Samples | None = None, *, epochs: int = 1, shuffle: bool = True, augment: bool = True
    ) -> Iterator[Batch]:
        """Training batches of the client's data (or of `samples`), normalised, on the compute device."""
        samples = self.train if samples is None else samples
        for epoch in range(epochs):
            seed = self.seed("shuffle", epoch) if shuffle else None
            for batch in islice(self._epoch(samples, epoch, seed, augment), self._cache.batches):
                self._cache.between_batches()
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
        """Train a model, one step per batch; the mean loss. What the loss takes is given by name."""
        return fit(loss, model, optimizer, batches, criterion=self.task.loss, observe=observe, **given)

    @property
    def batches_per_epoch(self) -> int:
        """How many batches an epoch of the client's data has."""
        return len(batch_sizes(len(self.train), self.settings.batch_size))

    def batch(self, number: int) -> Batch:
        """One batch of the client's data by its number in the round, counted over epochs.

        For methods with one request per batch: it does not depend on the request, and earlier batches are not built.
        """
        if not len(self.train):
            raise DataError(f"client {self.id} has no samples to train on; another data.partition may give it some")
        epoch, place = divmod(number, self.batches_per_epoch)
        # As in the client's first request of the round: there `batches` gives the same ones in the same order.
        seed = derive(self.world.seed, "shuffle", epoch, TRAINING, self.id, self.round, 0)
        self._cache.between_batches()
        return next(self._epoch(self.train, epoch, seed, augment=True, start=place)).to(self.device)

    def _epoch(self, samples: Samples, epoch: int, seed: int | None, augment: bool, start: int = 0) -> Iterator[Batch]:
        world = self.world
        return batches(
            samples,
            world.client_optimizer.batch_size,
            normalise=world.normalise,
            seed=seed,
            augment=world.augment if augment else (),
            augment_seed=derive(world.seed, "augment", self.id, self.round, epoch) if world.augment else 0,
            channels_last=self.architecture.facts.spatial,
            start=start,
            task=world.task,
        )

    def evaluate(self, model: nn.Module, samples: Samples | None = None) -> Score:
        """Score a model on the test set (or on `samples`)."""
        samples = self.test if samples is None else samples
        if not len(samples):
            raise DataError(f"client {self.id} has no samples to test on; put a test split beside its train split")
        return self.world.evaluate(model, samples)

    def seed(self, *purpose: str | int) -> int:
        """A seed for one purpose within this request."""
        r = self._request
        return derive(self.world.seed, *purpose, r.purpose, r.client, r.round, r.turn)
