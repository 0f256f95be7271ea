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

from catchment.client import Client
from catchment.errors import at_least
from catchment.fleet import Fleet
from catchment.method import on_client
from catchment.server import Server
from catchment.training import fit
from catchment.weights import GlobalModel, GlobalState, LocalModel, OneModel, mean_model


@dataclass(frozen=True)
class FedAvg(OneModel[GlobalState]):
    """Federated averaging."""

    aggregates: ClassVar[bool] = True
    client_epochs: int = 1

    def __post_init__(self) -> None:
        at_least("client_epochs", self.client_epochs, 1)

    def init(self, server: Server) -> GlobalState:
        """The first weights of the clients' model."""
        return GlobalState(server.world.client_architecture(0).probe.initial)

    def round(self, server: Server, state: GlobalState, fleet: Fleet) -> None:
        """Send the model to the cohort, average what comes back."""
        bodies = dict.fromkeys(fleet.cohort(), GlobalModel(state.weights))
        replies = fleet.ask(self.local_training, bodies, in_order=True)
        state.weights = mean_model(server, replies, state.weights) or state.weights

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
