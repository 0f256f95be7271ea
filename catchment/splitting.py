"""The exchange that split learning and SplitFed share: features up and their gradient down, batch by batch.

A turn is what one client does in a round. It begins with the extractor, has one exchange a batch, and ends when the
client, having the last gradient, gives the extractor back. No autograd graph lives between two messages: a client
makes the features of a batch once to send them, and once more when their gradient comes.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from catchment.client import Client
from catchment.data import Batch
from catchment.data.batching import batch_sizes
from catchment.errors import ModelError, ProtocolError
from catchment.expectations import Last, Samples, features, labels, like
from catchment.message import Payload
from catchment.method import Metrics
from catchment.models import check_pair
from catchment.optimizers import load_optimizer_tensors, optimizer_tensors
from catchment.randomness import derive, seeded_globals
from catchment.server import Server
from catchment.training import Weights, copy_weights, fit, load_weights, tensors_of
from catchment.world import World

KEPT = ("extractor", "optimizer", "cursor")  # what a client remembers within a turn
PREFIX = "extractor."


def client_extractor(world: World, client: int) -> Weights:
    """The first weights of a client's extractor."""
    initial = world.client_architecture(client).probe.initial
    return {name.removeprefix(PREFIX): tensor for name, tensor in initial.items() if name.startswith(PREFIX)}


@dataclass(frozen=True)
class Extractor(Payload):
    """The extractor that a turn begins with, down."""

    weights: dict[str, Tensor]


@dataclass(frozen=True)
class Features(Payload):
    """One batch, up."""

    features: Annotated[Tensor, features("n <= B", least=1)]  # H
    labels: Annotated[Tensor, labels("n <= B", least=1)]
    last: Last  # of the turn


@dataclass(frozen=True)
class Gradient(Payload):
    """What the server answers to a batch, down."""

    gradient: Tensor  # dL/dH, [B, ...]


@dataclass(frozen=True)
class Trained(Payload):
    """The extractor at the end of a turn, up."""

    weights: Annotated[dict[str, Tensor], like(client_extractor)]
    samples: Samples


@dataclass
class SplitState:
    """What the server remembers."""

    extractor: Weights  # f_e
    model: nn.Module  # f_s
    optimizer: torch.optim.Optimizer  # of f_s


# ---- the server -------------------------------------------------------------------------------------------------


def check_halves(world: World, method: str) -> None:
    """Refuse a world without one extractor for all clients and a server half that fits it."""
    if world.server_model is None:
        raise ModelError(f"{method} trains a server half on features; set models.server, such as resnet19")
    edge, half = world.one_architecture(method), world.server_architecture
    check_pair(edge.build(), half.build(), edge.shape, world.classes, edge.name, half.name)


def first_state(server: Server) -> SplitState:
    """Both halves with their first weights."""
    model = server.model()
    return SplitState(client_extractor(server.world, 0), model, server.optimizer(model))


def most_steps(world: World, client: int, epochs: int) -> int:
    """How many batches a client's turn has at the most."""
    samples = world.most_samples if world.data.own else len(world.data.clients[client])
    return epochs * max(1, len(batch_sizes(samples, world.client_optimizer.batch_size)))


def learn(server: Server, model: nn.Module, optimizer: torch.optim.Optimizer, upload: Features) -> Gradient:
    """One step of the server half on one batch; dL/dH, from the weights before the step."""
    features = upload.features.to(server.world.device).detach().requires_grad_()
    batch = Batch(features, upload.labels.to(server.world.device), torch.arange(len(features)))
    fit(optimizer, [batch], lambda batch: F.cross_entropy(model(batch.images), batch.labels))
    assert features.grad is not None
    return Gradient(features.grad)


def stacked(server: Server, state: SplitState) -> nn.Module:
    """The extractor followed by the server half."""
    edge = server.client_model(0, server.world.client_architecture(0).probe.initial)
    extractor = edge.get_submodule("extractor")
    load_weights(tensors_of(extractor), state.extractor, "the extractor")
    return nn.Sequential(OrderedDict(extractor=extractor, server=state.model))


def evaluate_stacked(server: Server, state: SplitState) -> Metrics:
    """The stacked model on the test set."""
    score = server.evaluate(stacked(server, state))
    return Metrics(score.accuracy, server=score.as_dict())


# ---- the client -------------------------------------------------------------------------------------------------


def begin_turn(client: Client, request: Extractor, optimizer: Weights, epochs: int) -> Features:
    """Take the extractor, and the state of the optimiser to go on with; send the first batch."""
    client.state = {"extractor": request.weights, "optimizer": optimizer, "cursor": {"batch": torch.tensor(0)}}
    return _send(client, _extractor(client), epochs)


def continue_turn(client: Client, request: Gradient, epochs: int) -> Features:
    """Learn from the gradient of the batch that was sent, send the next one."""
    extractor = _extractor(client)
    _learn(client, extractor, request.gradient)
    return _send(client, extractor, epochs)


def end_turn(client: Client, request: Gradient) -> Trained:
    """Learn from the gradient of the last batch, give the extractor back."""
    _learn(client, _extractor(client), request.gradient)
    return Trained(client.state["extractor"], len(client.train))


def _extractor(client: Client) -> nn.Module:
    """The client's extractor as the turn has left it."""
    if "extractor" not in client.state:
        raise ProtocolError(f"client {client.id} has no turn under way; the server must begin one first")
    extractor = client.model().get_submodule("extractor")
    load_weights(tensors_of(extractor), client.state["extractor"], "the extractor")
    return extractor


def _learn(client: Client, extractor: nn.Module, gradient: Tensor) -> None:
    """One step of the extractor on the batch that was sent."""
    number = int(client.state["cursor"]["batch"])
    optimizer = client.optimizer(extractor)
    load_optimizer_tensors(optimizer, client.state.get("optimizer", {}))
    features = _features(client, extractor, number, client.batch(number).images)
    features.backward(gradient.to(features.device))  # type: ignore[no-untyped-call]
    optimizer.step()
    # Copies: making features to send moves the running statistics of the module, and a batch must move them once.
    client.state = {
        "extractor": copy_weights(extractor),
        "optimizer": optimizer_tensors(optimizer),
        "cursor": {"batch": torch.tensor(number + 1)},
    }


def _send(client: Client, extractor: nn.Module, epochs: int) -> Features:
    """The features of the batch that is next."""
    number = int(client.state["cursor"]["batch"])
    batch = client.batch(number)
    with torch.no_grad():
        features = _features(client, extractor, number, batch.images)
    return Features(features, batch.labels, last=number + 1 == epochs * client.batches_per_epoch)


def _features(client: Client, extractor: nn.Module, number: int, images: Tensor) -> Tensor:
    """H of one batch. Dropout takes the same draws each time: the gradient belongs to the features that were sent."""
    draws = client.world.client_architecture(client.id).probe.draws
    seed = derive(client.world.seed, "features", client.id, client.round, number)
    with seeded_globals(seed) if draws else nullcontext():
        features: Tensor = extractor(images)
    return features
