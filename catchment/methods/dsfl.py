"""DS-FL: Itahara et al., Distillation-Based Semi-Supervised Federated Learning for Communication-Efficient
Collaborative Training with Non-IID Private Data, IEEE TMC 2021.

Clients train on private data and upload probabilities of unlabelled public samples; the server sharpens their mean
(entropy reduction aggregation); clients and a model of the server train on the public samples with these soft labels.

Departures: with `data.augment`, probabilities are of plain images, and the distillation sees augmented ones. The
server's model is that of `models.server`; without one, it is of the first client's architecture, as in the paper, where
all have the same, with first weights of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from catchment.core.architecture import Architecture
from catchment.core.client import Client
from catchment.core.fleet import Fleet
from catchment.core.method import Metrics, on_client
from catchment.core.server import Server
from catchment.core.world import World
from catchment.families.logits import Predictions, check_public, gather, predictions, public_subset
from catchment.families.own_models import OwnModels, Question, Trained, client_scores
from catchment.learning.losses import soft_labels, task_loss
from catchment.learning.steps import PerSample
from catchment.reading import Count, Positive


@dataclass
class State:
    """The server's model."""

    model: nn.Module  # w_g
    optimizer: torch.optim.Optimizer


@dataclass(frozen=True)
class DSFL(OwnModels[State]):
    """Distillation-based semi-supervised federated learning."""

    models: ClassVar[tuple[str, ...]] = ("model",)
    aggregates: ClassVar[bool] = True
    client_epochs: Count = 1
    """Epochs of the update, on private data."""
    public_epochs: Count = 1
    """Epochs of the distillation on the clients."""
    server_epochs: Count = 1
    """Epochs of the distillation on the server."""
    temperature: Positive = 0.1
    """T of entropy reduction."""
    aggregation: Literal["era", "sa"] = "era"
    """Entropy reduction, or the simple mean."""
    samples: Count | None = None
    """Public samples of a round, drawn afresh; without it, all."""

    def check(self, world: World) -> None:
        """Public data, and a server model, if any, that takes images."""
        check_public(world, "dsfl")

    def init(self, server: Server) -> State:
        """A fresh model."""
        model = server.build(self.architecture(server))
        return State(model, server.optimizer(model))

    def architecture(self, server: Server) -> Architecture:
        """Of the server's model: that of the first client, if none is named."""
        return server.architecture if server.has_whole_model else server.twin

    def round(self, server: Server, state: State, fleet: Fleet) -> None:
        """Update and predict on the clients, aggregate, then distil on both sides."""
        cohort = fleet.cohort()
        samples = public_subset(server, self.samples)
        came = gather(fleet, self.update_and_predict, dict.fromkeys(cohort, Question()), len(samples))
        if came is None:
            return
        t = server.aggregator(came, by_sample=True)  # mean of the local probabilities
        if self.aggregation == "era":
            t = era(t, self.temperature)

        batches = server.batches(samples, epochs=self.server_epochs)
        server.fit(soft_labels, state.model.train(), state.optimizer, batches, teacher=PerSample(t, samples.ids))
        fleet.tell(self.distillation, dict.fromkeys(fleet.idle(cohort), Predictions(t)))

    @on_client
    def update_and_predict(self, client: Client, request: Question) -> Predictions:
        """Training on private data, then probabilities of this round's public samples."""
        model, optimizer = client.own_model()
        client.fit(task_loss, model, optimizer, client.batches(epochs=self.client_epochs))
        client.keep(model, optimizer)
        return Predictions(predictions(client, model, public_subset(client, self.samples)).softmax(1))

    @on_client
    def distillation(self, client: Client, request: Predictions) -> Trained:
        """Cross-entropy to the soft labels."""
        model, optimizer = client.own_model()
        samples = public_subset(client, self.samples)
        batches = client.batches(samples, epochs=self.public_epochs)
        loss = client.fit(soft_labels, model, optimizer, batches, teacher=PerSample(request.logits, samples.ids))
        client.keep(model, optimizer)
        return Trained(loss)

    def evaluate(self, server: Server, state: State, fleet: Fleet) -> Metrics:
        """The server's model, and each client's own."""
        clients = client_scores(fleet, self.test)
        return Metrics.of_model(server.evaluate(state.model), clients, self_reported=("clients",))

    def server_model(self, server: Server, state: State) -> nn.Module:
        """The server's model."""
        return state.model


def era(mean: Tensor, temperature: float) -> Tensor:
    """Entropy reduction: softmax of the mean probabilities `[n, C]` over T; the lower T, the sharper."""
    return (mean / temperature).softmax(1)
