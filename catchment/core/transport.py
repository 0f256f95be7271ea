"""The interface of transports, which carry messages between fleet and clients: in-process, Flower, a fake for tests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from catchment.client.state import ClientState
from catchment.exchange.request import Request, Response

PART = 100_000_000  # bytes; what is longer is sent over a network in several messages


def pause(waited: float) -> float:
    """Seconds until the next poll for something waited for this long: 5 % of that time, from 0.05 to 1 second."""
    return min(1.0, max(0.05, 0.05 * waited))


def parts(size: int) -> int:
    """The number of messages in which `size` bytes are sent over a network."""
    return max(1, -(-size // PART))


@dataclass(frozen=True)
class Snapshot:
    """What a transport needs to go on from a checkpoint: its clock, and client states if it holds them."""

    now: float = 0.0
    sent: Mapping[int, float] = field(default_factory=dict)  # sequence -> when a pending request was sent
    states: Mapping[int, ClientState] = field(default_factory=dict)  # of clients touched since the last snapshot


class Greeting(NamedTuple):
    """A message that a transport sent or got by itself."""

    client: int
    direction: Literal["up", "down"]
    size: int  # bytes


class Transport(ABC):
    """Carries requests to clients and responses back."""

    @property
    @abstractmethod
    def now(self) -> float:
        """Seconds since the run began, on the clock that deadlines are measured with."""

    @abstractmethod
    def roster(self, round: int) -> Sequence[int]:
        """The clients that can be reached in a round, ascending."""

    @abstractmethod
    def push(self, requests: Sequence[Request]) -> None:
        """Send requests; does not wait."""

    @abstractmethod
    def pull(self, until: float) -> Response | None:
        """The next response, or None if none comes before the clock shows `until` or nothing is in flight."""

    @abstractmethod
    def snapshot(self, before: Callable[[int], int]) -> Snapshot:
        """What a checkpoint must hold; `before(client)` is the first request that it does not cover."""

    @abstractmethod
    def restore(self, snapshot: Snapshot) -> None:
        """Go on from a checkpoint; pending requests are pushed again afterwards."""

    def news(self) -> list[dict[str, Any]]:
        """What happened to clients since the last call, beyond replies: events for the record of a round."""
        return []

    def greetings(self) -> list[Greeting]:
        """What was sent since the last call so that server and clients know each other, which no method asked for."""
        return []

    @abstractmethod
    def close(self) -> None:
        """Release threads, processes and files."""
