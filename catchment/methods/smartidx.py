"""SmartIdx: Wu et al., Reducing Communication Cost in Federated Learning by Exploiting the CNNs Structures, AAAI 2022.

FedAvg in which a client sends the largest few numbers of what it changed, and says in few bits where they belong: whole
kernels in which most are large, patterns that many kernels share, and positions one by one, all as Golomb-coded gaps.

Departures: the paper's thresholds are not known to us; a kernel goes whole if more than half of it is chosen, and a
pattern is a package where that takes fewer bits. What is not sent is added to the next change. Buffers, and tensors too
small to gain from it, go whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from catchment.core.client import Client
from catchment.core.fleet import Fleet
from catchment.core.method import on_client
from catchment.core.server import Server
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
from catchment.learning.training import fit


@dataclass(frozen=True)
class SmartIdx(OneModel):
    """The largest changes, in packages of kernels, patterns and single numbers."""

    aggregates: ClassVar[bool] = True
    client_epochs: int = 1  # of local training, per round
    share: float = 1 / 32  # of the numbers of a tensor that are chosen

    def __post_init__(self) -> None:
        at_least("client_epochs", self.client_epochs, 1)
        if not 0 < self.share <= 1:
            raise ExperimentError(f"share is {self.share}; a number above 0 up to 1 is expected")

    @property
    def codecs(self) -> tuple[str, ...]:
        """Changes, with what was left out before, in packages."""
        return (f"up:weights/*=update+feedback+smartidx({self.share})",)

    def round(self, server: Server, state: GlobalState, fleet: Fleet) -> None:
        """Send the model to the cohort, average what comes back."""
        bodies = dict.fromkeys(fleet.cohort(), GlobalModel(state.weights))
        replies = fleet.ask(self.local_training, bodies, in_order=True)
        state.weights = mean_model(server, replies) or state.weights

    @on_client
    def local_training(self, client: Client, request: GlobalModel) -> LocalParameters:
        """Some epochs of the task's loss from the global weights."""
        model = client.model(request.weights)
        loss = fit(
            client.optimizer(model),
            client.batches(epochs=self.client_epochs),
            lambda batch: client.task.loss(model(batch.images), batch.labels),
        )
        return LocalParameters(parameters_of(model), buffers_of(model), len(client.train), loss)
