"""FedAvg: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.

Every client trains the global model on its own data for some epochs; the server replaces it by the mean of the
results, weighted by the number of samples.

Departures: none. Buffers of batch normalisation, which the paper does not have, are averaged as
`catchment.averaging` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import nn

from catchment.client import Client, ClientState
from catchment.errors import at_least
from catchment.fleet import Fleet
from catchment.method import Method, Metrics, on_client
from catchment.server import Server
from catchment.training import fit
from catchment.weights import GlobalModel, GlobalState, LocalModel, evaluate_global, mean_weights
from catchment.world import World


@dataclass(frozen=True)
class FedAvg(Method[GlobalState]):
    """Federated averaging."""

    aggregates: ClassVar[bool] = True
    client_epochs: int = 1

    def __post_init__(self) -> None:
        at_least("client_epochs", self.client_epochs, 1)

    def check(self, world: World) -> None:
        """Weights can be averaged only if all clients have one architecture."""
        world.one_architecture("fedavg")

    def init(self, server: Server) -> GlobalState:
        """The first weights of the clients' model."""
        return GlobalState(server.world.client_architecture(0).probe.initial)

    def round(self, server: Server, state: GlobalState, fleet: Fleet) -> None:
        """Send the model to the cohort, average what comes back."""
        bodies = dict.fromkeys(fleet.cohort(), GlobalModel(state.weights))
        replies = fleet.ask(self.local_training, bodies, in_order=True)
        state.weights = mean_weights(server, replies, otherwise=state.weights)

    @on_client
    def local_training(self, client: Client, request: GlobalModel) -> LocalModel:
        """Some epochs of cross-entropy from the global weights."""
        model = client.model(request.weights)
        loss = fit(
            client.optimizer(model),
            client.batches(epochs=self.client_epochs),
            lambda batch: F.cross_entropy(model(batch.images), batch.labels),
        )
        return LocalModel(model.state_dict(), len(client.train), loss)

    def evaluate(self, server: Server, state: GlobalState, fleet: Fleet) -> Metrics:
        """The global model, which is every client's too."""
        return evaluate_global(server, fleet, state.weights)

    def client_model(self, server: Server, state: GlobalState, client: int, kept: ClientState) -> nn.Module:
        """The global model."""
        return self.server_model(server, state)

    def server_model(self, server: Server, state: GlobalState) -> nn.Module:
        """The global model."""
        return server.client_model(0, state.weights)
