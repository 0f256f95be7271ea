"""FedPM: Isik et al., Sparse Random Networks for Communication-Efficient Federated Learning, ICLR 2023.

The weights are random and stay so; what is learned is which of them to keep. A client trains a probability for each
weight and sends one draw of the mask, a bit per weight or less; the server takes the share of clients that kept a
weight for its new probability.

Departures: the paper's networks have no batch normalisation. Here convolutions and linear layers are masked, all other
parameters stay at their first values, and running statistics travel and are averaged. Weights are plus or minus the
deviation of the model's own first weights, in place of that of the paper's initialisation. The headline is of one fixed
draw of the mask. `reset_every` counts rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call

from catchment.client.state import ClientState
from catchment.core.architecture import Architecture
from catchment.core.client import Client
from catchment.core.declarations import Loss, Samples, like
from catchment.core.fleet import Fleet
from catchment.core.method import Method, Metrics, on_client
from catchment.core.server import Server
from catchment.core.world import World
from catchment.errors import ModelError
from catchment.exchange.payload import Payload
from catchment.families.weights import apart, client_buffers, evaluate_global
from catchment.learning.averaging import WeightedMean
from catchment.learning.losses import task_loss
from catchment.learning.training import Weights
from catchment.randomness import torch_generator
from catchment.reading import Count


def client_masks(world: World, client: int) -> Weights:
    """A mask for each parameter that has one."""
    architecture = world.client_architecture(client)
    return {name: architecture.facts.initial[name].bool() for name in masked(architecture)}


@dataclass(frozen=True)
class Probabilities(Payload):
    """Of keeping each weight, down."""

    theta: dict[str, Tensor]
    buffers: dict[str, Tensor]


@dataclass(frozen=True)
class Masks(Payload):
    """One draw from a client's probabilities, up."""

    masks: Annotated[dict[str, Tensor], like(client_masks, kind="masks")]
    buffers: Annotated[dict[str, Tensor], like(client_buffers)]
    samples: Samples
    loss: Loss


@dataclass
class State:
    """What the server remembers."""

    theta: Weights
    buffers: Weights
    kept: Weights = field(default_factory=dict)  # how many clients kept each weight, since the last reset
    heard: int = 0  # how many clients there were


@dataclass(frozen=True)
class FedPM(Method[State]):
    """Masks over frozen random weights."""

    models: ClassVar[tuple[str, ...]] = ("theta", "buffers")
    any_task: ClassVar[bool] = True
    derives_weights: ClassVar[bool] = True
    client_epochs: Count = 1
    """Epochs of local training per round."""
    clamp: Annotated[float, Field(gt=0, lt=0.5)] = 0.01
    """Probabilities stay as far from 0 and 1."""
    reset_every: Count = 1
    """Rounds of which the server counts masks together."""

    @property
    def codecs(self) -> tuple[str, ...]:
        """Masks as gaps between the rarer of their bits."""
        return ("up:masks/*=golomb",)

    def check(self, world: World) -> None:
        """One architecture, with something to mask."""
        if not masked(world.one_architecture("fedpm")):
            raise ModelError("fedpm masks convolutions and linear layers, and the clients' model has none")

    def init(self, server: Server) -> State:
        """Probabilities between 0 and 1, at random."""
        architecture = server.client_architecture(0)
        theta = {
            name: torch.rand(architecture.facts.initial[name].shape, generator=_generator(server, "theta", name))
            for name in masked(architecture)
        }
        return State(theta, apart(architecture, architecture.facts.initial)[1])

    def round(self, server: Server, state: State, fleet: Fleet) -> None:
        """Send probabilities to the cohort, count what is kept in the masks that come back."""
        if (server.round - 1) % self.reset_every == 0:
            state.kept, state.heard = {}, 0
        bodies = dict.fromkeys(fleet.cohort(), Probabilities(state.theta, state.buffers))
        buffers = WeightedMean()
        for reply in fleet.ask(self.local_training, bodies, in_order=True):
            state.kept = {n: state.kept.get(n, 0.0) + mask.float() for n, mask in reply.body.masks.items()}
            state.heard += 1
            buffers.add(reply.body.buffers, reply.body.samples)
        if buffers.weight:
            state.buffers = buffers.value()
            # The mode of Beta(1 + kept, 1 + heard - kept), which starts from Beta(1, 1) at each reset.
            state.theta = {name: kept / state.heard for name, kept in state.kept.items()}

    @on_client
    def local_training(self, client: Client, request: Probabilities) -> Masks:
        """Some epochs on scores s, theta = sigmoid(s); every batch sees another draw of the mask (Algorithm 1)."""
        architecture, device = client.architecture, client.device
        fixed = {name: w.to(device) for name, w in frozen(architecture).items()}
        s = {name: theta.clamp(self.clamp, 1 - self.clamp).logit() for name, theta in request.theta.items()}
        model = client.model({**architecture.facts.initial, **request.buffers, **s})  # whose parameters are scores
        draws = torch_generator(client.seed("draws"))

        def drawn(images: Tensor) -> Tensor:
            weights = {}
            for name, parameter in model.named_parameters():
                if name in s:
                    theta = parameter.sigmoid()
                    mask = (torch.rand(theta.shape, generator=draws).to(device) < theta).to(theta.dtype)
                    weights[name] = fixed[name] * (theta + (mask - theta).detach())  # straight through
                else:
                    weights[name] = fixed[name]
            outputs: Tensor = functional_call(model, weights, (images,))
            return outputs

        loss = client.fit(task_loss, drawn, client.optimizer(model), client.batches(epochs=self.client_epochs))
        weights, buffers = apart(architecture, model.state_dict())
        trained = {name: w.cpu().sigmoid() for name, w in weights.items() if name in s}
        masks = {
            name: torch.rand(theta.shape, generator=draws) < theta.clamp(self.clamp, 1 - self.clamp)
            for name, theta in trained.items()
        }
        return Masks(masks, buffers, len(client.train), loss)

    def global_weights(self, server: Server, state: State) -> Weights:
        """The frozen weights under one draw of the mask, the same in every round."""
        architecture = server.client_architecture(0)
        weights = {**architecture.facts.initial, **frozen(architecture), **state.buffers}
        for name, theta in state.theta.items():
            drawn = torch.rand(theta.shape, generator=_generator(server, "mask", name)) < theta
            weights[name] = weights[name].cpu() * drawn
        return weights

    def evaluate(self, server: Server, state: State, fleet: Fleet) -> Metrics:
        """The global model, which is every client's too."""
        return evaluate_global(server, fleet, self.server_model(server, state))

    def client_model(self, server: Server, state: State, client: int, kept: ClientState) -> nn.Module:
        """The global model."""
        return self.server_model(server, state)

    def server_model(self, server: Server, state: State) -> nn.Module:
        """The global model."""
        return server.client_model(0, self.global_weights(server, state))


def masked(architecture: Architecture) -> list[str]:
    """The parameters that have a mask."""
    weights, _ = apart(architecture, architecture.facts.initial)
    return [name for name, w in weights.items() if w.dim() >= 2]


def frozen(architecture: Architecture) -> Weights:
    """The parameters: those with a mask as signs times their deviation, the others at their first values.

    The deviation is computed in NumPy, whose order of summing does not depend on the number of threads.
    """
    weights, _ = apart(architecture, architecture.facts.initial)
    for name in masked(architecture):
        first = weights[name].contiguous()
        deviation = float(np.sqrt(np.square(first.double().numpy()).mean()))
        weights[name] = first.sign() * deviation
    return weights


def _generator(server: Server, purpose: str, name: str) -> torch.Generator:
    return torch_generator(server.shared_seed, "fedpm", purpose, name)
