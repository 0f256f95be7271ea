"""Fed-KGF: Li et al., Representative Kernels-based CNN for Faster Transmission in Federated Learning.

Convolutions keep m base kernels and generate the others (`catchment.models.kgf`), so that the model that travels is
small. Of the trained models each client uploads another group of modules, by a fresh permutation per round; the server
assembles the global model of them and averages nothing.

Departures: alpha and beta are drawn once, from a seed that all share. Algorithm 1 generates kernels inside the loop
over epochs, which are our rounds: `redraw` draws new ones in every round, the same for all. (New ones for every
batch, as the loop can be read, too, would be known neither to the global model nor to other clients.) Alpha is
uniform from 0.00001 to 0.1; `decades` draws its logarithm. The statistics of batch normalisation belong to their
module. A linear layer begins a module as a convolution does, which gives ResNet-18 the 18 modules that the paper
counts. With more clients than modules, those without a group are not asked in that round. `average_last` and
`average_statistics`, which are not in the paper, take from all what carries one client's classes and images
otherwise.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

import torch
from torch import Tensor

from catchment.core.architecture import Architecture
from catchment.core.client import Client
from catchment.core.declarations import Loss, Samples, client_weights, like
from catchment.core.fleet import Fleet
from catchment.core.intake import Reply
from catchment.core.method import on_client
from catchment.core.server import Server
from catchment.data import Batch
from catchment.errors import ExperimentError, at_least
from catchment.exchange.payload import Payload
from catchment.families import checks
from catchment.families.weights import GlobalState, OneModel, buffers_of
from catchment.learning.averaging import WeightedMean
from catchment.learning.losses import squared_distance
from catchment.learning.training import Weights, fit
from catchment.models import generating, modules_of
from catchment.randomness import torch_generator

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
class FedKGF(OneModel):
    """Base kernels, and permutation module upload."""

    client_epochs: int = 1  # of local training, per round
    kernels: int = 16  # m; 0: the model as it is, for module upload alone
    sign: bool = True  # of equation 2
    bias: bool = True  # alpha of equation 2
    decades: bool = False  # alpha's logarithm is uniform, in place of alpha
    redraw: bool = False  # alpha and beta anew in every round
    mu: float = 0.0  # of FedProx's term; 0: none
    average_last: bool = False  # everybody uploads the last module, and the global model has the mean
    average_statistics: bool = False  # the same for the statistics of batch normalisation

    def __post_init__(self) -> None:
        at_least("client_epochs", self.client_epochs, 1)
        at_least("kernels", self.kernels, 0)
        at_least("mu", self.mu, 0)
        if not self.kernels and (not (self.sign and self.bias) or self.decades or self.redraw):
            raise ExperimentError(
                "sign, bias, decades and redraw are of generated kernels, and kernels = 0 generates none"
            )
        if self.decades and not self.bias:
            raise ExperimentError(
                "decades says how alpha is drawn, and bias = false leaves alpha out; drop one of them"
            )

    def client_name(self, model: str) -> str:
        """The model with m base kernels per convolution."""
        switches = {name: getattr(self, name) for name in ("sign", "bias", "decades", "redraw")}
        return generating(model, self.kernels, **switches) if self.kernels else model

    def round(self, server: Server, state: GlobalState, fleet: Fleet) -> None:
        """Give every client a group by a fresh permutation, assemble what comes back; what does not stays as it was."""
        cohort = fleet.cohort()
        architecture = server.world.client_architecture(0)
        if self.redraw:
            state.weights = with_draw(state.weights, server.round)
        averaged = self.averaged(architecture)
        count = min(len(cohort), len(self.dealt(architecture)))
        asked = len(cohort) if averaged else count
        order = torch.randperm(len(cohort), generator=torch_generator(server.seed("permutation"))).tolist()
        bodies = {cohort[order[place]]: Task(state.weights, min(place, count), count) for place in range(asked)}

        def accept(reply: Reply[Modules]) -> str:
            task = bodies[reply.client]
            if averaged and reply.body.samples is None:
                return "samples are not there, by which its last module or statistics are averaged"
            names = self.wanted(architecture, task)
            return checks.names(reply.body.weights, names, f"the modules of group {task.group}")

        mean = WeightedMean()
        for reply in fleet.ask(self.local_training, bodies, in_order=True, accept=accept):
            came = reply.body.weights
            state.weights = {**state.weights, **{name: w for name, w in came.items() if name not in averaged}}
            if averaged:
                mean.add(with_squares({name: came[name] for name in averaged}), weight=reply.body.samples or 0)
        if mean.weight:
            state.weights = {**state.weights, **without_squares(mean.value())}

    def dealt(self, architecture: Architecture) -> list[list[str]]:
        """The modules that have one owner in a round."""
        modules = modules_of_clients(architecture)
        return modules[:-1] if self.average_last else modules

    def averaged(self, architecture: Architecture) -> list[str]:
        """The names of what all participants upload."""
        last = modules_of_clients(architecture)[-1] if self.average_last else []
        return [*last, *(n for n in buffers_of_clients(architecture) if self.average_statistics and n not in last)]

    def wanted(self, architecture: Architecture, task: Task) -> list[str]:
        """The names of what a participant uploads."""
        groups = [*in_groups(self.dealt(architecture), task.groups), []] if task.groups else [[]]
        own = [name for module in groups[task.group] for name in module]
        return [*own, *(name for name in self.averaged(architecture) if name not in own)]

    @on_client
    def local_training(self, client: Client, request: Task) -> Modules:
        """Some epochs of the task's loss from the global weights; generated kernels are left behind."""
        model = client.model(request.weights)
        anchor = {name: tensor.to(client.world.device) for name, tensor in request.weights.items()}

        def objective(batch: Batch) -> Tensor:
            loss = client.task.loss(model(batch.images), batch.labels)
            return loss + self.mu / 2 * squared_distance(model, anchor) if self.mu else loss

        loss = fit(client.optimizer(model), client.batches(epochs=self.client_epochs), objective)
        architecture = client.world.client_architecture(client.id)
        weights = model.state_dict()
        samples = len(client.train) if self.averaged(architecture) else None
        return Modules({name: weights[name] for name in self.wanted(architecture, request)}, loss, samples)


@functools.lru_cache(maxsize=64)
def modules_of_clients(architecture: Architecture) -> list[list[str]]:
    """The modules of a model, each by the names of its tensors."""
    return modules_of(architecture.build(), architecture.shape)


@functools.lru_cache(maxsize=64)
def buffers_of_clients(architecture: Architecture) -> list[str]:
    """The names of a model's buffers."""
    return list(buffers_of(architecture.build()))


def with_draw(weights: Weights, draw: int) -> Weights:
    """The weights of base kernels that generate with the alpha and beta of this draw."""
    return {name: torch.full_like(w, draw) if name.endswith(".draw") else w for name, w in weights.items()}


def with_squares(tensors: Weights) -> Weights:
    """Mean squares in place of variances: their mean over clients is that of all samples, the variances' is not."""
    return {name: w + _mean_of(tensors, name).square() if _is_variance(name) else w for name, w in tensors.items()}


def without_squares(tensors: Weights) -> Weights:
    """Variances again."""
    return {
        name: (w - _mean_of(tensors, name).square()).clamp(min=0) if _is_variance(name) else w
        for name, w in tensors.items()
    }


def _is_variance(name: str) -> bool:
    return name.endswith("running_var")


def _mean_of(tensors: Weights, variance: str) -> Tensor:
    return tensors[variance.removesuffix("running_var") + "running_mean"]


def in_groups(items: Sequence[Item], count: int) -> list[list[Item]]:
    """Consecutive items in `count` groups, whose sizes differ by at most one; the first ones are the larger."""
    size, larger = divmod(len(items), count)
    starts = [group * size + min(group, larger) for group in range(count + 1)]
    return [list(items[start:end]) for start, end in itertools.pairwise(starts)]
