"""Predictions of public samples, which server and clients both have: what FedMD, FedGEM and their kin exchange.

No weights travel, so architectures may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from catchment.core.client import Client
from catchment.core.declarations import logits
from catchment.core.fleet import Fleet
from catchment.core.intake import Reply
from catchment.core.server import Server
from catchment.core.world import World
from catchment.data import Samples
from catchment.errors import ExperimentError, ModelError
from catchment.exchange.payload import Payload
from catchment.families import checks
from catchment.learning.evaluation import predict
from catchment.models import is_half
from catchment.randomness import torch_generator


@dataclass(frozen=True)
class Predictions(Payload):
    """Of public samples that both sides know, in their order."""

    logits: Annotated[Tensor, logits("n <= N_0")]  # probabilities where the method says so


def check_public(world: World, method: str) -> None:
    """These methods need public data, and a server's model, if there is one, that takes images."""
    if world.data.public is None:
        raise ExperimentError(
            f"{method} exchanges predictions of public samples, and there are none: set data.public, such as 0.5"
        )
    if world.server_model is not None and is_half(world.server_model):
        raise ModelError(
            f'models.server "{world.server_model}" is a half that takes features; {method} needs a whole model such as '
            "resnet20"
        )


# ---- alike on both sides -----------------------------------------------------------------------------------------


def public_of(side: Client | Server) -> Samples:
    """The public training samples; `check_public` has seen to it that there are some."""
    assert side.public is not None
    return side.public


def public_subset(side: Client | Server, count: int | None) -> Samples:
    """The public samples of this round, which both sides draw alike: at most `count`, all of them if None."""
    public = public_of(side)
    if count is None or count >= len(public):
        return public
    order = torch.randperm(len(public), generator=torch_generator(side.shared_seed, "public of a round", side.round))
    return public.select(order[:count].sort().values)


def predictions(side: Client | Server, model: nn.Module, samples: Samples) -> Tensor:
    """The logits `[n, C]` of a model on plain images."""
    return predict(model, side.batches(samples, shuffle=False, augment=False), side.classes)


# ---- the server --------------------------------------------------------------------------------------------------


def gather(
    fleet: Fleet, handler: Callable[..., Predictions], bodies: Mapping[int, Payload], samples: int
) -> Tensor | None:
    """Ask for predictions of this number of samples; those that came, `[K, n, C]`, or None if nobody answered."""

    def accept(reply: Reply[Predictions]) -> str:
        return checks.rows(reply.body.logits, samples)

    replies = fleet.ask(handler, bodies, in_order=True, accept=accept)
    came = [reply.body.logits for reply in replies]
    return torch.stack(came) if came else None
