"""Methods, models and codec stages with one mistake each."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from catchment import Metrics, Stage, on_client
from catchment.codecs import put
from catchment.families.weights import GlobalModel, LocalModel
from catchment.methods.fedavg import FedAvg

CALLS = itertools.count(1)


@dataclass(frozen=True)
class Counts(FedAvg):
    """The process remembers something, which is in no state."""

    @on_client
    def local_training(self, client, request: GlobalModel) -> LocalModel:
        reply = super().local_training(client, request)
        return replace(reply, weights={name: w + 1e-4 * next(CALLS) for name, w in reply.weights.items()})


@dataclass(frozen=True)
class Breaks(FedAvg):
    @on_client
    def local_training(self, client, request: GlobalModel) -> LocalModel:
        if client.round == 2:
            raise LookupError("the second round")
        return super().local_training(client, request)


@dataclass(frozen=True)
class Divides(FedAvg):
    def evaluate(self, server, state, fleet):
        return Metrics(super().evaluate(server, state, fleet).accuracy, {"gain": float("nan")})


@dataclass(frozen=True)
class Waits(FedAvg):
    """Every reply is expected to come."""

    def round(self, server, state, fleet):
        cohort = fleet.cohort()
        bodies = dict.fromkeys(cohort, GlobalModel.of(server.client_architecture(0), state.weights))
        replies = {reply.client: reply.body for reply in fleet.ask(self.local_training, bodies)}
        state.weights = replies[max(cohort)].whole


def flat(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))


def drawn_elsewhere(shape, classes):
    model = flat(shape, classes)
    nn.init.constant_(model[1].bias, np.random.default_rng().normal())
    return model


def of_its_batch(shape, classes):
    return nn.Sequential(flat(shape, classes), nn.BatchNorm1d(classes, track_running_stats=False))


def one_class_more(shape, classes):
    return flat(shape, classes + 1)


def frozen(shape, classes):
    return flat(shape, classes).requires_grad_(False)


@dataclass(frozen=True)
class Rounded(Stage):
    """Loses digits and does not say so."""

    def encode(self, parts, context):
        return put(parts, parts["values"].to(torch.float16))

    def layout(self, before, count):
        return put(before, before["values"]._replace(dtype=torch.float16))

    def decode(self, parts, context):
        return put(parts, parts["values"].to(context.form.dtype))
