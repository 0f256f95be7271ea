"""How far clients drift apart in a round, and what becomes of their models when they are averaged or assembled."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from catchment.core.fleet import Fleet
from catchment.core.server import Server
from catchment.families.weights import GlobalModel, GlobalState
from catchment.learning.averaging import WeightedMean
from catchment.learning.training import Weights
from catchment.methods.fedavg import FedAvg
from catchment.methods.fedkgf import in_groups, modules_of_clients
from catchment.randomness import torch_generator


@dataclass(frozen=True)
class Drift(FedAvg):
    """All clients send all weights; the server averages them, or takes each module from one client as Fed-KGF does."""

    assembled: bool = False
    every: int = 10  # rounds between two measurements
    images: int = 1000  # of the test set, for these

    def round(self, server: Server, state: GlobalState, fleet: Fleet) -> None:
        """Local training, a new global model, and now and then a look at both."""
        bodies = dict.fromkeys(fleet.cohort(), GlobalModel.of(server.client_architecture(0), state.weights))
        local = [reply.body for reply in fleet.ask(self.local_training, bodies, in_order=True)]
        mean = WeightedMean()
        for body in local:
            mean.add(body.whole, weight=body.samples)
        before, averaged = state.weights, mean.value()
        state.weights = self.assembly(server, [body.whole for body in local]) if self.assembled else averaged
        if server.round % self.every == 0:
            steps = fmean(distance(body.whole, before) for body in local)
            server.notes = {
                "drift": fmean(distance(body.whole, averaged) for body in local) / steps,
                "step": distance(state.weights, before) / steps,
                "local": fmean(self.accuracy(server, body.whole) for body in local),
                "global": self.accuracy(server, state.weights),
            }

    def assembly(self, server: Server, local: list[Weights]) -> Weights:
        """Each module of one client, by a fresh permutation."""
        groups = in_groups(modules_of_clients(server.client_architecture(0)), len(local))
        order = torch.randperm(len(local), generator=torch_generator(server.seed("permutation"))).tolist()
        return {name: local[owner][name] for owner, group in zip(order, groups) for names in group for name in names}

    def accuracy(self, server: Server, weights: Weights) -> float:
        """On the first test images."""
        some = server.test.select(torch.arange(self.images))
        return server.evaluate(server.client_model(0, weights), some).accuracy


def distance(one: Weights, other: Weights) -> float:
    """The Euclidean distance of the weights; statistics of batch normalisation do not count."""
    names = [name for name, w in one.items() if w.dtype.is_floating_point and "running" not in name]
    squares: list[Tensor] = [(one[name] - other[name]).square().sum() for name in names]
    return float(torch.stack(squares).sum().sqrt())
