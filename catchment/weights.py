"""The exchange that FedAvg and its kin share: one model down, trained models up, their mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from catchment.fleet import Fleet, Reply
from catchment.message import Payload
from catchment.method import Metrics
from catchment.server import Server
from catchment.training import Weights


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


@dataclass
class GlobalState:
    """What the server remembers."""

    weights: Weights


def mean_weights(server: Server, replies: Iterable[Reply[LocalModel]], otherwise: Weights) -> Weights:
    """The mean of the clients' weights by number of samples; `otherwise` if nobody answered."""
    mean = server.aggregator.running()
    for reply in replies:
        mean.add(reply.body.weights, reply.body.samples)
    return mean.value() if mean.weight else otherwise


def evaluate_global(server: Server, fleet: Fleet, weights: Weights) -> Metrics:
    """The global model on the test set; it is every client's model too."""
    score = server.evaluate(server.client_model(0, weights))
    return Metrics(score.accuracy, server=score.as_dict(), clients=dict.fromkeys(fleet.clients(), score.accuracy))


def misfit(weights: Mapping[str, Tensor], expected: Mapping[str, Tensor], model: str) -> str:
    """Why uploaded weights cannot be those of a model; nothing if they can."""
    if weights.keys() != expected.keys():
        wrong = sorted(weights.keys() ^ expected.keys())
        return f"weights have other names than those of {model}: {', '.join(wrong[:4])} do not match"
    for name, own in expected.items():
        given = weights[name]
        if given.dtype != own.dtype or given.shape != own.shape:
            return f"{name} is {given.dtype} {list(given.shape)}; {own.dtype} {list(own.shape)} of {model} is expected"
        if given.is_floating_point() and not bool(given.isfinite().all()):
            return f"{name} holds NaN or infinity"
    return ""
