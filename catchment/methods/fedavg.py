"""FedAvg: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.

Every client trains the global model on its own data for some epochs; the server replaces it by the mean of the
results, weighted by the number of samples.

Departures: none. Buffers of batch normalisation, which the paper does not have, are averaged as
`catchment.learning.averaging` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from catchment.core.client import Client
from catchment.core.fleet import Fleet
from catchment.core.method import on_client
from catchment.core.server import Server
from catchment.errors import at_least
from catchment.families.weights import GlobalModel, GlobalState, LocalModel, OneModel
from catchment.learning.losses import task_loss


@dataclass(frozen=True)
class FedAvg(OneModel):
    """Federated averaging."""

    aggregates: ClassVar[bool] = True
    client_epochs: int = 1  # of local training, per round

    def __post_init__(self) -> None:
        at_least("client_epochs", self.client_epochs, 1)

    def round(self, server: Server, state: GlobalState, fleet: Fleet) -> None:
        """w = sum of n_k w_k / sum of n_k over the cohort, or what `[aggregation]` puts in the place of this mean."""
        bodies = dict.fromkeys(fleet.cohort(), GlobalModel(state.weights))
        mean = server.aggregator.running()
        for reply in fleet.ask(self.local_training, bodies, in_order=True):
            mean.add(reply.body.weights, weight=reply.body.samples)  # w_k, n_k
        if mean.weight:
            state.weights = mean.value()

    @on_client
    def local_training(self, client: Client, request: GlobalModel) -> LocalModel:
        """Some epochs of the task's loss from the global weights."""
        model = client.model(request.weights)
        batches = client.batches(epochs=self.client_epochs)
        loss = client.fit(task_loss, model, client.optimizer(model), batches)
        return LocalModel(model.state_dict(), len(client.train), loss)
