"""The traffic between server and clients: sent, received, counted in the ledger, and saved in checkpoints.

The run holds it; a method sees it through a `Fleet`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from catchment.codecs import Wire
from catchment.core.expectations import Expectations
from catchment.core.filters import AttackFilter, InspectionFilter
from catchment.core.inflight import Arrival, InFlight, InFlightSnapshot
from catchment.core.method import Method, contract
from catchment.core.outcomes import Outcomes
from catchment.core.replies import Reception, Reply, ReplyObserver, ordered
from catchment.core.stopwatch import Stopwatch
from catchment.core.transport import Transport
from catchment.costs.ledger import Ledger
from catchment.errors import ProtocolError
from catchment.exchange.message import Message
from catchment.exchange.payload import Payload
from catchment.exchange.request import TRAINING, Request
from catchment.robust.inspection import Profile


@dataclass(frozen=True)
class TrafficSnapshot(InFlightSnapshot):
    """The traffic at a checkpoint."""

    counts: dict[str, int]
    profiles: Mapping[int, Profile] = field(default_factory=dict)  # of the inspection, by client
    standing: dict[str, Any] = field(default_factory=dict)  # of the clients


class Traffic:
    """All messages between a method's server routine and the clients of a run."""

    def __init__(
        self,
        transport: Transport,
        method: Method[Any],
        ledger: Ledger,
        *,
        wire: Wire | None = None,
        expectations: Expectations | None = None,
        attack: AttackFilter | None = None,
        inspection: InspectionFilter | None = None,
        stopwatch: Stopwatch | None = None,
    ) -> None:
        self.round = 0
        self.watch: Callable[[list[Request]], None] | None = None  # sees what is sent
        self.observe: ReplyObserver | None = None
        self.method = method
        self.outcomes = Outcomes()
        self._transport = transport
        self._ledger = ledger
        self._expectations = expectations or Expectations.of(method, None)
        self._inspection = inspection
        self._wire = wire or Wire()
        self._stopwatch = stopwatch or Stopwatch()
        self._reception = Reception(
            method, self._expectations, self._wire, self.outcomes, attack, inspection, self._stopwatch
        )
        self._inflight = InFlight(transport, self._book, self._stopwatch)

    # ---- for the fleet ----

    @property
    def now(self) -> float:
        """Seconds since the run began, virtual where the transport simulates."""
        return self._transport.now

    @property
    def reachable(self) -> Sequence[int]:
        """The clients that can be reached in this round, ascending."""
        return self._transport.roster(self.round)

    @property
    def busy(self) -> Set[int]:
        """The clients that owe a reply, and those that are not asked any more."""
        return self._inflight.busy | self.outcomes.standing.suspended

    @property
    def waiting(self) -> Set[int]:
        """The clients whose reply has come in time and was not taken."""
        return self._inflight.waiting

    def send(self, handler: str, bodies: Mapping[int, Payload], purpose: str) -> list[Request]:
        """Send to these clients at once, less those that are not asked any more."""
        kinds = contract(type(self.method), handler)
        training = purpose == TRAINING
        if training and (owing := sorted(bodies.keys() & self._inflight.busy)):
            raise ProtocolError(
                f"clients {owing} still owe a reply; a client has one request in flight (cohort() leaves them out)"
            )
        packed: dict[int, Message] = {}  # by id of a payload: one message for all clients that get the same
        requests = []
        for client, body in bodies.items():
            if client in self.outcomes.standing.suspended:
                continue
            if not isinstance(body, kinds.request):
                raise ProtocolError(
                    f"{handler} takes {kinds.request.__name__}, client {client} was sent {type(body).__name__}"
                )
            message = packed.get(id(body))
            if message is None:
                message = packed[id(body)] = self._coded(body.pack()) if training else body.pack()
            request = self._inflight.add(client, handler, self.round, purpose, message)
            self._ledger.book(client, "down", purpose, message, request.size())
            requests.append(request)
        if self.watch is not None:
            self.watch(requests)
        self._transport.push(requests)
        return requests

    def _coded(self, body: Message) -> Message:
        if not self._wire.rules:
            return body
        with self._stopwatch.during("wire"):
            return self._wire.encode(body, "down", {})[0]

    def replies(self, requests: Sequence[Request], until: float, in_order: bool) -> Generator[Reply[Any]]:
        """The usable replies to these requests, as they arrive or in the order of the requests."""
        aside = any(request.aside for request in requests)
        with closing(self._inflight.responses(requests, until)) as arrivals:
            replies = self._reception.replies(arrivals, aside, self.observe)
            if in_order:
                replies = ordered(replies, [request.client for request in requests])
            yield from (reply for _, reply in replies if reply is not None)

    def arrivals(self, handler: str, until: float) -> Generator[Reply[Any]]:
        """The usable replies to a handler as they arrive, whenever they were asked for."""
        while (arrival := self._inflight.take(handler, until)) is not None:
            replies = self._reception.replies([arrival], arrival.request.aside, self.observe)
            yield from (reply for _, reply in replies if reply is not None)

    def _book(self, arrival: Arrival) -> None:
        """Count a response in the ledger, whatever becomes of it."""
        request, response, late = arrival
        if response.body is not None:
            named = response.body if self._expectations.knows(request, response.body) else Message({})
            self._ledger.book(request.client, "up", request.purpose, named, response.size())
        if late:
            self.outcomes.late(request)

    # ---- for the run ----

    def begin_round(self, round: int, rate_drops: int = 0) -> None:
        """Restart turns and events; late replies that nobody took in the round in which they came are dropped.

        The clients' learning rate has dropped so often at a plateau.
        """
        self.round = round
        self._inflight.rate_drops = rate_drops
        self.outcomes.begin_round()
        self._expectations.sizes.clear()
        self._inflight.begin_round()

    def check_round(self) -> None:
        """Raise when the experiment is at fault, not one client."""
        self.outcomes.check_round(self.round, len(self.reachable))

    def undone(self, error: Exception) -> None:
        """The round failed on the server and was undone; the client to blame is suspended."""
        self.outcomes.undone(error, self._expectations.sizes.values(), len(self.reachable))

    def snapshot(self) -> TrafficSnapshot:
        """What a checkpoint must hold to go on exactly, requests in flight included."""
        return TrafficSnapshot(
            **vars(self._inflight.snapshot()),
            counts=self.outcomes.counted(),
            standing={**self.outcomes.stood(), "samples": list(self._expectations.found.items())},
            profiles=self._inspection.profiles if self._inspection else {},
        )

    def saved(self) -> None:
        """The snapshot is safe on disk: clients may forget what only older ones needed."""
        self._inflight.saved()

    def restore(self, snapshot: TrafficSnapshot) -> None:
        """Go on from a checkpoint: what was in flight is asked again, and not counted again."""
        self.outcomes.restore(snapshot.counts, snapshot.standing)
        self._expectations.found.update((client, samples) for client, samples in snapshot.standing.get("samples", ()))
        if self._inspection is not None:
            self._inspection.profiles = dict(snapshot.profiles)
        self._inflight.restore(snapshot)
