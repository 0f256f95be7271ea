"""The exchange that FedAvg and its kin share: one model down, trained models up.

Parameters and buffers are apart: codecs and options are about the former, and the statistics of batch normalisation,
which are few and break when they are approximate, go whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Self

from torch import Tensor, nn

from catchment.core.architecture import Architecture
from catchment.core.declarations import Loss, Samples, like
from catchment.core.fleet import Fleet
from catchment.core.method import Metrics, SameForAll
from catchment.core.server import Server
from catchment.core.world import World
from catchment.exchange.payload import Payload
from catchment.learning.training import Weights


def client_parameters(world: World, client: int) -> Weights:
    """The parameters of a client's model."""
    architecture = world.client_architecture(client)
    return apart(architecture, architecture.facts.initial)[0]


def client_buffers(world: World, client: int) -> Weights:
    """What else the state dict of a client's model has."""
    architecture = world.client_architecture(client)
    return apart(architecture, architecture.facts.initial)[1]


@dataclass(frozen=True)
class GlobalModel(Payload):
    """The global model, down."""

    weights: dict[str, Tensor]  # its parameters
    buffers: dict[str, Tensor]

    @classmethod
    def of(cls, architecture: Architecture, weights: Weights) -> Self:
        """From the state dict."""
        return cls(*apart(architecture, weights))

    @property
    def whole(self) -> Weights:
        """The state dict."""
        return {**self.weights, **self.buffers}


@dataclass(frozen=True)
class LocalModel(Payload):
    """A trained model, up."""

    weights: Annotated[dict[str, Tensor], like(client_parameters)]
    buffers: Annotated[dict[str, Tensor], like(client_buffers)]
    samples: Samples
    loss: Loss

    @property
    def whole(self) -> Weights:
        """The state dict."""
        return {**self.weights, **self.buffers}


@dataclass
class GlobalState:
    """What the server remembers."""

    weights: Weights  # the state dict of the global model


def apart(architecture: Architecture, weights: Weights) -> tuple[Weights, Weights]:
    """Parameters and buffers of the state dict of a model."""
    buffers = architecture.facts.buffers
    return (
        {name: tensor for name, tensor in weights.items() if name not in buffers},
        {name: tensor for name, tensor in weights.items() if name in buffers},
    )


def evaluate_global(server: Server, fleet: Fleet, model: nn.Module) -> Metrics:
    """The global model on the test set; it is every client's too."""
    score = server.evaluate(model)
    return Metrics.of_model(score, clients=SameForAll(fleet.clients(), score.accuracy))
