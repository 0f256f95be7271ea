"""The way of a response to the method: decode, filter, check, unpack. What cannot be used is counted and explained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from catchment.core.expectations import Expectations
from catchment.core.filters import Heard, ReplyFilter
from catchment.core.inflight import Arrival
from catchment.core.method import Method, contract
from catchment.core.outcomes import Outcomes, reason
from catchment.core.session import Sessions
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
Overhear = Callable[[Request, Message], None]  # sees training replies as the method will


class Reception:
    """Takes in the responses of clients. Lies are told before the server's check, and inspected after it."""

    def __init__(
        self,
        method: Method[Any],
        expectations: Expectations,
        sessions: Sessions,
        outcomes: Outcomes,
        attack: ReplyFilter | None = None,
        inspection: ReplyFilter | None = None,
    ) -> None:
        self._method = type(method)
        self._expectations = expectations
        self._sessions = sessions
        self._outcomes = outcomes
        self._filters = [step for step in (attack, self._check, inspection) if step is not None]

    def replies(
        self, arrivals: Iterable[Arrival], aside: bool, overhear: Overhear | None = None
    ) -> Iterator[tuple[int, Reply[Any] | None]]:
        """By client, what the method gets; None if it gets nothing."""
        heard: Iterable[Heard] = map(self._decode, arrivals)
        for step in (self._check,) if aside else self._filters:
            heard = step(heard, self._outcomes)
        for request, message in heard:
            reply = None if message is None else self._unpack(request, message)
            if overhear is not None and message is not None and reply is not None and not aside:
                overhear(request, message)
            yield request.client, reply

    def _decode(self, arrival: Arrival) -> Heard:
        request, response, _ = arrival
        if response.body is None:
            (self._outcomes.failed if response.failed else self._outcomes.lost)(request, response.error)
            return Heard(request, None)
        try:
            refuses = self._expectations.decodable(request)
            return Heard(request, self._sessions.decode_reply(request, response.body, refuses))
        except Exception as error:  # a client's bytes, whatever they do to the decoder
            return self._refused(request, reason(error))

    def _check(self, replies: Iterable[Heard], outcomes: Outcomes) -> Iterator[Heard]:
        """Refuse what is not as handler, architecture and request lead one to expect."""
        for heard in replies:
            if heard.message is None:
                yield heard
                continue
            try:
                why = self._expectations.misfit(heard.request, heard.message)
            except Exception as error:
                why = reason(error)
            yield self._refused(heard.request, why) if why else heard

    def _unpack(self, request: Request, message: Message) -> Reply[Any] | None:
        try:
            body = contract(self._method, request.handler).reply.unpack(message)
        except Exception as error:
            self._refused(request, reason(error))
            return None
        self._outcomes.answered()
        return Reply(request.client, request.round, body, request.handler)

    def _refused(self, request: Request, why: str) -> Heard:
        self._outcomes.refused(request.client, request.handler, why)
        return Heard(request, None)


def ordered(
    replies: Iterable[tuple[int, Reply[Answered] | None]], clients: Sequence[int]
) -> Iterator[tuple[int, Reply[Answered] | None]]:
    """The same in the order of `clients`, holding what comes early; who is missing at the end is passed over."""
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
