"""The exchange that FedAvg and its kin share: one model down, trained models up, their mean.

Methods that compress what goes up send parameters and buffers apart: codecs work on the former, and the statistics of
batch normalisation, which are few and break when they are approximate, go whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

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


@dataclass(frozen=True)
class LocalParameters(Payload):
    """A trained model, up, as two fields."""

    weights: dict[str, Tensor]  # parameters
    buffers: dict[str, Tensor]
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


def mean_parameters(
    server: Server, fleet: Fleet, replies: Iterable[Reply[LocalParameters]], weights: Weights
) -> Weights | None:
    """The mean, by number of samples, of models like `weights`; None if no reply could be used."""
    mean = server.aggregator.running()
    for reply in replies:
        body = reply.body
        whole = {**body.weights, **body.buffers}
        reason = misfit(whole, weights) or miscount(body.samples)
        if reason:
            fleet.refuse(reply, reason)
        else:
            mean.add({name: whole[name] for name in weights}, body.samples)
    return mean.value() if mean.weight else None


def evaluate_global(server: Server, fleet: Fleet, weights: Weights) -> Metrics:
    """The global model on the test set; it is every client's model too."""
    score = server.evaluate(server.client_model(0, weights))
    return Metrics(score.accuracy, server=score.as_dict(), clients=dict.fromkeys(fleet.clients(), score.accuracy))
