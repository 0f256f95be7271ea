"""What server and clients both know of an experiment: seed, method, data, models, optimisers, compute device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from catchment import models
from catchment.codecs import Codecs
from catchment.core.architecture import Architecture
from catchment.core.method import Method
from catchment.data import Division, Normalisation, Samples
from catchment.errors import DataError, ExperimentError, ModelError
from catchment.learning.evaluation import evaluate
from catchment.learning.optimizers import OptimizerSettings
from catchment.learning.precision import Precision
from catchment.learning.training import Weights
from catchment.randomness import derive
from catchment.robust.aggregators import Aggregator, Mean
from catchment.tasks import Score, Task

CPU = torch.device("cpu")


@dataclass(frozen=True)
class World:
    """Everything that both sides agree on before the first message."""

    seed: int
    method: Method[Any]
    data: Division
    client_models: tuple[str, ...]  # dealt to the clients in turn
    server_model: str | None
    client_optimizer: OptimizerSettings
    server_optimizer: OptimizerSettings
    augment: tuple[str, ...] = ()
    device: torch.device = CPU
    codecs: Codecs = field(default_factory=Codecs)
    aggregator: Aggregator = field(default_factory=Mean)  # of uploads, in methods that average them
    initial: str = "own"  # first weights of all models: their own, or "glorot"
    most_samples: int = 10_000  # that a client with data of its own may say it has
    rounds: int = 1  # of the run
    average: float = 0.0  # decay of the moving averages that are evaluated and exported; 0: none
    precision: Precision = "float32"  # of forward and backward passes
    weights: Mapping[str, Tensor] = field(default_factory=dict)  # of `models.weights`; a device is sent what it needs

    @property
    def clients(self) -> int:
        """How many clients are registered."""
        return len(self.data.clients)

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.data.dataset.classes)

    @property
    def task(self) -> Task:
        """What labels, losses and measures are."""
        return self.data.dataset.task

    @property
    def normalise(self) -> Normalisation:
        """Pixels to numbers."""
        return self.data.dataset.normalise

    @cached_property
    def client_architectures(self) -> tuple[Architecture, ...]:
        """One for every entry of `models.client`."""
        return tuple(self._architecture(name, self.data.dataset.shape) for name in self.client_models)

    def client_architecture(self, client: int) -> Architecture:
        """The model of one client."""
        return self.client_architectures[client % len(self.client_architectures)]

    @cached_property
    def server_architecture(self) -> Architecture:
        """The server's model: a whole one takes images, a half takes the features of the clients' extractors."""
        if self.server_model is None:
            raise ModelError("this method needs a server model; set models.server")
        shape = self.data.dataset.shape
        own = ":" in self.server_model
        if models.is_half(self.server_model) or (own and self.method.takes_features):
            edge = self.client_architectures[0]
            shape = models.feature_shape(edge.build(), edge.shape)  # type: ignore[assignment]
        return self._architecture(self.server_model, shape, "server")

    @property
    def whole_server_model(self) -> bool:
        """Whether the server has a model that takes images."""
        return self.server_model is not None and not models.is_half(self.server_model)

    def server_twin(self) -> Architecture:
        """The first client's model for a server that has none of its own; its first weights are the server's."""
        return self._architecture(self.client_models[0], self.data.dataset.shape, "server")

    def check_models(self) -> None:
        """Try every model; a server half must take the features of every client's extractor."""
        for architecture in dict.fromkeys(self.client_architectures):
            self._check_outputs(architecture)
        if self.server_model is None:
            self._check_weights(*self.client_architectures)
            return
        server = self.server_architecture
        if models.is_half(server.name):
            for edge in dict.fromkeys(self.client_architectures):
                models.check_pair(edge.build(), server.build(), edge.shape, self.classes, edge.name, server.name)
        self._check_outputs(server)
        self._check_weights(*self.client_architectures, server)

    def _check_outputs(self, architecture: Architecture) -> None:
        if why := self.task.refuses_model(architecture.facts.outputs, self.classes):
            raise ModelError(f'model "{architecture.name}" is not for {self.task.name}: {why}')

    def _check_weights(self, *architectures: Architecture) -> None:
        if self.weights and not any(architecture.fitting for architecture in architectures):
            own = architectures[0]
            names = " or ".join(dict.fromkeys(architecture.name for architecture in architectures))
            raise ModelError(
                f"models.weights has no tensor that fits {names}: it has {_some(self.weights)}, and {own.name} has "
                f"{_some(own.facts.initial)}; the same names and shapes are expected"
            )

    def one_architecture(self, method: str) -> Architecture:
        """The single architecture of all clients, for methods that average weights."""
        if len(set(self.client_models)) > 1:
            raise ModelError(
                f"{method} shares weights among clients, so all need one architecture; models.client lists "
                f"{', '.join(sorted(set(self.client_models)))}"
            )
        return self.client_architectures[0]

    def check_tests(self, method: str) -> None:
        """Refuse a device without test samples, for methods whose clients measure their own models."""
        if not len(self.data.test):
            raise DataError(
                f"clients of {method} measure their models themselves; put a test split, such as test.npz, beside the "
                "train split of every client"
            )

    def need_public_labels(self, why: str) -> None:
        """Refuse a world without public samples that have labels of the private classes."""
        if self.data.public is None:
            raise ExperimentError(f"{why}, and there are none: set data.public")
        if not self.data.public_is_labelled:
            raise ExperimentError(
                f"{why}, and those of data.public have other classes than the private ones: take a share of the data "
                "instead, such as data.public = 0.2"
            )

    @property
    def remembers(self) -> bool:
        """Whether clients keep anything between requests."""
        return bool(self.method.persistent) or self.codecs.remembers

    def first_weights(self, client: int) -> Weights:
        """The first weights of a client's own model, on the CPU: other than those of other clients and the server."""
        architecture = self.client_architecture(client)
        return architecture.first_weights(derive(self.seed, "model", architecture.name, "client", client))

    def evaluate(self, model: nn.Module, samples: Samples) -> Score:
        """What a model reaches on some samples, by the measures of the task."""
        return evaluate(model, samples, self.normalise, self.device, self.task, self.data.dataset.classes)

    def private(self, client: int) -> Samples:
        """The training data of one client."""
        return self.data.client(client)

    def _architecture(self, name: str, shape: tuple[int, int, int], *side: str) -> Architecture:
        seed = derive(self.seed, "model", name, *side)
        return Architecture(name, shape, self.classes, seed, self.device, self.initial, self.precision, self.weights)


def _some(weights: Mapping[str, Tensor]) -> str:
    return ", ".join(f"{name} {list(weights[name].shape)}" for name in sorted(weights)[:3])
