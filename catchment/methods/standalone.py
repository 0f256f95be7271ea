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
from catchment.core.fleet import Fleet
from catchment.core.method import Metrics, on_client
from catchment.core.server import Server
from catchment.core.world import World
from catchment.families.own_models import OwnModels, Question, Trained, client_scores
from catchment.learning.losses import task_loss
from catchment.reading import Count


@dataclass
class State:
    """The server's model, if it has one to train."""

    model: nn.Module | None = None
    optimizer: torch.optim.Optimizer | None = None


@dataclass(frozen=True)
class Standalone(OwnModels[State]):
    """Each party alone."""

    models: ClassVar[tuple[str, ...]] = ("model",)
    any_task: ClassVar[bool] = True
    client_epochs: Count = 1
    """Epochs of a client per round."""
    server_epochs: Count = 1
    """Epochs of the server per round, where it has public data and a whole model."""

    def check(self, world: World) -> None:
        """Clients test for themselves; a server that trains does so with labels."""
        world.check_tests("standalone")
        if world.whole_server_model and world.data.public is not None:
            world.need_public_labels("a stand-alone server trains on public samples and their labels")

    def init(self, server: Server) -> State:
        """A fresh model, if the server has data for one."""
        if not server.has_whole_model or server.public is None:
            return State()
        model = server.model()
        return State(model, server.optimizer(model))

    def round(self, server: Server, state: State, fleet: Fleet) -> None:
        """Let the cohort train, and the server."""
        model = state.model
        if model is not None and state.optimizer is not None and server.public is not None:
            batches = server.batches(server.public, epochs=self.server_epochs)
            server.fit(task_loss, model.train(), state.optimizer, batches)
        fleet.tell(self.local_training, dict.fromkeys(fleet.cohort(), Question()))

    @on_client
    def local_training(self, client: Client, request: Question) -> Trained:
        """Go on from where this client was."""
        model, optimizer = client.own_model()
        loss = client.fit(task_loss, model, optimizer, client.batches(epochs=self.client_epochs))
        client.keep(model, optimizer)
        return Trained(loss)

    def evaluate(self, server: Server, state: State, fleet: Fleet) -> Metrics:
        """Each client measures its own model where it is, and so does the server."""
        own = None if state.model is None else server.evaluate(state.model).as_dict()
        clients = client_scores(fleet, self.test)
        return Metrics.of_clients(clients, server=own, self_reported=("accuracy", "clients"))

    def server_model(self, server: Server, state: State) -> nn.Module:
        """The server's own model, if it has one."""
        return super().server_model(server, state) if state.model is None else state.model
