"""Fed-KGF: Li et al., Representative Kernels-based CNN for Faster Transmission in Federated Learning.

Convolutions keep m base kernels and generate the others, so that the model that travels is small: in the model's name,
`kgf(resnet18,16)` (`catchment.models.kgf`). Of the trained models each client uploads another group of modules, by a
fresh permutation per round; the server assembles the global model of them and averages nothing.

Departures: alpha and beta are drawn once, from a seed that all share. Algorithm 1 generates kernels inside the loop
over epochs, which are our rounds: with `kgf(resnet18,16,redraw)` new ones are drawn in every round, the same for all.
(New ones for every batch, as the loop can be read, too, would be known neither to the global model nor to other
clients.) Alpha is uniform from 0.00001 to 0.1; `kgf(resnet18,16,decades)` draws its logarithm. The statistics of batch
normalisation belong to their module. A linear layer begins a module as a convolution does, which gives ResNet-18 the
18 modules that the paper counts. With more clients than modules, those without a group are not asked in that round.
`average_last`, which is not in the paper, takes from all what carries one client's classes otherwise.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeVar

import torch
from torch import Tensor

from catchment.core.architecture import Architecture
from catchment.core.client import Client
from catchment.core.declarations import Loss, Samples, client_weights, like
from catchment.core.fleet import Fleet
from catchment.core.intake import Reply
from catchment.core.method import on_client
from catchment.core.server import Server
from catchment.exchange.payload import Payload
from catchment.families import checks
from catchment.families.weights import GlobalState
from catchment.learning.averaging import WeightedMean
from catchment.learning.losses import proximal
from catchment.methods.fedavg import FedAvg
from catchment.models import modules_of
from catchment.models.kgf import KernelGeneration
from catchment.randomness import torch_generator
from catchment.reading import NonNegative

Item = TypeVar("Item")


@dataclass(frozen=True)
class Task(Payload):
    """The global model, down, and which modules of it are wanted back."""

    weights: dict[str, Tensor]
    group: int  # none of them if it is the number of groups
    groups: int


@dataclass(frozen=True)
class Modules(Payload):
    """The modules of one group, up, and what is averaged."""

    weights: Annotated[dict[str, Tensor], like(client_weights, part=True)]
    loss: Loss
    samples: Samples | None = None  # if something is averaged


@dataclass(frozen=True)
class FedKGF(FedAvg):
    """Permutation module upload, of a model with base kernels."""

    aggregates: ClassVar[bool] = False
    client_form: ClassVar[str] = "kgf({})"
    mu: NonNegative = 0.0
    """The weight of FedProx's term; 0: none."""
    average_last: bool = False
    """Everybody uploads the last module, and the global model has the mean."""

    def round(self, server: Server, state: GlobalState, fleet: Fleet) -> None:
        """Give every client a group by a fresh permutation, assemble what comes back; what does not stays as it was."""
        cohort = fleet.cohort()
        architecture = server.client_architecture(0)
        drawn = {name: torch.full_like(state.weights[name], server.round) for name in draws_of_clients(architecture)}
        state.weights = {**state.weights, **drawn}
        averaged = self.averaged(architecture)
        count = min(len(cohort), len(self.dealt(architecture)))
        asked = len(cohort) if averaged else count
        order = torch.randperm(len(cohort), generator=torch_generator(server.seed("permutation"))).tolist()
        bodies = {cohort[order[place]]: Task(state.weights, min(place, count), count) for place in range(asked)}

        def accept(reply: Reply[Modules]) -> str:
            task = bodies[reply.client]
            if averaged and reply.body.samples is None:
                return "samples are not there, by which its last module is averaged"
            names = self.wanted(architecture, task)
            return checks.names(reply.body.weights, names, f"the modules of group {task.group}")

        mean = WeightedMean()
        for reply in fleet.ask(self.local_training, bodies, in_order=True, accept=accept):
            came = reply.body.weights
            state.weights = {**state.weights, **{name: w for name, w in came.items() if name not in averaged}}
            if averaged:
                mean.add({name: came[name] for name in averaged}, weight=reply.body.samples or 0)
        if mean.weight:
            state.weights = {**state.weights, **mean.value()}

    def dealt(self, architecture: Architecture) -> list[list[str]]:
        """The modules that have one owner in a round."""
        modules = modules_of_clients(architecture)
        return modules[:-1] if self.average_last else modules

    def averaged(self, architecture: Architecture) -> list[str]:
        """The names of what all participants upload."""
        return modules_of_clients(architecture)[-1] if self.average_last else []

    def wanted(self, architecture: Architecture, task: Task) -> list[str]:
        """The names of what a participant uploads."""
        groups = [*in_groups(self.dealt(architecture), task.groups), []] if task.groups else [[]]
        own = [name for module in groups[task.group] for name in module]
        return [*own, *(name for name in self.averaged(architecture) if name not in own)]

    @on_client
    def local_training(self, client: Client, request: Task) -> Modules:  # type: ignore[override]
        """Some epochs of the task's loss from the global weights; generated kernels are left behind."""
        model = client.model(request.weights)
        batches, anchor = client.batches(epochs=self.client_epochs), request.weights if self.mu else None
        loss = client.fit(proximal, model, client.optimizer(model), batches, anchor=anchor, mu=self.mu)
        weights, wanted = model.state_dict(), self.wanted(client.architecture, request)
        samples = len(client.train) if self.average_last else None
        return Modules({name: weights[name] for name in wanted}, loss, samples)


@functools.lru_cache(maxsize=64)
def modules_of_clients(architecture: Architecture) -> list[list[str]]:
    """The modules of a model, each by the names of its tensors."""
    return modules_of(architecture.build(), architecture.shape)


@functools.lru_cache(maxsize=64)
def draws_of_clients(architecture: Architecture) -> list[str]:
    """The names of the numbers that say which alpha and beta base kernels generate with, if these are redrawn."""
    parts = architecture.build().named_modules()
    drawing = [name for name, part in parts if isinstance(part, KernelGeneration) and part.draw is not None]
    return [f"{name}.draw".lstrip(".") for name in drawing]


def in_groups(items: Sequence[Item], count: int) -> list[list[Item]]:
    """Consecutive items in `count` groups, whose sizes differ by at most one; the first ones are the larger."""
    size, larger = divmod(len(items), count)
    starts = [group * size + min(group, larger) for group in range(count + 1)]
    return [list(items[start:end]) for start, end in itertools.pairwise(starts)]
