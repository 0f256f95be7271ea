"""What is in flight: requests without a response, and responses that nobody has taken yet.

It also numbers the requests. When a run is resumed, what was in flight is asked again, and clients discard the states
that they made after the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from catchment.core.stopwatch import Stopwatch
from catchment.core.transport import Snapshot, Transport
from catchment.exchange.message import Message
from catchment.exchange.request import TRAINING, Request, Response

FOREVER = float("inf")


class Arrival(NamedTuple):
    """A response with its request."""

    request: Request
    response: Response
    late: bool  # its ask was over when it came


@dataclass
class Pending:
    """A request without a response."""

    request: Request
    awaited: bool = True  # by an open ask, or by send; otherwise its response will be late


@dataclass(frozen=True)
class InFlightSnapshot:
    """What is in flight at a checkpoint."""

    sequence: int
    resumes: int
    pending: list[tuple[bytes, bool]]
    arrived: list[tuple[bytes, bytes, bool]]
    transport: Snapshot


@dataclass
class _Mark:
    """A request number per client: when the mark was set, that of its pending request, or else the next number."""

    default: int = 0
    of_client: dict[int, int] = field(default_factory=dict)

    def __call__(self, client: int) -> int:
        return self.of_client.get(client, self.default)


class InFlight:
    """At most one request per client, asides apart; `book` is called with every arrival."""

    def __init__(
        self, transport: Transport, book: Callable[[Arrival], None], stopwatch: Stopwatch | None = None
    ) -> None:
        self._transport = transport
        self._book = book
        self._stopwatch = stopwatch or Stopwatch()
        self.rate_drops = 0  # of the clients' learning rate, said with every request
        self._sequence = 0
        self._resumes = 0
        self._start = _Mark()  # of the time since the last resume
        self._base = _Mark()  # of the last checkpoint
        self._turns: dict[tuple[str, int], int] = {}  # by purpose and client
        self._pending: dict[int, Pending] = {}  # by client
        self._asides: dict[int, Request] = {}  # by client
        self._arrived: list[Arrival] = []

    @property
    def busy(self) -> Set[int]:
        """The clients that owe a response."""
        return self._pending.keys()

    @property
    def waiting(self) -> set[int]:
        """The clients whose response has come in time and was not taken."""
        return {arrival.request.client for arrival in self._arrived if not arrival.late}

    def begin_round(self) -> None:
        """Restart the count of turns; late responses that nobody took in the round in which they came are dropped."""
        self._turns = {}
        self._arrived = [arrival for arrival in self._arrived if not arrival.late]

    # ---- sending ----

    @property
    def sequence(self) -> int:
        """The number of the next request."""
        return self._sequence

    def add(self, client: int, handler: str, round: int, purpose: str, body: Message) -> Request:
        """A new request, in flight from now on."""
        turn = self._turns[purpose, client] = self._turns.get((purpose, client), -1) + 1
        pending, aside = self._pending.get(client), purpose != TRAINING
        # An aside sees the state before what the client is working on.
        sequence = pending.request.sequence if aside and pending else self._sequence
        request = Request(
            client,
            handler,
            round,
            turn,
            sequence,
            body,
            purpose,
            self._resumes,
            self._start(client),
            self._base(client),
            self.rate_drops,
        )
        if aside:
            self._asides[client] = request
        else:
            self._sequence += 1
            self._pending[client] = Pending(request)
        return request

    # ---- receiving ----

    def responses(self, requests: Sequence[Request], until: float) -> Generator[Arrival]:
        """The responses to these requests that come in time; what comes for others waits to be taken."""
        wanted = {(request.aside, request.client) for request in requests}
        try:
            while wanted and (arrival := self._receive(until)) is not None:
                key = (arrival.request.aside, arrival.request.client)
                if arrival.late or key not in wanted:
                    self._arrived.append(arrival)
                    continue
                wanted.discard(key)
                yield arrival
        finally:
            for aside, client in wanted:
                if aside:
                    self._asides.pop(client, None)
                elif client in self._pending:
                    self._pending[client].awaited = False

    def take(self, handler: str) -> Arrival | None:
        """The next response of a handler, late or not; None if nothing is in flight any more."""
        for place, arrival in enumerate(self._arrived):
            if arrival.request.handler == handler:
                return self._arrived.pop(place)
        while (arrived := self._receive(FOREVER)) is not None:
            if arrived.request.handler == handler:
                return arrived
            self._arrived.append(arrived)
        return None

    def _receive(self, until: float) -> Arrival | None:
        """The next response; its client is free again."""
        while (response := self._pull(until)) is not None:
            if not response.aside:
                pending = self._pending.pop(response.client)
                arrival = Arrival(pending.request, response, not pending.awaited)
            elif response.client in self._asides:
                arrival = Arrival(self._asides.pop(response.client), response, False)
            else:
                continue  # its ask was given up
            self._book(arrival)
            return arrival
        return None

    def _pull(self, until: float) -> Response | None:
        before = self._stopwatch.switch("clients")
        try:
            return self._transport.pull(until)
        finally:
            self._stopwatch.switch(before)

    # ---- checkpoints ----

    def snapshot(self) -> InFlightSnapshot:
        """What a checkpoint must hold to go on exactly."""
        return InFlightSnapshot(
            sequence=self._sequence,
            resumes=self._resumes,
            pending=[(pending.request.to_bytes(), pending.awaited) for pending in self._pending.values()],
            arrived=[(a.request.to_bytes(), a.response.to_bytes(), a.late) for a in self._arrived],
            transport=self._transport.snapshot(self._mark()),
        )

    def saved(self) -> None:
        """The snapshot is safe on disk: clients may forget what only older ones needed."""
        self._base = self._mark()

    def restore(self, snapshot: InFlightSnapshot) -> None:
        """Go on from a checkpoint: what was in flight is asked again."""
        self._sequence = snapshot.sequence
        self._resumes = snapshot.resumes + 1
        self._arrived = [
            Arrival(Request.from_bytes(request), Response.from_bytes(response), late)
            for request, response, late in snapshot.arrived
        ]
        self._pending = {}
        for raw, awaited in snapshot.pending:
            old = Request.from_bytes(raw)
            again = old._replace(resumes=self._resumes, start=old.sequence, base=old.sequence)
            self._pending[again.client] = Pending(again, awaited)
        self._start = self._mark()
        self._transport.restore(snapshot.transport)
        self.saved()
        self._transport.push([pending.request for pending in self._pending.values()])

    def _mark(self) -> _Mark:
        """For each client, the first request that a checkpoint made now does not cover."""
        return _Mark(self._sequence, {client: p.request.sequence for client, p in self._pending.items()})
