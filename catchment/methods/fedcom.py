"""FedCOM and FedCOMGATE: Haddadpour et al., Federated Learning with Compression, AISTATS 2021.

Clients send what they changed in 8 bits per number; the server goes a step towards the mean. With `tracking`, a client
corrects its gradients by the difference between its own change and that of all, so that clients with unlike data do not
run apart (FedCOMGATE).

Departures: the quantiser rounds to the nearest of 256 levels, with a range for each kernel; the paper takes any
unbiased one. The mean is by number of samples. The mean change reaches a client as the difference of the global models
it is sent, which costs nothing; of a client that was left out of some rounds it is their mean. Buffers go whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from catchment.core.client import Client
from catchment.core.fleet import Fleet
from catchment.core.method import on_client
from catchment.core.server import Server
from catchment.core.world import World
from catchment.data import Batch
from catchment.errors import ExperimentError, at_least
from catchment.families.weights import (
    GlobalModel,
    GlobalState,
    LocalParameters,
    OneModel,
    buffers_of,
    mean_model,
    parameters_of,
)
from catchment.learning.training import Weights, fit


@dataclass(frozen=True)
class FedCOM(OneModel):
    """Quantised changes, with or without local gradient tracking."""

    aggregates: ClassVar[bool] = True
    persistent: ClassVar[tuple[str, ...]] = ("correction", "received", "round")
    client_epochs: int = 1  # of local training, per round
    server_rate: float = 1.0  # gamma; [optimizer.server.schedule] applies to it
    tracking: bool = False  # FedCOMGATE: gradients are corrected by how the own change differs from the mean

    def __post_init__(self) -> None:
        at_least("client_epochs", self.client_epochs, 1)
        if not self.server_rate > 0:
            raise ExperimentError(f"server_rate is {self.server_rate}; a number above 0 is expected")

    @property
    def codecs(self) -> tuple[str, ...]:
        """Changes in 8 bits per number."""
        return ("up:weights/*=update+int8(0)",)

    def check(self, world: World) -> None:
        """One architecture; and tracking divides a change by rate times steps, which is its gradient in plain SGD."""
        super().check(world)
        own = world.client_optimizer
        if self.tracking and (own.name != "sgd" or own.momentum):
            raise ExperimentError(
                f'tracking takes changes of plain SGD for gradients; [optimizer.client] is "{own.name}"'
                f'{f" with momentum {own.momentum:g}" if own.momentum else ""}: set name = "sgd" without momentum'
            )
        if self.tracking and "plateau" in (own.schedule.name, world.server_optimizer.schedule.name):
            raise ExperimentError(
                "tracking divides changes by the learning rates of past rounds, and with a plateau a client does not "
                'know them; use another schedule, such as "step" or "cosine"'
            )

    def round(self, server: Server, state: GlobalState, fleet: Fleet) -> None:
        """Send the model to the cohort, go towards the mean of what comes back."""
        bodies = dict.fromkeys(fleet.cohort(), GlobalModel(state.weights))
        replies = fleet.ask(self.local_training, bodies, in_order=True)
        mean = mean_model(server, replies)
        if mean is not None:
            w, gamma = parameters_of(server.client_model(0, state.weights)), self.server_rate * server.share
            state.weights = {
                name: state.weights[name] + gamma * (new - state.weights[name]) if name in w else new
                for name, new in mean.items()
            }

    @on_client
    def local_training(self, client: Client, request: GlobalModel) -> LocalParameters:
        """Some epochs of steps along g - delta_k."""
        model = client.model(request.weights)
        delta = self.correction(client, request.weights) if self.tracking else {}
        own = {name: tensor.to(client.world.device) for name, tensor in delta.items()}

        def corrected(batch: Batch) -> Tensor:
            loss = client.task.loss(model(batch.images), batch.labels)
            tracked = [(own[name] * w).sum() for name, w in model.named_parameters() if name in own]
            return loss - torch.stack(tracked).sum() if tracked else loss  # its gradient is g - delta_k

        loss = fit(client.optimizer(model), client.batches(epochs=self.client_epochs), corrected)
        reply = LocalParameters(parameters_of(model), buffers_of(model), len(client.train), loss)
        if self.tracking:
            scale = self.scale(client, client.round)
            client.state = {
                "correction": {
                    name: (request.weights[name] - w) / scale + delta.get(name, 0.0)
                    for name, w in self.quantised(client, request, reply).items()
                },
                "received": {name: request.weights[name] for name in reply.weights},
                "round": {"round": torch.tensor(client.round)},
            }
        return reply

    def quantised(self, client: Client, request: GlobalModel, reply: LocalParameters) -> Weights:
        """The trained parameters as the server gets them: from these the corrections of all clients sum to zero."""
        wire, base = client.world.wire, request.pack()
        coded, _ = wire.encode(reply.pack(), "up", {}, base)
        decoded = wire.decode(coded, "up", base)
        return LocalParameters.unpack(decoded).weights

    def correction(self, client: Client, weights: Weights) -> Weights:
        """delta_k += (own change - mean change) / (eta tau); `state` holds delta_k with the own change in it."""
        if not client.state:
            return {}
        rounds = range(int(client.state["round"]["round"]), client.round)
        share = client.world.server_optimizer.schedule.share
        scale = self.server_rate * sum(share(r, client.world.rounds) * self.scale(client, r) for r in rounds)
        received = client.state["received"]
        return {
            name: own - (received[name] - weights[name]) / scale for name, own in client.state["correction"].items()
        }

    def scale(self, client: Client, round: int) -> float:
        """eta tau in a round: a change over it is a mean gradient."""
        eta = client.world.client_optimizer.rate(round, client.world.rounds)
        return eta * max(client.batches_per_epoch, 1) * self.client_epochs
