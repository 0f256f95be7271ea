"""Centralized: all data in one place. The upper bound that federated learning wants to reach.

`model = "client"` trains the clients' model on all private data; where clients have several architectures, one model of
each, every one by itself. `model = "server"` trains the server's whole model on all data, public data included
("Centralized-All"). A round is `client_epochs` epochs, or `server_epochs` for the
server's model. To be honest about the cost, the data travel: every client uploads its samples once, and the ledger
books them. They are waited for without a deadline; a client that could not be reached, or failed, is an event and is
asked again in the next round.

Departures: none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn

from catchment.client.state import ClientState
from catchment.core.architecture import Architecture
from catchment.core.client import Client
from catchment.core.declarations import images, targets
from catchment.core.fleet import Fleet
from catchment.core.intake import Reply
from catchment.core.method import Method, Metrics, on_client
from catchment.core.server import Server
from catchment.core.world import World
from catchment.data import Samples
from catchment.errors import ModelError, UserError
from catchment.exchange.payload import Payload
from catchment.learning.losses import task_loss
from catchment.learning.optimizers import OptimizerSettings
from catchment.models import is_half
from catchment.reading import Count


@dataclass(frozen=True)
class SendData(Payload):
    """Give me everything."""


@dataclass(frozen=True)
class AllData(Payload):
    """A client's training data."""

    images: Annotated[Tensor, images("N_k")]
    labels: Annotated[Tensor, targets("N_k")]


@dataclass
class State:
    """The pooled data, the models by name and their optimisers."""

    images: Tensor | None  # [N, C, H, W]; None until the clients sent theirs
    labels: Tensor | None  # [N, ...]
    models: dict[str, nn.Module]
    optimizers: dict[str, torch.optim.Optimizer]
    came: list[int] = field(default_factory=list)  # clients whose data are there


@dataclass(frozen=True)
class Centralized(Method[State]):
    """Everything on the server."""

    models: ClassVar[tuple[str, ...]] = ("models",)
    moving_average: ClassVar[float] = 0.99
    any_task: ClassVar[bool] = True
    model: Literal["client", "server"] = "client"
    """Whose model is trained; the server's also on public data."""
    client_epochs: Count = 1
    """Epochs per round, with `model = "client"`."""
    server_epochs: Count = 1
    """Epochs per round, with `model = "server"`."""

    def check(self, world: World) -> None:
        """The server's model must take images, and its public data must have labels."""
        if self.model == "client":
            return
        if is_half(world.server_architecture.name):
            raise ModelError(
                f'models.server "{world.server_architecture.name}" is a half that takes features; centralized needs a '
                "whole model such as resnet20"
            )
        if world.data.public is not None:
            world.need_public_labels('centralized with model = "server" trains on public samples and their labels')

    def init(self, server: Server) -> State:
        """Fresh models."""
        models = {name: server.build(architecture) for name, architecture in self.architectures(server).items()}
        settings = self.settings(server)
        return State(None, None, models, {name: server.optimizer(model, settings) for name, model in models.items()})

    def architectures(self, server: Server) -> dict[str, Architecture]:
        """Of the models, by name."""
        chosen = server.client_architectures if self.model == "client" else [server.architecture]
        return {architecture.name: architecture for architecture in chosen}

    def settings(self, server: Server) -> OptimizerSettings:
        """Of the side whose model it is."""
        return server.client_settings if self.model == "client" else server.settings

    def round(self, server: Server, state: State, fleet: Fleet) -> None:
        """Collect the data that are not there yet, then train."""
        if len(state.came) < server.clients:
            self.collect(server, state, fleet)
        if state.images is None or state.labels is None:
            return
        samples = Samples(state.images, state.labels, torch.arange(len(state.labels)))
        epochs = self.client_epochs if self.model == "client" else self.server_epochs
        for name, model in state.models.items():
            batches = server.batches(samples, self.settings(server).batch_size, epochs=epochs)
            server.fit(task_loss, model.train(), state.optimizers[name], batches)

    def collect(self, server: Server, state: State, fleet: Fleet) -> None:
        """The data of all clients whose data are not there yet, however long it takes; who is missing is an event."""

        def accept(reply: Reply[AllData]) -> str:
            return server.task.refuses(reply.body.labels, server.classes)

        bodies = {k: SendData() for k in fleet.idle() if k not in state.came}
        replies = list(fleet.ask(self.send_data, bodies, deadline=math.inf, in_order=True, accept=accept))
        parts = [] if state.images is None or state.labels is None else [(state.images, state.labels)]
        first = not parts
        parts += [(reply.body.images, reply.body.labels) for reply in replies]
        if first and parts and self.model == "server" and server.public is not None:
            public = server.public
            parts.append((public.images[public.index], public.targets))
        if replies:
            state.images, state.labels = (torch.cat(tensors) for tensors in zip(*parts))
            state.came = sorted([*state.came, *(reply.client for reply in replies)])
        for client in sorted(set(range(server.clients)).difference(state.came)):
            fleet.missing(client, self.send_data, "its data are not here; it is asked again in the next round")

    @on_client
    def send_data(self, client: Client, request: SendData) -> AllData:
        """The client's samples, as they are."""
        samples = client.train
        return AllData(samples.images[samples.index], samples.targets)

    def evaluate(self, server: Server, state: State, fleet: Fleet) -> Metrics:
        """The one model on the test set; of several, each client has that of its architecture."""
        scores = {name: server.evaluate(model) for name, model in state.models.items()}
        if len(scores) == 1:
            (score,) = scores.values()
            return Metrics.of_model(score)
        return Metrics.of_clients(
            {k: scores[server.client_architecture(k).name].quality for k in range(server.clients)}
        )

    def client_model(self, server: Server, state: State, client: int, kept: ClientState) -> nn.Module:
        """The one model, or that of the client's architecture."""
        if len(state.models) == 1:
            return self.server_model(server, state)
        return state.models[server.client_architecture(client).name]

    def server_model(self, server: Server, state: State) -> nn.Module:
        """The one model."""
        if len(state.models) > 1:
            raise UserError(f"there are {len(state.models)} models, one an architecture; ask for that of a client")
        (model,) = state.models.values()
        return model
