"""Split learning: Gupta, Raskar, Distributed learning of deep neural network over multiple agents, JNCA 2018;
Vepakomma et al., Split learning for health: Distributed deep learning without sharing raw patient data, 2018.

The device holds the first layers f_e, the server the rest f_s. For every batch, features H and labels go up, the server
steps at once, and dL/dH comes down. Clients work one after another, each from the extractor of the one before.

Departures:
- The features of a batch are made a second time when their gradient comes, because nothing but declared state lives
  between two messages. They are the same; the clock and the count of work have one forward pass more.
- Extractors are handed over through the server. The paper's clients may also pass them on directly; the bytes are the
  same, and are booked. Only weights (and buffers) are handed over: a client's optimiser state stays with it, and waits
  for its next turn.
- A client that is lost in its turn leaves no trace in the extractor. The steps that the server made with it stay.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from catchment.client.state import ClientState
from catchment.core.architecture import Architecture
from catchment.core.client import Client
from catchment.core.declarations import Last, Samples, features, labels, like
from catchment.core.fleet import Fleet
from catchment.core.intake import Reply
from catchment.core.method import Method, Metrics, on_client
from catchment.core.server import Server
from catchment.core.world import World
from catchment.data import Batch
from catchment.data.batching import batch_sizes
from catchment.errors import ProtocolError
from catchment.exchange.payload import Payload
from catchment.families import checks
from catchment.families.features import check_half
from catchment.learning.losses import task_loss
from catchment.learning.optimizers import load_optimizer_tensors, optimizer_tensors
from catchment.learning.steps import fit
from catchment.learning.training import Weights, copy_weights, load_weights, tensors_of
from catchment.randomness import derive, seeded_globals
from catchment.reading import Count

PREFIX = "extractor."


def client_extractor(world: World, client: int) -> Weights:
    """The first weights of the extractor, which all clients share."""
    return first_extractor(world.client_architecture(client))


def first_extractor(architecture: Architecture) -> Weights:
    """The part of a model's first weights that is its extractor's."""
    initial = architecture.facts.initial
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


class Half(NamedTuple):
    """A server half and its optimiser."""

    model: nn.Module
    optimizer: torch.optim.Optimizer


@dataclass
class State:
    """What the server remembers."""

    extractor: Weights  # f_e
    model: nn.Module  # f_s
    optimizer: torch.optim.Optimizer  # of f_s

    @property
    def half(self) -> Half:
        """f_s and what steps it."""
        return Half(self.model, self.optimizer)


@dataclass(frozen=True)
class Split(Method[State]):
    """Split learning."""

    models: ClassVar[tuple[str, ...]] = ("extractor", "model")
    persistent: ClassVar[tuple[str, ...]] = ("extractor", "optimizer", "cursor")  # within a turn
    takes_features: ClassVar[bool] = True
    client_epochs: Count = 1
    """Epochs of a client's turn, or per round where all work at once."""

    def check(self, world: World) -> None:
        """One extractor for all clients, and a server half that fits it."""
        name = type(self).__name__.lower()
        world.one_architecture(name)
        check_half(world, name)

    def init(self, server: Server) -> State:
        """Both halves with their first weights."""
        model = server.model()
        return State(first_extractor(server.client_architecture(0)), model, server.optimizer(model))

    def round(self, server: Server, state: State, fleet: Fleet) -> None:
        """A turn for every client of the cohort; one that is lost or refused hands nothing over."""
        state.model.train()
        for client in fleet.cohort():
            end = fleet.now + fleet.deadline  # of the turn
            turn = Turn(server, client, self.client_epochs)
            reply = next(fleet.ask(self.begin, {client: Extractor(state.extractor)}, accept=turn.accept), None)
            while reply is not None:
                gradient = learn(server, state.half, reply.body)
                if reply.body.last:
                    for trained in fleet.ask(self.finish, {client: gradient}, deadline=end - fleet.now):
                        state.extractor = trained.body.weights
                    break
                replies = fleet.ask(self.step, {client: gradient}, deadline=end - fleet.now, accept=turn.accept)
                reply = next(replies, None)

    @on_client
    def begin(self, client: Client, request: Extractor) -> Features:
        """Take over the extractor, go on with the client's own optimiser."""
        return begin_turn(client, request, client.state.get("optimizer", {}), self.client_epochs)

    @on_client
    def step(self, client: Client, request: Gradient) -> Features:
        """One step of the extractor, then the next batch."""
        return continue_turn(client, request, self.client_epochs)

    @on_client
    def finish(self, client: Client, request: Gradient) -> Trained:
        """The last step of the extractor, which then leaves; the optimiser stays."""
        trained = end_turn(client, request)
        client.state = {"optimizer": client.state["optimizer"]}
        return trained

    def evaluate(self, server: Server, state: State, fleet: Fleet) -> Metrics:
        """The extractor followed by the server half, on the test set."""
        score = server.evaluate(self.server_model(server, state))
        return Metrics.of_model(score)

    def client_model(self, server: Server, state: State, client: int, kept: ClientState) -> nn.Module:
        """The extractor followed by the server half, for everybody."""
        return self.server_model(server, state)

    def server_model(self, server: Server, state: State) -> nn.Module:
        """The extractor followed by the server half."""
        extractor = server.client_model(0).get_submodule("extractor")
        load_weights(tensors_of(extractor), state.extractor, "the extractor")
        return nn.Sequential(OrderedDict(extractor=extractor, server=state.model))


# ---- a turn, on the server --------------------------------------------------------------------------------------


class Turn:
    """Counts the batches of one client in one round."""

    def __init__(self, server: Server, client: int, epochs: int) -> None:
        batches = batch_sizes(server.most_samples(client), server.client_settings.batch_size)
        self.most = epochs * max(1, len(batches))
        self.number = 0  # of the batch that came last

    def accept(self, reply: Reply[Features]) -> str:
        """Refuse a client that does not come to an end."""
        self.number += 1
        return checks.batches(reply.body.last, self.number, self.most)


def learn(server: Server, half: Half, upload: Features) -> Gradient:
    """One step of the server half on one batch; dL/dH, from the weights before the step."""
    features = upload.features.to(server.device).detach().requires_grad_()
    batch = Batch(features, upload.labels.to(server.device), torch.arange(len(features)))
    fit(task_loss, half.model, half.optimizer, [batch], criterion=server.task.loss)  # alone: features have a gradient
    assert features.grad is not None
    return Gradient(features.grad)


# ---- a turn, on the client --------------------------------------------------------------------------------------


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
    seed = derive(client.shared_seed, "features", client.id, client.round, number)
    with seeded_globals(seed) if client.architecture.facts.draws else nullcontext():
        features: Tensor = extractor(images)
    return features
