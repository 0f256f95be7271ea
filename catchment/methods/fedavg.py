"""FedAvg: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.

Every client trains the global model on its own data for some epochs; the server replaces it by the mean of the
results, weighted by the number of samples.

Departures: none. Buffers of batch normalisation, which the paper does not have, are averaged as
`catchment.learning.averaging` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from catchment.client.state import ClientState
from catchment.core.client import Client
from catchment.core.fleet import Fleet
from catchment.core.method import Method, Metrics, on_client
from catchment.core.server import Server
from catchment.core.world import World
from catchment.families.weights import GlobalModel, GlobalState, LocalModel, apart, evaluate_global
from catchment.learning.losses import task_loss
from catchment.learning.steps import LossFunction
from catchment.learning.training import Weights
from catchment.reading import Count


@dataclass(frozen=True)
class FedAvg(Method[GlobalState]):
    """Federated averaging.

    Its kin have codecs, another loss or another step of the server.
    """

    models: ClassVar[tuple[str, ...]] = ("weights",)
    any_task: ClassVar[bool] = True
    aggregates: ClassVar[bool] = True
    loss: ClassVar[LossFunction] = task_loss  # what a client minimises
    client_epochs: Count = 1
    """Epochs of local training per round."""

    def check(self, world: World) -> None:
        """Weights can be put together only if all clients have one architecture."""
        world.one_architecture(type(self).__name__.lower())

    def init(self, server: Server) -> GlobalState:
        """The first weights of the clients' model."""
        return GlobalState(server.first_weights())

    def round(self, server: Server, state: GlobalState, fleet: Fleet) -> None:
        """w = sum of n_k w_k / sum of n_k over the cohort, or what `[aggregation]` puts in the place of this mean."""
        request = GlobalModel.of(server.client_architecture(0), state.weights)
        mean = server.aggregator.running()
        for reply in fleet.ask(self.local_training, dict.fromkeys(fleet.cohort(), request), in_order=True):
            mean.add(reply.body.whole, weight=reply.body.samples)  # w_k, n_k
        if mean.weight:
            self.step(server, state, mean.value())

    def step(self, server: Server, state: GlobalState, mean: Weights) -> None:
        """The mean is the new global model."""
        state.weights = mean

    @on_client
    def local_training(self, client: Client, request: GlobalModel) -> LocalModel:
        """Some epochs from the global weights."""
        model = client.model(request.whole)
        batches = client.batches(epochs=self.client_epochs)
        loss = client.fit(self.loss, model, client.optimizer(model), batches, **self.given(client, request))
        return LocalModel(*apart(client.architecture, model.state_dict()), len(client.train), loss)

    def given(self, client: Client, request: GlobalModel) -> dict[str, Any]:
        """What the loss takes besides outputs and labels."""
        return {}

    def evaluate(self, server: Server, state: GlobalState, fleet: Fleet) -> Metrics:
        """The global model on the test set; it is every client's too."""
        return evaluate_global(server, fleet, self.server_model(server, state))

    def client_model(self, server: Server, state: GlobalState, client: int, kept: ClientState) -> nn.Module:
        """The global model."""
        return self.server_model(server, state)

    def server_model(self, server: Server, state: GlobalState) -> nn.Module:
        """The global model."""
        return server.client_model(0, state.weights)
