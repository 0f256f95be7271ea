"""DGC: Lin et al., Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed Training, ICLR 2018.

FedAvg in which a client sends the largest few numbers of what it changed. The others wait on the client and grow, with
momentum, until they are large enough; in its first turns a client sends more of them.

Departures: the paper compresses the gradient of every step, this the change of every round: what is written u and v
there is summed over rounds, and so is the warm-up counted, by client. The clipping is of the change, over all
parameters, to `clip` / sqrt(clients of the round). Buffers, and tensors too small to gain from it, go whole.
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
from catchment.errors import ExperimentError, at_least
from catchment.exchange.payload import Payload
from catchment.families.weights import (
    GlobalState,
    LocalParameters,
    OneModel,
    buffers_of,
    mean_model,
    parameters_of,
)
from catchment.learning.training import Weights, fit


@dataclass(frozen=True)
class ClippedTask(Payload):
    """The global model, down, and what a change may measure."""

    weights: dict[str, Tensor]
    norm: float | None = None


@dataclass(frozen=True)
class DGC(OneModel):
    """Deep gradient compression of what clients changed."""

    aggregates: ClassVar[bool] = True
    client_epochs: int = 1  # of local training, per round
    share: float = 1 / 32  # of the numbers of a tensor that are sent
    momentum: float = 0.9  # m of momentum correction; 0: none
    warmup: int = 4  # turns of a client in which it sends more: share^(turn / (warmup + 1))
    clip: float | None = None  # largest norm of a change, before it is divided by sqrt(clients of the round)

    def __post_init__(self) -> None:
        at_least("client_epochs", self.client_epochs, 1)
        at_least("warmup", self.warmup, 0)
        if not 0 < self.share <= 1 or not 0 <= self.momentum < 1:
            raise ExperimentError(
                f"share is {self.share} and momentum {self.momentum}; a share above 0 up to 1 and a momentum from 0 to "
                "below 1 are expected"
            )
        if self.clip is not None and not self.clip > 0:
            raise ExperimentError(f"clip is {self.clip}; a norm above 0 is expected")

    @property
    def codecs(self) -> tuple[str, ...]:
        """The largest of what waits, and more of it in a client's first turns."""
        return (f"up:weights/*=update+momentum({self.momentum})+topk({self.share},{self.warmup})",)

    def round(self, server: Server, state: GlobalState, fleet: Fleet) -> None:
        """Send the model to the cohort, average what comes back."""
        cohort = fleet.cohort()
        norm = None if self.clip is None else self.clip / max(len(cohort), 1) ** 0.5
        replies = fleet.ask(self.local_training, dict.fromkeys(cohort, ClippedTask(state.weights, norm)), in_order=True)
        state.weights = mean_model(server, replies) or state.weights

    @on_client
    def local_training(self, client: Client, request: ClippedTask) -> LocalParameters:
        """Some epochs of the task's loss from the global weights; the change is clipped."""
        model = client.model(request.weights)
        loss = fit(
            client.optimizer(model),
            client.batches(epochs=self.client_epochs),
            lambda batch: client.task.loss(model(batch.images), batch.labels),
        )
        weights = parameters_of(model)
        if request.norm is not None:
            weights = clipped(weights, request.weights, request.norm)
        return LocalParameters(weights, buffers_of(model), len(client.train), loss)


def clipped(weights: Weights, start: Weights, norm: float) -> Weights:
    """The weights, or a point on the way to them from `start`, no farther from there than `norm`."""
    changes = {name: weight.cpu() - start[name] for name, weight in weights.items()}
    size = float(torch.stack([change.double().square().sum() for change in changes.values()]).sum().sqrt())
    if size <= norm:
        return weights
    return {name: start[name] + norm / size * change for name, change in changes.items()}
