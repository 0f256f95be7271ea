"""The fleet: all that a method's server routine can do with the clients, and at the end what the run does with it.

Every request and every reply goes through here: packed, coded, numbered and counted on its way down; counted, decoded,
checked and unpacked on its way up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from catchment.codecs import Codecs
from catchment.core.expectations import Expectations
from catchment.core.inflight import FOREVER, Arrival, InFlight, InFlightSnapshot
from catchment.core.intake import Accept, Intake, Reply
from catchment.core.ledger import Ledger
from catchment.core.method import Method, contract
from catchment.core.outcomes import Outcomes
from catchment.core.stopwatch import Stopwatch
from catchment.core.transport import Transport
from catchment.errors import ProtocolError
from catchment.exchange.message import Message
from catchment.exchange.payload import Payload
from catchment.exchange.request import TRAINING, Request
from catchment.randomness import numpy_generator
from catchment.robust import AttackPlan
from catchment.robust.inspection import Inspection, Profile

Asked = TypeVar("Asked", bound=Payload)
Answered = TypeVar("Answered", bound=Payload)
Read = Generator[tuple[int, Reply[Any] | None]]  # by client what came; None: nothing that can be used


@dataclass(frozen=True)
class FleetSnapshot:
    """The fleet at a checkpoint."""

    inflight: InFlightSnapshot
    outcomes: Mapping[str, Any]  # as JSON has them
    samples: Mapping[int, int]  # of clients with data of their own, as far as they said how many
    profiles: Mapping[int, Profile]  # of the inspection, by client


class Fleet:
    """The clients, as a method sees them. Missing, late and failed replies are normal: counted, never raised."""

    def __init__(
        self,
        transport: Transport,
        method: Method[Any],
        ledger: Ledger,
        *,
        seed: int,
        fraction: float = 1.0,
        deadline: float | None = None,
        measured: int | None = None,
        codecs: Codecs | None = None,
        expectations: Expectations | None = None,
        attack: AttackPlan | None = None,
        inspection: Inspection | None = None,
        stopwatch: Stopwatch | None = None,
    ) -> None:
        """A cohort is a `fraction` of the reachable clients; replies are waited for `deadline` seconds.

        At most `measured` clients are asked for the accuracy of their own models; None: all.
        """
        self.outcomes = Outcomes()
        self.watch: Callable[[list[Request]], None] | None = None  # sees what is sent
        self._transport = transport
        self._method = method
        self._ledger = ledger
        self._seed = seed
        self._fraction = fraction
        self._deadline = FOREVER if deadline is None else deadline
        self._measured = measured
        self._codecs = codecs or Codecs()
        self._expectations = expectations or Expectations.of(method, None)
        self._stopwatch = stopwatch or Stopwatch()
        self._inflight = InFlight(transport, self._book, self._stopwatch)
        self.intake = Intake(
            method, self._codecs, self._expectations, self.outcomes, attack, inspection, self._stopwatch
        )
        self._round = 0
        self._purpose = TRAINING

    @property
    def now(self) -> float:
        """Seconds since the run began, virtual where the transport simulates."""
        return self._transport.now

    @property
    def deadline(self) -> float:
        """Seconds that replies are waited for; infinity if there is no limit."""
        return self._deadline

    def clients(self) -> Sequence[int]:
        """Everybody who can be reached in this round, busy or not."""
        with self._stopwatch.during("clients"):  # over a network they are waited for
            return self._transport.roster(self._round)

    def measured(self) -> Sequence[int]:
        """Who is asked for the accuracy of its own model: everybody who can be reached, or as many as are wanted."""
        return self._drawn(self._measured, "measured")

    def idle(self, among: Iterable[int] | None = None) -> list[int]:
        """Those of the reachable clients that owe no reply, and have none waiting to be taken from `arrivals`.

        `among` are the reachable clients that are of interest; all if not given.
        """
        busy = self._inflight.busy | self.outcomes.suspended | self._inflight.waiting
        return [client for client in (self.clients() if among is None else among) if client not in busy]

    def cohort(self) -> list[int]:
        """The clients of this round: a share drawn from (seed, round), less those that still owe a reply."""
        size = max(1, round(len(self.clients()) * self._fraction)) if self._fraction < 1 else None
        busy = self._inflight.busy | self.outcomes.suspended
        return [client for client in self._drawn(size, "cohort", self._round) if client not in busy]

    def ask(
        self,
        handler: Callable[[Any, Asked], Answered],
        bodies: Mapping[int, Asked],
        *,
        deadline: float | None = None,
        in_order: bool = False,
        accept: Accept[Answered] | None = None,
    ) -> Iterator[Reply[Answered]]:
        """Send to these clients at once; yield replies as they arrive, until all came or `deadline` seconds passed.

        `in_order` yields them in the order of `bodies` instead, holding what comes early: for sums of floating-point
        numbers that must not depend on who is faster. `accept` says why a reply cannot be used, "" if it can; what it
        refuses is counted and not yielded.
        """
        until = self.now + (self._deadline if deadline is None else deadline)
        requests = self._push(handler.__name__, bodies)
        read = self._replies(requests, until if self._purpose == TRAINING else FOREVER)
        if in_order:
            read = _in_order(read, [request.client for request in requests])
        return self._accepted(read, accept)

    def tell(self, handler: Callable[[Any, Asked], Payload], bodies: Mapping[int, Asked]) -> None:
        """Ask these clients where nothing of their replies is of use."""
        for _ in self.ask(handler, bodies):
            pass

    def send(self, handler: Callable[[Any, Asked], Answered], bodies: Mapping[int, Asked]) -> None:
        """The first half of `ask`: replies come through `arrivals`, in this round or a later one."""
        if self._purpose != TRAINING:
            raise ProtocolError("send inside aside: evaluation must not leave requests behind; use ask")
        if not self._method.sends:
            name = type(self._method).__name__
            raise ProtocolError(f"{name} uses fleet.send, so its property `sends` must be True; it is False")
        self._push(handler.__name__, bodies)

    def arrivals(
        self,
        handler: Callable[[Any, Asked], Answered],
        *,
        count: int | None = None,
        accept: Accept[Answered] | None = None,
    ) -> Iterator[Reply[Answered]]:
        """Replies to `handler` as they arrive: those sent, and late ones of earlier asks.

        Stops after `count` replies, or when nothing is in flight any more. `accept` is as in `ask`; what it refuses
        does not count.
        """
        return self._accepted(self._arrived(handler.__name__), accept, count)

    def refuse(self, reply: Reply[Any], reason: str) -> None:
        """Note that a reply was not accepted; the method goes on without it."""
        self.outcomes.withdrawn(reply.client, reply.handler, reason)

    def missing(self, client: int, handler: Callable[..., Any], why: str) -> None:
        """Note that the method goes on without a client."""
        self.outcomes.note("missing", client, handler.__name__, why)

    @contextmanager
    def aside(self, purpose: str) -> Iterator[None]:
        """Count what is asked inside under another purpose; it reads client states, changes nothing, takes no time.

        An aside inside an aside has the purpose of the outer one.
        """
        if not re.fullmatch("[a-z][a-z0-9_]*", purpose) or purpose == TRAINING:
            raise ProtocolError(f'"{purpose}" cannot be the purpose of an aside: use a word other than "{TRAINING}"')
        before = self._purpose
        if before == TRAINING:
            self._purpose = purpose
        try:
            yield
        finally:
            self._purpose = before

    def _drawn(self, size: int | None, *purpose: str | int) -> Sequence[int]:
        """This many of the reachable clients, ascending, drawn for a purpose; all of them if there are no more."""
        reachable = self.clients()
        if size is None or size >= len(reachable):
            return reachable
        drawn = numpy_generator(self._seed, *purpose).choice(len(reachable), size, replace=False)
        return sorted(reachable[place] for place in drawn.tolist())

    # ---- the way of a request and its reply ----

    def _push(self, handler: str, bodies: Mapping[int, Payload]) -> list[Request]:
        """Number, count and send requests to these clients, less those that are not asked any more."""
        kinds = contract(type(self._method), handler)
        training = self._purpose == TRAINING
        if training and (owing := sorted(bodies.keys() & self._inflight.busy)):
            raise ProtocolError(
                f"clients {owing} still owe a reply; a client has one request in flight (cohort() leaves them out)"
            )
        messages: dict[int, Message] = {}  # by id of a payload: one for all clients that get the same
        requests = []
        for client, body in bodies.items():
            if client in self.outcomes.suspended:
                continue
            if not isinstance(body, kinds.request):
                raise ProtocolError(
                    f"{handler} takes {kinds.request.__name__}, client {client} was sent {type(body).__name__}"
                )
            message = messages.get(id(body))
            if message is None:
                message = messages[id(body)] = self._coded(body.pack()) if training else body.pack()
            request = self._inflight.add(client, handler, self._round, self._purpose, message)
            self._ledger.book(client, "down", self._purpose, message, request.size())
            requests.append(request)
        if self.watch is not None:
            self.watch(requests)
        self._transport.push(requests)
        return requests

    def _coded(self, message: Message) -> Message:
        if not self._codecs.rules:
            return message
        with self._stopwatch.during("wire"):
            return self._codecs.encode(message, "down", {})[0]

    def _book(self, arrival: Arrival) -> None:
        """Count a response in the ledger, in the round in which it came and whatever becomes of it."""
        request, response, late = arrival
        if response.body is not None:
            named = response.body if self._expectations.knows(request, response.body) else Message({})
            self._ledger.book(request.client, "up", request.purpose, named, response.size())
        if late:
            self.outcomes.late(request)

    def _replies(self, requests: Sequence[Request], until: float) -> Read:
        """What comes of these requests, as it arrives."""
        with closing(self._inflight.responses(requests, until)) as arrivals:
            yield from self.intake.replies(arrivals, any(request.aside for request in requests))

    def _arrived(self, handler: str) -> Read:
        """What comes of requests to a handler as it arrives, whenever they were sent."""
        while (arrival := self._inflight.take(handler)) is not None:
            yield from self.intake.replies([arrival], arrival.request.aside)

    def _accepted(
        self, read: Read, accept: Accept[Answered] | None, count: int | None = None
    ) -> Iterator[Reply[Answered]]:
        """The replies that the method accepts, `count` of them at most.

        An exception while the method holds one is blamed on that reply's client; between two, and after the last, on
        nobody. Whoever leaves by `break`, or takes one by `next`, still holds it.
        """
        accepted = 0
        outer = self.outcomes.in_use  # of a loop around this one
        with closing(read):
            while accepted != count and (one := next(read, None)) is not None:
                _, reply = one
                if reply is None:
                    continue
                self.outcomes.in_use = reply.client
                reason = accept(reply) if accept is not None else ""
                if reason:
                    self.refuse(reply, reason)
                else:
                    yield reply
                    accepted += 1
                self.outcomes.in_use = outer

    # ---- for the run ----

    def begin_round(self, round: int, rate_drops: int = 0) -> None:
        """Restart turns and events; late replies that nobody took in the round in which they came are dropped.

        The clients' learning rate has dropped so often at a plateau.
        """
        self._round = round
        self._inflight.rate_drops = rate_drops
        self.outcomes.begin_round()
        self._expectations.sizes.clear()
        self._inflight.begin_round()

    def check_round(self) -> None:
        """Raise when the experiment is at fault, not one client."""
        self.outcomes.check_round(self._round, len(self.clients()))

    def round_undone(self, error: Exception) -> None:
        """The round failed on the server and was undone; the client to blame is suspended."""
        self.outcomes.round_undone(error, self._expectations.sizes.values(), len(self.clients()))

    def snapshot(self) -> FleetSnapshot:
        """What a checkpoint must hold to go on exactly, requests in flight included."""
        return FleetSnapshot(
            self._inflight.snapshot(), self.outcomes.snapshot(), dict(self._expectations.found), self.intake.profiles
        )

    def saved(self) -> None:
        """The snapshot is safe on disk: clients may forget what only older ones needed."""
        self._inflight.saved()

    def restore(self, snapshot: FleetSnapshot) -> None:
        """Go on from a checkpoint: what was in flight is asked again, and not counted again."""
        self.outcomes.restore(snapshot.outcomes)
        self._expectations.found.update(snapshot.samples)
        self.intake.profiles = dict(snapshot.profiles)
        self._inflight.restore(snapshot.inflight)


def _in_order(read: Read, clients: Sequence[int]) -> Read:
    """The same in the order of `clients`, holding replies that come early; clients without one are skipped."""
    turn = 0
    early: dict[int, Reply[Any] | None] = {}
    with closing(read):
        for client, reply in read:
            early[client] = reply
            while turn < len(clients) and clients[turn] in early:
                yield clients[turn], early.pop(clients[turn])
                turn += 1
    for client in clients[turn:]:
        if client in early:
            yield client, early.pop(client)
