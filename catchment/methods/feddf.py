"""FedDF: Lin, Kong, Stich, Jaggi, Ensemble Distillation for Robust Model Fusion in Federated Learning, NeurIPS 2020.

A round begins as in FedAvg. Then the mean of the clients' weights is a student, which the server trains on unlabelled
public samples towards the mean of the clients' logits. Clients of several architectures (Algorithm 3): one student for
each, from the mean of its own clients, and all clients teach all students.

Departures: teachers and students see plain images, so that every teacher is asked once per round about a sample, and
its weights need not be kept; early stopping uses labels of the public test samples, where the authors hold out a part
of the training data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from math import ceil, cos, pi
from statistics import fmean
from typing import ClassVar

import torch
from torch import Tensor, nn

from catchment.client.state import ClientState
from catchment.core.client import Client
from catchment.core.fleet import Fleet
from catchment.core.intake import Reply
from catchment.core.method import Method, Metrics, on_client
from catchment.core.server import Server
from catchment.core.world import World
from catchment.data import Batch
from catchment.data.batching import batch_sizes
from catchment.errors import UserError
from catchment.families import checks
from catchment.families.logits import check_public, predictions, public_of
from catchment.families.weights import GlobalModel, LocalModel
from catchment.learning.losses import teachers_logits
from catchment.learning.optimizers import set_rate
from catchment.learning.steps import PerSample
from catchment.learning.training import Weights, copy_weights
from catchment.methods.fedavg import FedAvg
from catchment.reading import Count


@dataclass
class State:
    """The students."""

    weights: dict[str, Weights]  # by architecture


@dataclass(frozen=True)
class FedDF(Method[State]):
    """Averaging, then ensemble distillation."""

    models: ClassVar[tuple[str, ...]] = ("weights",)
    aggregates: ClassVar[bool] = True
    client_epochs: Count = 1
    """Epochs of local training per round."""
    server_steps: Count = 10_000
    """The most batches of distillation; the learning rate falls along a cosine."""
    validate_every: Count = 100
    """Steps between two measurements on public test samples."""
    stop_after: Count | None = 1000
    """Steps without a better accuracy on public test samples; without such samples, never."""

    def check(self, world: World) -> None:
        """Public data must be there."""
        check_public(world, "feddf")

    def init(self, server: Server) -> State:
        """The first weights of each architecture."""
        return State({a.name: a.facts.initial for a in server.client_architectures})

    def round(self, server: Server, state: State, fleet: Fleet) -> None:
        """Local training, a mean for each architecture, and distillation from everybody."""
        students = {a.name: GlobalModel.of(a, state.weights[a.name]) for a in server.client_architectures}
        bodies = {k: students[server.client_architecture(k).name] for k in fleet.cohort()}
        means = {name: server.aggregator.running() for name in state.weights}
        logits: dict[int, Tensor] = {}  # of each client's model, [N_0, C]

        def accept(reply: Reply[LocalModel]) -> str:
            model = server.client_model(reply.client, reply.body.whole)
            logits[reply.client] = predictions(server, model, public_of(server))
            return checks.finite(logits[reply.client], "public samples")

        teachers = []
        for reply in fleet.ask(self.local_training, bodies, in_order=True, accept=accept):
            teachers.append(logits[reply.client])
            means[server.client_architecture(reply.client).name].add(reply.body.whole, reply.body.samples)
        if not teachers:
            return
        ensemble = server.aggregator(torch.stack(teachers), by_sample=True)
        for name, mean in means.items():
            model = self.student(server, mean.value() if mean.weight else state.weights[name], name)
            state.weights[name] = self.distil(server, model, ensemble)

    @on_client
    def local_training(self, client: Client, request: GlobalModel) -> LocalModel:
        """FedAvg's, from the student's weights."""
        return FedAvg(self.client_epochs).local_training(client, request)

    def student(self, server: Server, weights: Weights, architecture: str) -> nn.Module:
        """A model of an architecture, to train or to evaluate."""
        return server.client_model(owner(server, architecture), weights)

    def distil(self, server: Server, model: nn.Module, ensemble: Tensor) -> Weights:
        """AVGLOGITS: KL(mean of the teachers || student) on public samples; the best weights, or the last."""
        public, optimizer = public_of(server), server.optimizer(model)
        teacher = PerSample(ensemble, public.ids)
        epochs = ceil(self.server_steps / len(batch_sizes(len(public), server.settings.batch_size)))

        def annealed() -> Iterator[Batch]:
            batches = server.batches(public, epochs=epochs, augment=False)
            for step, batch in enumerate(islice(batches, self.server_steps)):
                set_rate(optimizer, server.rate() * (1 + cos(pi * step / self.server_steps)) / 2)
                yield batch

        steps, held_out = annealed(), server.public_test
        best, waited, weights = -1.0, 0, Weights()
        for _ in range(ceil(self.server_steps / self.validate_every)):
            model.train()
            server.fit(teachers_logits, model, optimizer, islice(steps, self.validate_every), teacher=teacher)
            if self.stop_after is None or held_out is None:
                continue
            accuracy = server.evaluate(model, held_out).accuracy
            if accuracy > best:
                best, waited, weights = accuracy, 0, copy_weights(model)
            else:
                waited += self.validate_every
            if waited >= self.stop_after:
                break
        return weights or copy_weights(model)

    def evaluate(self, server: Server, state: State, fleet: Fleet) -> Metrics:
        """The students; every client has that of its architecture."""
        scores = {name: server.evaluate(self.student(server, w, name)) for name, w in state.weights.items()}
        return Metrics.of_clients(
            {k: scores[server.client_architecture(k).name].quality for k in fleet.clients()},
            server={key: fmean(score.as_dict()[key] for score in scores.values()) for key in ("accuracy", "loss")},
        )

    def client_model(self, server: Server, state: State, client: int, kept: ClientState) -> nn.Module:
        """The student of the client's architecture."""
        return server.client_model(client, state.weights[server.client_architecture(client).name])

    def server_model(self, server: Server, state: State) -> nn.Module:
        """The student, if there is only one."""
        if len(state.weights) > 1:
            raise UserError(
                f"feddf has a student for each of {', '.join(state.weights)}; ask for the model of a client instead"
            )
        return server.client_model(0, *state.weights.values())


def owner(server: Server, architecture: str) -> int:
    """The first client with a model of this architecture."""
    return [one.name for one in server.client_architectures].index(architecture)
