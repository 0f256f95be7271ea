"""Stand-alone: every party trains its own model on its own data and talks to nobody. The lower bound.

A round is `client_epochs` epochs. Models and optimiser states stay on the clients; nothing of them travels. The
accuracy is the mean over clients on the global test set. Clients may have different architectures. A server with a
whole model, where there are public data, trains it on these for `server_epochs`.

Departures: none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from catchment.core.client import Client
from catchment.core.declarations import Loss
from catchment.core.fleet import Fleet
from catchment.core.method import Method, Metrics, on_client
from catchment.core.server import Server
from catchment.core.versions import ClientState
from catchment.core.world import World
from catchment.errors import at_least
from catchment.exchange.payload import Payload
from catchment.families.scores import Scored, scored
from catchment.learning.training import fit
from catchment.models import is_half


@dataclass(frozen=True)
class Go(Payload):
    """Train for a round."""


@dataclass(frozen=True)
class Done(Payload):
    """Trained."""

    loss: Loss


@dataclass
class State:
    """The server's model, if it has one to train."""

    model: nn.Module | None = None
    optimizer: torch.optim.Optimizer | None = None


@dataclass(frozen=True)
class Standalone(Method[State]):
    """Each party alone."""

    models: ClassVar[tuple[str, ...]] = ("model",)
    moving_average: ClassVar[float] = 0.99
    any_task: ClassVar[bool] = True
    persistent: ClassVar[tuple[str, ...]] = ("model", "optimizer")
    derives_weights: ClassVar[bool] = True
    client_epochs: int = 1  # per round, of a client
    server_epochs: int = 1  # per round, of the server, where it has public data and a whole model

    def __post_init__(self) -> None:
        at_least("client_epochs", self.client_epochs, 1)
        at_least("server_epochs", self.server_epochs, 1)

    def check(self, world: World) -> None:
        """Clients test for themselves; a server that trains does so with labels."""
        world.check_tests("standalone")
        if self.server_trains(world):
            world.need_public_labels("a stand-alone server trains on public samples and their labels")

    def server_trains(self, world: World) -> bool:
        """Whether the server has data and a whole model."""
        return world.server_model is not None and not is_half(world.server_model) and world.data.public is not None

    def init(self, server: Server) -> State:
        """A fresh model, if the server has data for one."""
        if not self.server_trains(server.world):
            return State()
        model = server.model()
        return State(model, server.optimizer(model))

    def round(self, server: Server, state: State, fleet: Fleet) -> None:
        """Let the cohort train, and the server."""
        model = state.model
        if model is not None and state.optimizer is not None and server.public is not None:
            size = server.world.server_optimizer.batch_size
            model.train()
            fit(
                state.optimizer,
                server.batches(server.public, size, epochs=self.server_epochs),
                lambda batch: server.task.loss(model(batch.images), batch.labels),
            )
        for _ in fleet.ask(self.local_training, dict.fromkeys(fleet.cohort(), Go())):
            pass

    @on_client
    def local_training(self, client: Client, request: Go) -> Done:
        """Go on from where this client was."""
        model, optimizer = client.own_model()
        loss = fit(
            optimizer,
            client.batches(epochs=self.client_epochs),
            lambda batch: client.task.loss(model(batch.images), batch.labels),
        )
        client.keep(model, optimizer)
        return Done(loss)

    def evaluate(self, server: Server, state: State, fleet: Fleet) -> Metrics:
        """Each client measures its own model where it is, and so does the server."""
        with fleet.aside("evaluation"):
            replies = fleet.ask(self.test, dict.fromkeys(fleet.measured(), Go()), in_order=True)
            clients = {reply.client: reply.body.quality for reply in replies}
        own = None if state.model is None else server.evaluate(state.model).as_dict()
        return Metrics.of_clients(clients, server=own, self_reported=("accuracy", "clients"))

    @on_client
    def test(self, client: Client, request: Go) -> Scored:
        """This client's model on the global test set."""
        return Scored(**scored(client.evaluate(client.kept_model()).quality))

    def client_model(self, server: Server, state: State, client: int, kept: ClientState) -> nn.Module:
        """The client's own model; the first weights if it never trained."""
        return server.kept_model(client, kept)

    def server_model(self, server: Server, state: State) -> nn.Module:
        """The server's own model, if it has one."""
        return super().server_model(server, state) if state.model is None else state.model
