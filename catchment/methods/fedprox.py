"""FedProx: Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020.

FedAvg with a proximal term: a client minimises its loss + mu/2 |w - w_global|^2, so that clients with unlike data do
not run apart.

Departures: every client does the same number of epochs, where the paper also lets slow devices do fewer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from catchment.core.client import Client
from catchment.core.fleet import Fleet
from catchment.core.method import on_client
from catchment.core.server import Server
from catchment.data import Batch
from catchment.errors import at_least
from catchment.families.weights import GlobalModel, GlobalState, LocalModel, OneModel, mean_model
from catchment.learning.losses import squared_distance
from catchment.learning.training import fit


@dataclass(frozen=True)
class FedProx(OneModel):
    """Federated averaging with a proximal term."""

    aggregates: ClassVar[bool] = True
    client_epochs: int = 1  # of local training, per round
    mu: float = 0.01  # of the proximal term, mu / 2 times the squared distance to the global weights

    def __post_init__(self) -> None:
        at_least("client_epochs", self.client_epochs, 1)

    def round(self, server: Server, state: GlobalState, fleet: Fleet) -> None:
        """Send the model to the cohort, average what comes back."""
        bodies = dict.fromkeys(fleet.cohort(), GlobalModel(state.weights))
        replies = fleet.ask(self.local_training, bodies, in_order=True)
        state.weights = mean_model(server, replies) or state.weights

    @on_client
    def local_training(self, client: Client, request: GlobalModel) -> LocalModel:
        """Some epochs of the task's loss, held back towards the global weights (equation 2 of the paper)."""
        model = client.model(request.weights)
        anchor = {name: tensor.to(client.world.device) for name, tensor in request.weights.items()}

        def h_k(batch: Batch) -> Tensor:
            return client.task.loss(model(batch.images), batch.labels) + self.mu / 2 * squared_distance(model, anchor)

        loss = fit(client.optimizer(model), client.batches(epochs=self.client_epochs), h_k)
        return LocalModel(model.state_dict(), len(client.train), loss)
