"""FedCAMS: Wang, Lin, Chen, Communication-Efficient Adaptive Federated Learning, ICML 2022.

Clients send what they changed as signs with one scale, or its largest few numbers, and keep the error for next time.
The server takes the mean for a gradient and makes a step of FedAMS, which is AMSGrad with a lower bound on v.

Departures: the scale of the signs, and the share of the largest numbers, are of each tensor, where the paper has the
whole model in one vector. The mean is by number of samples. Buffers are averaged and go whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F

from catchment.client import Client
from catchment.errors import ExperimentError, at_least
from catchment.fleet import Fleet
from catchment.method import on_client
from catchment.server import Server
from catchment.training import Weights, fit
from catchment.weights import (
    GlobalModel,
    GlobalState,
    LocalParameters,
    OneModel,
    buffers_of,
    mean_model,
    parameters_of,
)


@dataclass
class State(GlobalState):
    """What the server remembers, besides x."""

    m: Weights  # of each parameter
    v: Weights
    v_hat: Weights


@dataclass(frozen=True)
class FedCAMS(OneModel[State]):
    """Compressed changes, and an adaptive step of the server."""

    aggregates: ClassVar[bool] = True
    client_epochs: int = 1
    compressor: Literal["sign", "topk"] = "sign"
    share: float = 1 / 64  # topk: of the numbers of a tensor that are sent
    server_rate: float = 1.0  # eta
    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-3  # the least that v_hat may be

    def __post_init__(self) -> None:
        at_least("client_epochs", self.client_epochs, 1)
        if not 0 < self.share <= 1:
            raise ExperimentError(f"share is {self.share}; a number above 0 up to 1 is expected")
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            raise ExperimentError(f"beta1 and beta2 are {self.beta1} and {self.beta2}; 0 to below 1 is expected")
        for name in ("server_rate", "epsilon"):
            if not getattr(self, name) > 0:
                raise ExperimentError(f"{name} is {getattr(self, name)}; a number above 0 is expected")

    @property
    def codecs(self) -> tuple[str, ...]:
        """Changes, with the errors made before, as signs or as their largest numbers."""
        return (f"up:weights/*=update+feedback+{'sign' if self.compressor == 'sign' else f'topk({self.share})'}",)

    def init(self, server: Server) -> State:
        """The first weights of the clients' model; nothing is known of gradients."""
        architecture = server.world.client_architecture(0)
        zeros = {name: torch.zeros_like(w, device="cpu") for name, w in parameters_of(architecture.build()).items()}
        return State(architecture.probe.initial, m=zeros, v=zeros, v_hat=zeros)

    def round(self, server: Server, state: State, fleet: Fleet) -> None:
        """Algorithm 2: send the model to the cohort, average what comes back, make a step."""
        bodies = dict.fromkeys(fleet.cohort(), GlobalModel(state.weights))
        replies = fleet.ask(self.local_training, bodies, in_order=True)
        mean = mean_model(server, replies, state.weights)
        if mean is not None:
            self.step(state, mean)

    def step(self, state: State, mean: Weights) -> None:
        """FedAMS, from the mean of the clients' models; buffers become the mean."""
        delta = {name: mean[name] - state.weights[name] for name in state.m}
        state.m = {name: self.beta1 * m + (1 - self.beta1) * delta[name] for name, m in state.m.items()}
        state.v = {name: self.beta2 * v + (1 - self.beta2) * delta[name].square() for name, v in state.v.items()}
        state.v_hat = {
            name: torch.maximum(v_hat, state.v[name]).clamp_min(self.epsilon) for name, v_hat in state.v_hat.items()
        }
        moved = {
            name: state.weights[name] + self.server_rate * m / state.v_hat[name].sqrt() for name, m in state.m.items()
        }
        state.weights = {**mean, **moved}

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
