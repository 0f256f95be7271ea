"""Fed-KGF: Li et al., Representative Kernels-based CNN for Faster Transmission in Federated Learning.

Convolutions keep m base kernels and generate the others (`catchment.models.kgf`), so that the model that travels is
small. Of the trained models each client uploads another group of modules, by a fresh permutation a round; the server
assembles the global model of them and averages nothing.

Departures: alpha and beta are drawn once, from a seed that all share; Algorithm 1 draws new ones for every batch, of
which the global model, and every other client, would know nothing. The statistics of batch normalisation belong to
their module. A linear layer begins a module as a convolution does, which gives ResNet-18 the 18 modules that the paper
counts. With more clients than modules, those without a group are not asked in that round.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from catchment.core.architecture import Architecture
from catchment.core.client import Client
from catchment.core.declarations import Loss, client_weights, like
from catchment.core.fleet import Fleet
from catchment.core.method import on_client
from catchment.core.replies import Reply
from catchment.core.server import Server
from catchment.data import Batch
from catchment.errors import ExperimentError, at_least
from catchment.exchange.payload import Payload
from catchment.families import checks
from catchment.families.weights import GlobalState, OneModel
from catchment.learning.losses import squared_distance
from catchment.learning.training import fit
from catchment.models import generating, modules_of
from catchment.randomness import torch_generator

Item = TypeVar("Item")


@dataclass(frozen=True)
class Task(Payload):
    """The global model, down, and which modules of it are wanted back."""

    weights: dict[str, Tensor]
    group: int
    groups: int


@dataclass(frozen=True)
class Modules(Payload):
    """The modules of one group, up."""

    weights: Annotated[dict[str, Tensor], like(client_weights, part=True)]
    loss: Loss


@dataclass(frozen=True)
class FedKGF(OneModel):
    """Base kernels, and permutation module upload."""

    client_epochs: int = 1
    kernels: int = 16  # m; 0: the model as it is, for module upload alone
    sign: bool = True  # of equation 2
    bias: bool = True  # alpha of equation 2
    mu: float = 0.0  # of FedProx's term; 0: none

    def __post_init__(self) -> None:
        at_least("client_epochs", self.client_epochs, 1)
        at_least("kernels", self.kernels, 0)
        at_least("mu", self.mu, 0)
        if not self.kernels and not (self.sign and self.bias):
            raise ExperimentError("sign and bias are of generated kernels, and kernels = 0 generates none")

    def client_name(self, model: str) -> str:
        """The model with m base kernels per convolution."""
        return generating(model, self.kernels, self.sign, self.bias) if self.kernels else model

    def round(self, server: Server, state: GlobalState, fleet: Fleet) -> None:
        """Give every client a group by a fresh permutation, assemble what comes back; what does not stays as it was."""
        cohort = fleet.cohort()
        modules = modules_of_clients(server.world.client_architecture(0))
        count = min(len(cohort), len(modules))
        order = torch.randperm(len(cohort), generator=torch_generator(server.seed("permutation"))).tolist()
        bodies = {cohort[order[group]]: Task(state.weights, group, count) for group in range(count)}

        def accept(reply: Reply[Modules]) -> str:
            group = bodies[reply.client].group
            names = [name for module in in_groups(modules, count)[group] for name in module]
            return checks.names(reply.body.weights, names, f"the modules of group {group}")

        for reply in fleet.ask(self.local_training, bodies, accept=accept):
            state.weights = {**state.weights, **reply.body.weights}

    @on_client
    def local_training(self, client: Client, request: Task) -> Modules:
        """Some epochs of cross-entropy from the global weights; generated kernels are left behind."""
        model = client.model(request.weights)
        anchor = {name: tensor.to(client.world.device) for name, tensor in request.weights.items()}

        def objective(batch: Batch) -> Tensor:
            loss = F.cross_entropy(model(batch.images), batch.labels)
            return loss + self.mu / 2 * squared_distance(model, anchor) if self.mu else loss

        loss = fit(client.optimizer(model), client.batches(epochs=self.client_epochs), objective)
        modules = in_groups(modules_of_clients(client.world.client_architecture(client.id)), request.groups)
        weights = model.state_dict()
        return Modules({name: weights[name] for module in modules[request.group] for name in module}, loss)


@functools.lru_cache(maxsize=64)
def modules_of_clients(architecture: Architecture) -> list[list[str]]:
    """The modules of a model, each by the names of its tensors."""
    return modules_of(architecture.build(), architecture.shape)


def in_groups(items: Sequence[Item], count: int) -> list[list[Item]]:
    """Consecutive items in `count` groups, whose sizes differ by at most one; the first ones are the larger."""
    size, larger = divmod(len(items), count)
    starts = [group * size + min(group, larger) for group in range(count + 1)]
    return [list(items[start:end]) for start, end in itertools.pairwise(starts)]
