"""The exchange that FedAvg and its kin share: one model down, trained models up, their mean.

Methods that compress what goes up send parameters and buffers apart: codecs work on the former, and the statistics of
batch normalisation, which are few and break when they are approximate, go whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor, nn

from catchment.client import ClientState
from catchment.fleet import Fleet, Reply
from catchment.message import Payload
from catchment.method import Method, Metrics
from catchment.server import Server
from catchment.training import Weights
from catchment.world import World


@dataclass(frozen=True)
class GlobalModel(Payload):
    """The global model, down."""

    weights: dict[str, Tensor]


@dataclass(frozen=True)
class LocalModel(Payload):
    """A trained model, up."""

    weights: dict[str, Tensor]
    samples: int
    loss: float

    @property
    def whole(self) -> Weights:
        """The state dict."""
        return self.weights


@dataclass(frozen=True)
class LocalParameters(Payload):
    """A trained model, up, as two fields."""

    weights: dict[str, Tensor]  # parameters
    buffers: dict[str, Tensor]
    samples: int
    loss: float

    @property
    def whole(self) -> Weights:
        """The state dict."""
        return {**self.weights, **self.buffers}


@dataclass
class GlobalState:
    """What the server remembers."""

    weights: Weights


Kept = TypeVar("Kept", bound=GlobalState)


class OneModel(Method[Kept]):
    """A method in which all have the global model; what it does in a round is its own."""

    def check(self, world: World) -> None:
        """Weights can be put together only if all clients have one architecture."""
        world.one_architecture(type(self).__name__.lower())

    def evaluate(self, server: Server, state: Kept, fleet: Fleet) -> Metrics:
        """The global model on the test set; it is every client's too."""
        return evaluate_global(server, fleet, state.weights)

    def client_model(self, server: Server, state: Kept, client: int, kept: ClientState) -> nn.Module:
        """The global model."""
        return self.server_model(server, state)

    def server_model(self, server: Server, state: Kept) -> nn.Module:
        """The global model."""
        return server.client_model(0, state.weights)


def parameters_of(model: nn.Module) -> Weights:
    """The parameters of a model by their names in its state dict, detached."""
    return {name: parameter.detach() for name, parameter in model.named_parameters(remove_duplicate=False)}


def buffers_of(model: nn.Module) -> Weights:
    """What else the state dict of a model has."""
    parameters = parameters_of(model)
    return {name: tensor for name, tensor in model.state_dict().items() if name not in parameters}


def misfit(given: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> str:
    """Why tensors that a client sent cannot stand for these; nothing if they can."""
    if given.keys() != expected.keys():
        wrong = sorted(given.keys() ^ expected.keys())
        return f"tensors have other names than expected: {', '.join(wrong[:4])} do not match"
    for name, tensor in given.items():
        want = expected[name]
        if tensor.dtype != want.dtype or tensor.shape != want.shape:
            return f"{name} is {tensor.dtype} {list(tensor.shape)}; {want.dtype} {list(want.shape)} is expected"
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            return f"{name} holds NaN or infinity"
    return ""


def miscount(samples: int) -> str:
    """Why a client cannot have trained on so many samples; how many it has is its own word."""
    return f"it says that it has {samples} samples" if samples < 1 else ""


def mean_model(
    server: Server, fleet: Fleet, replies: Iterable[Reply[LocalModel] | Reply[LocalParameters]], weights: Weights
) -> Weights | None:
    """The mean, by number of samples, of models like `weights`; None if no reply could be used."""
    mean = server.aggregator.running()
    for reply in replies:
        whole, samples = reply.body.whole, reply.body.samples
        reason = misfit(whole, weights) or miscount(samples)
        if reason:
            fleet.refuse(reply, reason)
        else:
            mean.add({name: whole[name] for name in weights}, samples)
    return mean.value() if mean.weight else None


def evaluate_global(server: Server, fleet: Fleet, weights: Weights) -> Metrics:
    """The global model on the test set; it is every client's model too."""
    score = server.evaluate(server.client_model(0, weights))
    return Metrics(score.accuracy, server=score.as_dict(), clients=dict.fromkeys(fleet.clients(), score.accuracy))
