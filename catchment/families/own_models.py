"""Clients that keep models of their own, which may differ in architecture: how they train them and measure them.

What they send of a measurement is no sample, no label, and no count of either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn

from catchment.client.state import ClientState
from catchment.core.client import Client
from catchment.core.declarations import Loss, Values
from catchment.core.fleet import Fleet
from catchment.core.method import Method, Metrics, on_client
from catchment.core.server import Server
from catchment.exchange.payload import Payload
from catchment.tasks.quality import NUMBERS, Quality

State = TypeVar("State")
_SENT = ("accuracy", *NUMBERS)
_UNKNOWN = -1.0  # a number that was not measured


@dataclass(frozen=True)
class Question(Payload):
    """Nothing but the handler's name."""


@dataclass(frozen=True)
class Trained(Payload):
    """A client has trained."""

    loss: Loss


@dataclass(frozen=True)
class Scored(Payload):
    """A client's own model on the test set: a `Quality` in as many bytes as any other."""

    numbers: Annotated[Tensor, Values("metrics", ("7",), torch.float64, _UNKNOWN, 1)]  # accuracy first
    rates: Annotated[Tensor, Values("metrics", ("C", "C"), low=0, high=1)] | None

    @classmethod
    def of(cls, quality: Quality, **more: Any) -> Self:
        """What was measured; `more` are fields of a subclass."""
        found = [getattr(quality, name) for name in _SENT]
        numbers = [_UNKNOWN if number is None else number for number in found]
        return cls(torch.tensor(numbers, dtype=torch.float64), quality.rates, **more)

    @property
    def quality(self) -> Quality:
        """As it was measured."""
        found = dict(zip(_SENT, self.numbers.tolist()))
        known = {name: number for name, number in found.items() if number != _UNKNOWN}
        return Quality(**{"accuracy": 0.0, **known}, rates=self.rates)


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
        return Scored.of(client.evaluate(client.kept_model()).quality)

    def client_model(self, server: Server, state: State, client: int, kept: ClientState) -> nn.Module:
        """The client's own model; its first weights if it never trained."""
        return server.kept_model(client, kept)


def client_scores(fleet: Fleet, handler: Callable[..., Scored]) -> dict[int, Quality]:
    """Each client measures its own model where it is."""
    with fleet.aside("evaluation"):
        replies = fleet.ask(handler, dict.fromkeys(fleet.measured(), Question()), in_order=True)
        return {reply.client: reply.body.quality for reply in replies}
