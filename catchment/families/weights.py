"""The exchange that FedAvg and its kin share: one model down, trained models up, their mean.

Methods that compress what goes up send parameters and buffers apart: codecs work on the former, and the statistics of
batch normalisation, which are few and break when they are approximate, go whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor, nn

from catchment.client.state import ClientState
from catchment.core.declarations import Loss, Samples, client_weights, like
from catchment.core.fleet import Fleet
from catchment.core.intake import Reply
from catchment.core.method import Method, Metrics, SameForAll
from catchment.core.server import Server
from catchment.core.world import World
from catchment.exchange.payload import Payload
from catchment.learning.training import Weights


def client_parameters(world: World, client: int) -> Weights:
    """The parameters of a client's model."""
    return parameters_of(world.client_architecture(client).build())


def client_buffers(world: World, client: int) -> Weights:
    """What else the state dict of a client's model has."""
    return buffers_of(world.client_architecture(client).build())


@dataclass(frozen=True)
class GlobalModel(Payload):
    """The global model, down."""

    weights: dict[str, Tensor]


@dataclass(frozen=True)
class LocalModel(Payload):
    """A trained model, up."""

    weights: Annotated[dict[str, Tensor], like(client_weights)]
    samples: Samples
    loss: Loss

    @property
    def whole(self) -> Weights:
        """The state dict."""
        return self.weights


@dataclass(frozen=True)
class LocalParameters(Payload):
    """A trained model, up, as two fields."""

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

    weights: Weights


class OneModel(Method[GlobalState]):
    """A method in which all have the global model; what it does in a round is its own."""

    models: ClassVar[tuple[str, ...]] = ("weights",)
    any_task: ClassVar[bool] = True

    def check(self, world: World) -> None:
        """Weights can be put together only if all clients have one architecture."""
        world.one_architecture(type(self).__name__.lower())

    def init(self, server: Server) -> GlobalState:
        """The first weights of the clients' model."""
        return GlobalState(server.first_weights())

    def evaluate(self, server: Server, state: GlobalState, fleet: Fleet) -> Metrics:
        """The global model on the test set; it is every client's too."""
        return evaluate_global(server, fleet, state.weights)

    def client_model(self, server: Server, state: GlobalState, client: int, kept: ClientState) -> nn.Module:
        """The global model."""
        return self.server_model(server, state)

    def server_model(self, server: Server, state: GlobalState) -> nn.Module:
        """The global model."""
        return server.client_model(0, state.weights)


def parameters_of(model: nn.Module) -> Weights:
    """The parameters of a model by their names in its state dict, detached."""
    return {name: parameter.detach() for name, parameter in model.named_parameters(remove_duplicate=False)}


def buffers_of(model: nn.Module) -> Weights:
    """What else the state dict of a model has."""
    parameters = parameters_of(model)
    return {name: tensor for name, tensor in model.state_dict().items() if name not in parameters}


def mean_model(server: Server, replies: Iterable[Reply[LocalModel] | Reply[LocalParameters]]) -> Weights | None:
    """FedAvg's mean, by number of samples, of what came; None if nothing did."""
    mean = server.aggregator.running()
    for reply in replies:
        mean.add(reply.body.whole, weight=reply.body.samples)
    return mean.value() if mean.weight else None


def evaluate_global(server: Server, fleet: Fleet, weights: Weights) -> Metrics:
    """The global model on the test set; it is every client's model too."""
    score = server.evaluate(server.client_model(0, weights))
    return Metrics.of_model(score, clients=SameForAll(fleet.clients(), score.accuracy))
