"""From a response to the method: decode, filter, check, unpack. What cannot be used is counted and explained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from catchment.codecs import Wire
from catchment.core.expectations import Expectations
from catchment.core.filters import ReceivedReply, ReplyFilter
from catchment.core.inflight import Arrival
from catchment.core.method import Method, contract
from catchment.core.outcomes import Outcomes, reason
from catchment.core.stopwatch import Stopwatch
from catchment.exchange.message import Message
from catchment.exchange.payload import Payload
from catchment.exchange.request import Request

Answered = TypeVar("Answered", bound=Payload)


class Reply(NamedTuple, Generic[Answered]):
    """One client's answer."""

    client: int
    round: int  # in which it was asked
    body: Answered
    handler: str = ""  # that gave it


Accept = Callable[[Reply[Answered]], str]  # why a reply cannot be used; "" if it can
ReplyObserver = Callable[[Request, Message], None]  # sees training replies as the method will


class Reception:
    """Turns responses into replies for the method: attacks come before the server's check, inspection after it."""

    def __init__(
        self,
        method: Method[Any],
        expectations: Expectations,
        wire: Wire,
        outcomes: Outcomes,
        attack: ReplyFilter | None = None,
        inspection: ReplyFilter | None = None,
        stopwatch: Stopwatch | None = None,
    ) -> None:
        self._method = type(method)
        self._expectations = expectations
        self._wire = wire
        self._stopwatch = stopwatch or Stopwatch()
        self._outcomes = outcomes
        self._filters = [step for step in (attack, self._check, inspection) if step is not None]

    def replies(
        self, arrivals: Iterable[Arrival], aside: bool, observe: ReplyObserver | None = None
    ) -> Iterator[tuple[int, Reply[Any] | None]]:
        """By client, the reply that the method gets, or None."""
        received: Iterable[ReceivedReply] = map(self._decode, arrivals)
        for step in (self._check,) if aside else self._filters:
            received = step(received, self._outcomes)
        for request, message in received:
            reply = None if message is None else self._unpack(request, message)
            if observe is not None and message is not None and reply is not None and not aside:
                observe(request, message)
            yield request.client, reply

    def _decode(self, arrival: Arrival) -> ReceivedReply:
        request, response, _ = arrival
        if response.body is None:
            (self._outcomes.failed if response.failed else self._outcomes.lost)(request, response.error)
            return ReceivedReply(request, None)
        try:
            return ReceivedReply(request, self._decoded(request, response.body))
        except Exception as error:  # a client's bytes, whatever they do to the decoder
            return self._refused(request, reason(error))

    def _decoded(self, request: Request, body: Message) -> Message:
        if request.aside or not self._wire.rules:
            return body
        with self._stopwatch.during("wire"):
            base = self._wire.decode(request.body, "down")
            return self._wire.decode(body, "up", base, partial(self._expectations.refuses, request))

    def _check(self, replies: Iterable[ReceivedReply], outcomes: Outcomes) -> Iterator[ReceivedReply]:
        """Refuse replies that do not fit what is expected of their handler, architecture and request."""
        for received in replies:
            if received.message is None:
                yield received
                continue
            try:
                why = self._expectations.misfit(received.request, received.message)
            except Exception as error:
                why = reason(error)
            yield self._refused(received.request, why) if why else received

    def _unpack(self, request: Request, message: Message) -> Reply[Any] | None:
        try:
            body = contract(self._method, request.handler).reply.unpack(message)
        except Exception as error:
            self._refused(request, reason(error))
            return None
        self._outcomes.answered()
        return Reply(request.client, request.round, body, request.handler)

    def _refused(self, request: Request, why: str) -> ReceivedReply:
        self._outcomes.refused(request.client, request.handler, why)
        return ReceivedReply(request, None)


def ordered(
    replies: Iterable[tuple[int, Reply[Answered] | None]], clients: Sequence[int]
) -> Iterator[tuple[int, Reply[Answered] | None]]:
    """The same in the order of `clients`, holding replies that come early; clients without one are skipped."""
    turn = 0
    early: dict[int, Reply[Answered] | None] = {}
    for client, reply in replies:
        early[client] = reply
        while turn < len(clients) and clients[turn] in early:
            yield clients[turn], early.pop(clients[turn])
            turn += 1
    for client in clients[turn:]:
        if client in early:
            yield client, early.pop(client)
