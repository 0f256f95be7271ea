"""From a response to the method: decode, attack, check, inspect, unpack. What cannot be used is counted and explained.

An attack comes before the server's check, and an inspection after it. Evaluation is checked, and neither attacked nor
inspected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from catchment.codecs import Codecs
from catchment.core.expectations import Expectations
from catchment.core.inflight import Arrival
from catchment.core.method import Method, contract
from catchment.core.outcomes import Outcomes, reason
from catchment.core.stopwatch import Stopwatch
from catchment.exchange.message import Message
from catchment.exchange.payload import Payload
from catchment.exchange.request import Request
from catchment.robust import AttackPlan
from catchment.robust.inspection import Inspection, Profile

Answered = TypeVar("Answered", bound=Payload)


class Reply(NamedTuple, Generic[Answered]):
    """One client's answer."""

    client: int
    round: int  # in which it was asked
    body: Answered
    handler: str = ""  # that gave it


Accept = Callable[[Reply[Answered]], str]  # why a reply cannot be used; "" if it can
ReplyObserver = Callable[[Request, Message], None]  # sees training replies as the method will
Received = Iterator[tuple[Request, Message | None]]  # None: nothing that can be used, and counted as such


class Intake:
    """Turns arrivals into replies for the method."""

    def __init__(
        self,
        method: Method[Any],
        codecs: Codecs,
        expectations: Expectations,
        outcomes: Outcomes,
        attack: AttackPlan | None = None,
        inspection: Inspection | None = None,
        stopwatch: Stopwatch | None = None,
    ) -> None:
        self.observe: ReplyObserver | None = None
        self.profiles: Mapping[int, Profile] = {}  # by client: what the inspection knows of its last uploads
        self._method = type(method)
        self._codecs = codecs
        self._expectations = expectations
        self._outcomes = outcomes
        self._attack = attack
        self._inspection = inspection
        self._stopwatch = stopwatch or Stopwatch()

    def replies(self, arrivals: Iterable[Arrival], aside: bool) -> Iterator[tuple[int, Reply[Any] | None]]:
        """By client, the reply that the method gets, or None.

        They come as the arrivals do; those of attackers after the honest ones, and with an inspection all at the end.
        """
        received: Received = ((arrival.request, self._decoded(arrival)) for arrival in arrivals)
        if self._attack is not None and not aside:
            received = self._attacked(received, self._attack)
        received = ((request, self._checked(request, message)) for request, message in received)
        if self._inspection is not None and not aside:
            received = self._inspected(received, self._inspection)
        for request, message in received:
            yield request.client, None if message is None else self._unpacked(request, message)

    def _decoded(self, arrival: Arrival) -> Message | None:
        request, response, _ = arrival
        if response.body is None:
            (self._outcomes.failed if response.failed else self._outcomes.lost)(request, response.error)
            return None
        if request.aside or not self._codecs.rules:
            return response.body
        try:
            with self._stopwatch.during("wire"):
                base = self._codecs.decode(request.body, "down")
                return self._codecs.decode(response.body, "up", base, partial(self._expectations.refuses, request))
        except Exception as error:  # a client's bytes, whatever they do to the decoder
            self._refuse(request, reason(error))
            return None

    def _attacked(self, received: Received, plan: AttackPlan) -> Received:
        """Honest replies as they come, then the lies in the order of clients: attackers may see the honest ones."""
        honest: dict[int, Message] = {}
        waiting: dict[int, tuple[Request, Message]] = {}
        for request, message in received:
            if message is not None and request.client in plan.attackers:
                waiting[request.client] = request, message
                continue
            if message is not None and plan.attack.needs_honest and _finite(message):
                honest[request.client] = message
            yield request, message
        for place, (_, (request, own)) in enumerate(sorted(waiting.items())):
            lie = plan.lie(own, honest, self._codecs.decode(request.body, "down"), place, len(waiting))
            if lie is not own:
                numbers = plan.attack.numbers(len(honest), len(waiting))
                self._outcomes.attacked(request, numbers, len(honest))
            yield request, lie

    def _checked(self, request: Request, message: Message | None) -> Message | None:
        """The message if it is as expected of its handler, architecture and request."""
        if message is None:
            return None
        try:
            why = self._expectations.misfit(request, message)
        except Exception as error:
            why = reason(error)
        if why:
            self._refuse(request, why)
        return None if why else message

    def _inspected(self, received: Received, inspection: Inspection) -> Received:
        """All replies, when the last one is there; outliers are flagged or dropped."""
        gathered = list(received)
        uploads = {request.client: message for request, message in gathered if message is not None}
        reasons, self.profiles = inspection.judge(uploads, self.profiles)
        drop = inspection.action == "drop"
        for request, _ in gathered:
            if request.client in reasons:
                self._outcomes.flagged(request, reasons[request.client], drop)
        for request, message in gathered:
            yield request, None if drop and request.client in reasons else message

    def _unpacked(self, request: Request, message: Message) -> Reply[Any] | None:
        try:
            body = contract(self._method, request.handler).reply.unpack(message)
        except Exception as error:
            self._refuse(request, reason(error))
            return None
        self._outcomes.usable += 1
        if self.observe is not None and not request.aside:
            self.observe(request, message)
        return Reply(request.client, request.round, body, request.handler)

    def _refuse(self, request: Request, why: str) -> None:
        self._outcomes.refused(request.client, request.handler, why)


def _finite(message: Message) -> bool:
    """Whether an attacker can use it."""
    return all(bool(t.isfinite().all()) for t in message.tensors.values() if t.is_floating_point())
