"""FedCOM and FedCOMGATE: Haddadpour et al., Federated Learning with Compression, AISTATS 2021.

Clients send what they changed in 8 bits per number; the server goes a step towards the mean. With `tracking`, a client
corrects its gradients by the difference between its own change and that of all, so that clients with unlike data do not
run apart (FedCOMGATE).

Departures: the quantiser rounds to the nearest of 256 levels, with a range for each kernel; the paper takes any
unbiased one. The mean is by number of samples. The mean change reaches a client as the difference of the global models
it is sent, which costs nothing; of a client that was left out of some rounds it is their mean. Buffers go whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from catchment.core.client import Client
from catchment.core.method import on_client
from catchment.core.server import Server
from catchment.core.world import World
from catchment.errors import ExperimentError
from catchment.families.weights import GlobalModel, GlobalState, LocalModel
from catchment.learning.steps import LossFunction, loss_function
from catchment.learning.training import Weights
from catchment.methods.fedavg import FedAvg
from catchment.reading import Positive


@loss_function
def corrected(
    outputs: Tensor,
    labels: Tensor,
    weights: Mapping[str, Tensor],
    criterion: Callable[[Tensor, Tensor], Tensor],
    correction: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """The loss of the task - delta_k w, if there is a delta_k: its gradient is g - delta_k."""
    loss = criterion(outputs, labels)
    if correction is None:
        return loss
    return loss - torch.stack([(correction[name] * w).sum() for name, w in weights.items()]).sum()


@dataclass(frozen=True)
class FedCOM(FedAvg):
    """Quantised changes, with or without local gradient tracking."""

    persistent: ClassVar[tuple[str, ...]] = ("correction", "received", "round")
    loss: ClassVar[LossFunction] = corrected
    server_rate: Positive = 1.0
    """gamma; the schedule of the server applies to it."""
    tracking: bool = False
    """FedCOMGATE: gradients are corrected by how the own change differs from the mean."""

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

    def step(self, server: Server, state: GlobalState, mean: Weights) -> None:
        """Go towards the mean; buffers become the mean."""
        buffers, gamma = server.client_architecture(0).facts.buffers, self.server_rate * server.share
        state.weights = {
            name: new if name in buffers else state.weights[name] + gamma * (new - state.weights[name])
            for name, new in mean.items()
        }

    @on_client
    def local_training(self, client: Client, request: GlobalModel) -> LocalModel:
        """Some epochs of steps along g - delta_k."""
        reply = super().local_training(client, request)
        if self.tracking:
            delta, scale = self.correction(client, request.weights), self.scale(client, client.round)
            client.state = {
                "correction": {
                    name: (request.weights[name] - w) / scale + delta.get(name, 0.0)
                    for name, w in self.quantised(client, request, reply).items()
                },
                "received": {name: request.weights[name] for name in reply.weights},
                "round": {"round": torch.tensor(client.round)},
            }
        return reply

    def given(self, client: Client, request: GlobalModel) -> dict[str, Any]:
        """delta_k, if there is one yet."""
        return {"correction": self.correction(client, request.weights) or None} if self.tracking else {}

    def quantised(self, client: Client, request: GlobalModel, reply: LocalModel) -> Weights:
        """The trained parameters as the server gets them: from these the corrections of all clients sum to zero."""
        codecs, base = client.codecs, request.pack()
        coded, _ = codecs.encode(reply.pack(), "up", {}, base)
        return LocalModel.unpack(codecs.decode(coded, "up", base)).weights

    def correction(self, client: Client, weights: Weights) -> Weights:
        """delta_k += (own change - mean change) / (eta tau); `state` holds delta_k with the own change in it."""
        if not client.state:
            return {}
        rounds = range(int(client.state["round"]["round"]), client.round)
        share = client.server_settings.schedule.share
        scale = self.server_rate * sum(share(r, client.rounds) * self.scale(client, r) for r in rounds)
        received = client.state["received"]
        return {
            name: own - (received[name] - weights[name]) / scale for name, own in client.state["correction"].items()
        }

    def scale(self, client: Client, round: int) -> float:
        """eta tau in a round: a change over it is a mean gradient."""
        eta = client.settings.rate(round, client.rounds)
        return eta * max(client.batches_per_epoch, 1) * self.client_epochs
