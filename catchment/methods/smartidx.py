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

import torch.nn.functional as F

from catchment.client import Client
from catchment.errors import ExperimentError, at_least
from catchment.fleet import Fleet
from catchment.method import on_client
from catchment.server import Server
from catchment.training import fit
from catchment.weights import (
    GlobalModel,
    GlobalState,
    LocalParameters,
    OneModel,
    buffers_of,
    mean_model,
    parameters_of,
)


@dataclass(frozen=True)
class SmartIdx(OneModel[GlobalState]):
    """The largest changes, in packages of kernels, patterns and single numbers."""

    aggregates: ClassVar[bool] = True
    client_epochs: int = 1
    share: float = 1 / 32  # of the numbers of a tensor that are chosen

    def __post_init__(self) -> None:
        at_least("client_epochs", self.client_epochs, 1)
        if not 0 < self.share <= 1:
            raise ExperimentError(f"share is {self.share}; a number above 0 up to 1 is expected")

    @property
    def codecs(self) -> tuple[str, ...]:
        """Changes, with what was left out before, in packages."""
        return (f"up:weights/*=update+feedback+smartidx({self.share})",)

    def init(self, server: Server) -> GlobalState:
        """The first weights of the clients' model."""
        return GlobalState(server.world.client_architecture(0).probe.initial)

    def round(self, server: Server, state: GlobalState, fleet: Fleet) -> None:
        """Send the model to the cohort, average what comes back."""
        bodies = dict.fromkeys(fleet.cohort(), GlobalModel(state.weights))
        replies = fleet.ask(self.local_training, bodies, in_order=True)
        state.weights = mean_model(server, replies, state.weights) or state.weights

    @on_client
    def local_training(self, client: Client, request: GlobalModel) -> LocalParameters:
        """Some epochs of cross-entropy from the global weights."""
        model = client.model(request.weights)
        loss = fit(
            client.optimizer(model),
            client.batches(epochs=self.client_epochs),
            lambda batch: F.cross_entropy(model(batch.images), batch.labels),
        )
        return LocalParameters(parameters_of(model), buffers_of(model), len(client.train), loss)
