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
from torch import nn

from catchment.client.state import ClientState
from catchment.core.client import Client
from catchment.core.fleet import Fleet
from catchment.core.method import Method, Metrics, on_client
from catchment.core.server import Server
from catchment.core.world import World
from catchment.errors import ExperimentError, at_least
from catchment.families.weights import (
    GlobalModel,
    LocalParameters,
    buffers_of,
    evaluate_global,
    mean_model,
    parameters_of,
)
from catchment.learning.training import Weights, fit


@dataclass
class State:
    """What the server remembers."""

    weights: Weights  # x
    m: Weights  # of each parameter
    v: Weights
    v_hat: Weights


@dataclass(frozen=True)
class FedCAMS(Method[State]):
    """Compressed changes, and an adaptive step of the server."""

    models: ClassVar[tuple[str, ...]] = ("weights",)
    any_task: ClassVar[bool] = True
    aggregates: ClassVar[bool] = True
    client_epochs: int = 1  # of local training, per round
    compressor: Literal["sign", "topk"] = "sign"  # one bit per number and a scale, or the largest numbers
    share: float = 1 / 64  # topk: of the numbers of a tensor that are sent
    server_rate: float = 1.0  # eta; [optimizer.server.schedule] applies to it
    beta1: float = 0.9  # decay of m, the mean of the changes
    beta2: float = 0.99  # decay of v, the mean of their squares
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

    def check(self, world: World) -> None:
        """All clients have the global model."""
        world.one_architecture("fedcams")

    def init(self, server: Server) -> State:
        """The first weights of the clients' model; nothing is known of gradients."""
        weights = server.first_weights()
        zeros = {name: torch.zeros_like(weights[name]) for name in parameters_of(server.client_model(0))}
        return State(weights, m=zeros, v=zeros, v_hat=zeros)

    def round(self, server: Server, state: State, fleet: Fleet) -> None:
        """Algorithm 2: send the model to the cohort, average what comes back, make a step."""
        bodies = dict.fromkeys(fleet.cohort(), GlobalModel(state.weights))
        replies = fleet.ask(self.local_training, bodies, in_order=True)
        mean = mean_model(server, replies)
        if mean is not None:
            self.step(state, mean, self.server_rate * server.share)

    def step(self, state: State, mean: Weights, rate: float) -> None:
        """FedAMS with rate eta, from the mean of the clients' models; buffers become the mean."""
        delta = {name: mean[name] - state.weights[name] for name in state.m}
        state.m = {name: self.beta1 * m + (1 - self.beta1) * delta[name] for name, m in state.m.items()}
        state.v = {name: self.beta2 * v + (1 - self.beta2) * delta[name].square() for name, v in state.v.items()}
        state.v_hat = {
            name: torch.maximum(v_hat, state.v[name]).clamp_min(self.epsilon) for name, v_hat in state.v_hat.items()
        }
        moved = {name: state.weights[name] + rate * m / state.v_hat[name].sqrt() for name, m in state.m.items()}
        state.weights = {**mean, **moved}

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

    def evaluate(self, server: Server, state: State, fleet: Fleet) -> Metrics:
        """The global model on the test set; it is every client's too."""
        return evaluate_global(server, fleet, state.weights)

    def client_model(self, server: Server, state: State, client: int, kept: ClientState) -> nn.Module:
        """The global model."""
        return self.server_model(server, state)

    def server_model(self, server: Server, state: State) -> nn.Module:
        """The global model."""
        return server.client_model(0, state.weights)
