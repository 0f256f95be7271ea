"""What server and clients both know of an experiment: seed, method, data, models, optimisers, compute device."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn

from catchment import models
from catchment.aggregators import Aggregator, Mean
from catchment.attacks import Intrusion
from catchment.codecs import Wire
from catchment.costs.compute import macs
from catchment.data import Division, Normalisation, Samples
from catchment.errors import CatchmentError, DataError, ExperimentError, ModelError
from catchment.inspection import Inspection
from catchment.method import Method
from catchment.optimizers import OptimizerSettings
from catchment.randomness import derive, seeded_globals
from catchment.training import Weights, copy_weights


@dataclass(frozen=True)
class Architecture:
    """A model that can be built anywhere, always with the same first weights."""

    name: str
    shape: tuple[int, int, int]  # of the input: channels, height, width
    classes: int
    seed: int  # of the first weights
    device: torch.device
    initial: str = "own"  # the model's own first weights, or "glorot"

    def build(self) -> nn.Module:
        """A new module with the first weights."""
        module = models.build(self.name, self.shape, self.classes, self.seed, self.initial)
        if len(self.shape) == 3 and any(isinstance(part, nn.Conv2d) for part in module.modules()):
            return module.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]
        return module.to(self.device)

    @cached_property
    def probe(self) -> Probe:
        """What a trial run of the model shows; made once."""
        with _PROBING:
            return self.__dict__.get("probe") or _probe(self)


@dataclass(frozen=True)
class Probe:
    """Facts about an architecture."""

    initial: Weights  # on the CPU, where states and messages are
    parameters: int
    macs: Mapping[str, int]  # a sample's forward pass, by child ("" = the whole module) whose calls are counted
    draws: bool  # uses PyTorch's global generator in training (dropout), so one at a time must run
    spatial: bool  # has 2-d convolutions, which like channels-last images
    features: tuple[int, ...] | None = None  # shape of the features of one sample, if the model has an extractor

    @property
    def total_macs(self) -> int:
        """Multiply-accumulates of one whole forward pass for one sample."""
        return sum(self.macs.values())


_PROBING = threading.Lock()
CPU = torch.device("cpu")


def _probe(architecture: Architecture) -> Probe:
    module = architecture.build()
    initial = {name: tensor.cpu() for name, tensor in copy_weights(module).items()}
    shape = architecture.shape
    try:
        if models.is_split(module):
            features = models.feature_shape(module, shape)
            counts = {"extractor": macs(module.extractor, shape), "classifier": macs(module.classifier, features)}
        else:
            features, counts = None, {"": macs(module, shape)}
        with seeded_globals(0), torch.no_grad():
            before = torch.get_rng_state()
            module.train()
            module(torch.zeros(2, *shape, device=architecture.device))
            draws = not torch.equal(before, torch.get_rng_state())
    except CatchmentError:
        raise
    except Exception as error:
        raise ModelError(
            f'model "{architecture.name}" cannot take input of shape {list(shape)}: {type(error).__name__}: {error}'
        ) from error
    spatial = any(isinstance(part, nn.Conv2d) for part in module.modules())
    return Probe(initial, models.parameters(module), counts, draws, spatial, features)


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
    wire: Wire = field(default_factory=Wire)
    aggregator: Aggregator = field(default_factory=Mean)  # of uploads, in methods that average them
    intrusion: Intrusion | None = None
    inspection: Inspection = field(default_factory=Inspection)
    initial: str = "own"  # first weights of all models: their own, or "glorot"
    most_samples: int = 10_000  # that a client with data of its own may say it has

    @property
    def clients(self) -> int:
        """How many clients are registered."""
        return len(self.data.clients)

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.data.dataset.classes)

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
        return self._architecture(self.server_model, shape)

    def check_models(self) -> None:
        """Try every model; a server half must take the features of every client's extractor."""
        for architecture in dict.fromkeys(self.client_architectures):
            _ = architecture.probe
        if self.server_model is None:
            return
        server = self.server_architecture
        if models.is_half(server.name):
            for edge in dict.fromkeys(self.client_architectures):
                models.check_pair(edge.build(), server.build(), edge.shape, self.classes, edge.name, server.name)
        _ = server.probe

    def one_architecture(self, method: str) -> Architecture:
        """The single architecture of all clients, for methods that average weights."""
        if len(set(self.client_models)) > 1:
            raise ModelError(
                f"{method} shares weights among clients, so all need one architecture; models.client lists "
                f"{', '.join(sorted(set(self.client_models)))}"
            )
        return self.client_architectures[0]

    def check_tests(self, method: str) -> None:
        """Refuse a device that brings no test samples, for methods whose clients measure themselves."""
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
        return bool(self.method.persistent) or self.wire.remembers("up") or self.wire.remembers("down")

    def private(self, client: int) -> Samples:
        """The training data of one client."""
        return self.data.client(client)

    def _architecture(self, name: str, shape: tuple[int, int, int]) -> Architecture:
        return Architecture(name, shape, self.classes, derive(self.seed, "model", name), self.device, self.initial)
