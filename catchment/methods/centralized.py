"""Centralized: all data in one place, one model. The upper bound that federated learning wants to reach.

`model = "client"` trains the clients' model on all private data. `model = "server"` trains the server's whole model
on all data, public data included ("Centralized-All"). A round is `client_epochs` epochs, or `server_epochs` for the
server's model. To be honest about the cost, the data travel: every client uploads its samples once, and the ledger
books them.

Departures: none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from catchment.client import Client, ClientState
from catchment.data import Samples
from catchment.errors import ModelError, at_least
from catchment.fleet import Fleet
from catchment.message import Payload
from catchment.method import Method, Metrics, on_client
from catchment.models import is_half
from catchment.server import Server
from catchment.training import fit
from catchment.world import World


@dataclass(frozen=True)
class SendData(Payload):
    """Give me everything."""


@dataclass(frozen=True)
class AllData(Payload):
    """A client's training data."""

    images: Tensor  # uint8 [N_k, C, H, W]
    labels: Tensor  # int64 [N_k]


@dataclass
class State:
    """The pooled data, the model and its optimiser."""

    images: Tensor | None  # [N, C, H, W]; None until the clients sent theirs
    labels: Tensor | None  # [N]
    model: nn.Module
    optimizer: torch.optim.Optimizer


@dataclass(frozen=True)
class Centralized(Method[State]):
    """Everything on the server."""

    model: Literal["client", "server"] = "client"
    client_epochs: int = 1
    server_epochs: int = 1

    def __post_init__(self) -> None:
        at_least("client_epochs", self.client_epochs, 1)
        at_least("server_epochs", self.server_epochs, 1)

    def check(self, world: World) -> None:
        """One model, and one that takes images."""
        if self.model == "client":
            world.one_architecture("centralized")
        elif is_half(world.server_architecture.name):
            raise ModelError(
                f'models.server "{world.server_architecture.name}" is a half that takes features; centralized needs a '
                "whole model such as resnet20"
            )
        elif world.data.public is not None:
            world.need_public_labels('centralized with model = "server" trains on public samples and their labels')

    def init(self, server: Server) -> State:
        """A fresh model."""
        world = server.world
        if self.model == "client":
            model = world.client_architecture(0).build()
            return State(None, None, model, world.client_optimizer.build(model.parameters()))
        model = server.model()
        return State(None, None, model, server.optimizer(model))

    def round(self, server: Server, state: State, fleet: Fleet) -> None:
        """Collect the data once, then train."""
        if state.images is None or state.labels is None:
            replies = list(fleet.ask(self.send_data, dict.fromkeys(fleet.clients(), SendData()), in_order=True))
            if not replies:
                return
            parts = [(reply.body.images, reply.body.labels) for reply in replies]
            if self.model == "server" and server.public is not None:
                public = server.public
                parts.append((public.images[public.index], public.targets))
            state.images, state.labels = (torch.cat(tensors) for tensors in zip(*parts))
        samples = Samples(state.images, state.labels, torch.arange(len(state.labels)))
        on_client_model = self.model == "client"
        settings = server.world.client_optimizer if on_client_model else server.world.server_optimizer
        state.model.train()
        fit(
            state.optimizer,
            server.batches(
                samples,
                settings.batch_size,
                epochs=self.client_epochs if on_client_model else self.server_epochs,
            ),
            lambda batch: F.cross_entropy(state.model(batch.images), batch.labels),
        )

    @on_client
    def send_data(self, client: Client, request: SendData) -> AllData:
        """The client's samples, as they are."""
        samples = client.train
        return AllData(samples.images[samples.index], samples.targets)

    def evaluate(self, server: Server, state: State, fleet: Fleet) -> Metrics:
        """The one model on the test set."""
        score = server.evaluate(state.model)
        return Metrics(score.accuracy, server=score.as_dict())

    def client_model(self, server: Server, state: State, client: int, kept: ClientState) -> nn.Module:
        """The one model."""
        return state.model

    def server_model(self, server: Server, state: State) -> nn.Module:
        """The one model."""
        return state.model
