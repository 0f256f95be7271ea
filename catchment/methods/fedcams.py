"""FedCAMS: Wang, Lin, Chen, Communication-Efficient Adaptive Federated Learning, ICML 2022.

Clients send what they changed as signs with one scale, or its largest few numbers, and keep the error for next time.
The server takes the mean for a gradient and makes a step of FedAMS, which is AMSGrad with a lower bound on v.

Departures: the scale of the signs, and the share of the largest numbers, are of each tensor, where the paper has the
whole model in one vector. The mean is by number of samples. Buffers are averaged and go whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from catchment.core.server import Server
from catchment.families.weights import GlobalState, apart
from catchment.learning.training import Weights
from catchment.methods.fedavg import FedAvg
from catchment.reading import Positive, ShareFrom0, ShareTo1


@dataclass
class State(GlobalState):
    """What the server remembers."""

    m: Weights  # of each parameter
    v: Weights
    v_hat: Weights


@dataclass(frozen=True)
class FedCAMS(FedAvg):
    """Compressed changes, and an adaptive step of the server."""

    compressor: Literal["sign", "topk"] = "sign"
    """`sign` sends one bit per number and a scale, `topk` the largest numbers."""
    share: ShareTo1 = 1 / 64
    """For `topk`: the share of the numbers of a tensor that are sent."""
    server_rate: Positive = 1.0
    """eta; the schedule of the server applies to it."""
    beta1: ShareFrom0 = 0.9
    """The decay of m, the mean of the changes."""
    beta2: ShareFrom0 = 0.99
    """The decay of v, the mean of their squares."""
    epsilon: Positive = 1e-3
    """The least that v_hat may be."""

    @property
    def codecs(self) -> tuple[str, ...]:
        """Changes, with the errors made before, as signs or as their largest numbers."""
        return (f"up:weights/*=update+feedback+{'sign' if self.compressor == 'sign' else f'topk({self.share})'}",)

    def init(self, server: Server) -> State:
        """The first weights of the clients' model; nothing is known of gradients."""
        weights = server.first_weights()
        parameters, _ = apart(server.client_architecture(0), weights)
        zeros = {name: torch.zeros_like(w) for name, w in parameters.items()}
        return State(weights, m=zeros, v=zeros, v_hat=zeros)

    def step(self, server: Server, state: State, mean: Weights) -> None:  # type: ignore[override]  # as `init` made it
        """A step of FedAMS with rate eta, from the mean of the clients' models; buffers become the mean."""
        rate = self.server_rate * server.share
        delta = {name: mean[name] - state.weights[name] for name in state.m}
        state.m = {name: self.beta1 * m + (1 - self.beta1) * delta[name] for name, m in state.m.items()}
        state.v = {name: self.beta2 * v + (1 - self.beta2) * delta[name].square() for name, v in state.v.items()}
        state.v_hat = {
            name: torch.maximum(v_hat, state.v[name]).clamp_min(self.epsilon) for name, v_hat in state.v_hat.items()
        }
        moved = {name: state.weights[name] + rate * m / state.v_hat[name].sqrt() for name, m in state.m.items()}
        state.weights = {**mean, **moved}
