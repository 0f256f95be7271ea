"""The exchange that FedGEM, FedMD and their kin share: predictions of public samples, up and down.

A client of these methods keeps a model and an optimiser of its own; no weights travel, so architectures may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from catchment.core.client import Client
from catchment.core.declarations import Loss, logits
from catchment.core.fleet import Fleet
from catchment.core.method import Method, Metrics, on_client
from catchment.core.replies import Reply
from catchment.core.server import Server
from catchment.core.versions import ClientState
from catchment.core.world import World
from catchment.data import Samples
from catchment.errors import ExperimentError, ModelError
from catchment.exchange.payload import Payload
from catchment.families import checks
from catchment.families.scores import Scored, scored
from catchment.learning.evaluation import predict
from catchment.learning.training import fit
from catchment.models import is_half
from catchment.randomness import torch_generator
from catchment.tasks.quality import Quality

State = TypeVar("State")


@dataclass(frozen=True)
class Question(Payload):
    """Nothing but the handler's name."""


@dataclass(frozen=True)
class Predictions(Payload):
    """Of public samples that both sides know, in their order."""

    logits: Annotated[Tensor, logits("n <= N_0")]  # probabilities where the method says so


@dataclass(frozen=True)
class Trained(Payload):
    """A client has trained."""

    loss: Loss


# ---- what both sides know ----------------------------------------------------------------------------------------


def public_of(world: World) -> Samples:
    """The public training samples; `check_public` has seen to it that there are some."""
    assert world.data.public is not None
    return world.data.public


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


def drawn(world: World, round: int, count: int | None) -> Samples:
    """The public samples of a round, which both sides draw alike: at most `count`, all of them if None."""
    public = public_of(world)
    if count is None or count >= len(public):
        return public
    order = torch.randperm(len(public), generator=torch_generator(world.seed, "public of a round", round))
    return public.select(order[:count].sort().values)


def places(samples: Samples, ids: Tensor) -> Tensor:
    """Where in `samples`, which are in the order of ids, the samples with these ids are."""
    return torch.searchsorted(samples.index, ids.cpu())


# ---- the server --------------------------------------------------------------------------------------------------


def predictions(server: Server, model: nn.Module, samples: Samples) -> Tensor:
    """The logits `[n, C]` of the server's model on plain images."""
    size = server.world.server_optimizer.batch_size
    return predict(model, server.batches(samples, size, shuffle=False, augment=False), server.world.classes)


def gather(
    fleet: Fleet, handler: Callable[..., Predictions], bodies: Mapping[int, Payload], samples: int
) -> dict[int, Tensor]:
    """Ask for predictions of this number of samples; what came, by client."""

    def accept(reply: Reply[Predictions]) -> str:
        return checks.rows(reply.body.logits, samples)

    replies = fleet.ask(handler, bodies, in_order=True, accept=accept)
    return {reply.client: reply.body.logits for reply in replies}


def client_scores(fleet: Fleet, handler: Callable[..., Scored]) -> dict[int, Quality]:
    """Each client measures its own model where it is."""
    with fleet.aside("evaluation"):
        replies = fleet.ask(handler, dict.fromkeys(fleet.measured(), Question()), in_order=True)
        return {reply.client: reply.body.quality for reply in replies}


# ---- the client --------------------------------------------------------------------------------------------------


def train_on(
    client: Client, samples: Samples, model: nn.Module, optimizer: torch.optim.Optimizer, epochs: int
) -> float:
    """Some epochs of cross-entropy with the labels; the mean loss."""
    return fit(
        optimizer,
        client.batches(samples, epochs=epochs),
        lambda batch: F.cross_entropy(model(batch.images), batch.labels),
    )


def predictions_of(client: Client, model: nn.Module, samples: Samples) -> Tensor:
    """The logits `[n, C]` of the client's model on plain images."""
    return predict(model, client.batches(samples, shuffle=False, augment=False), client.world.classes)


# ---- what comes out ----------------------------------------------------------------------------------------------


class OwnModels(Method[State]):
    """A method whose clients keep models of their own."""

    persistent: ClassVar[tuple[str, ...]] = ("model", "optimizer")
    moving_average: ClassVar[float] = 0.99
    derives_weights: ClassVar[bool] = True

    def evaluate(self, server: Server, state: State, fleet: Fleet) -> Metrics:
        """The mean over clients, each with its own model."""
        return Metrics.of_clients(client_scores(fleet, self.test), self_reported=("accuracy", "clients"))

    @on_client
    def test(self, client: Client, request: Question) -> Scored:
        """This client's model on the global test set."""
        return Scored(**scored(client.evaluate(client.kept_model()).quality))

    def client_model(self, server: Server, state: State, client: int, kept: ClientState) -> nn.Module:
        """The client's own model."""
        return server.kept_model(client, kept)
