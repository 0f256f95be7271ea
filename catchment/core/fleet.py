"""The fleet: all that a method's server routine can do with the clients."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, TypeVar

from catchment.core.inflight import FOREVER
from catchment.core.replies import Accept, Reply
from catchment.core.traffic import Traffic
from catchment.errors import ProtocolError
from catchment.exchange.payload import Payload
from catchment.exchange.request import TRAINING
from catchment.randomness import numpy_generator

Asked = TypeVar("Asked", bound=Payload)
Answered = TypeVar("Answered", bound=Payload)


class Fleet:
    """The clients, as a method sees them. Missing, late and failed replies are normal: counted, never raised."""

    def __init__(
        self,
        traffic: Traffic,
        *,
        seed: int,
        fraction: float = 1.0,
        deadline: float | None = None,
        measured: int | None = None,
    ) -> None:
        """A cohort is a `fraction` of the reachable clients; replies are waited for `deadline` seconds.

        At most `measured` clients are asked for the accuracy of their own models; None: all.
        """
        self._traffic = traffic
        self._seed = seed
        self._fraction = fraction
        self._deadline = FOREVER if deadline is None else deadline
        self._measured = measured
        self._purpose = TRAINING

    @property
    def now(self) -> float:
        """Seconds since the run began, virtual where the transport simulates."""
        return self._traffic.now

    @property
    def deadline(self) -> float:
        """Seconds that replies are waited for; infinity if there is no limit."""
        return self._deadline

    def clients(self) -> Sequence[int]:
        """Everybody who can be reached in this round, busy or not."""
        return self._traffic.reachable

    def measured(self) -> Sequence[int]:
        """Who is asked for the accuracy of its own model: everybody who can be reached, or as many as are wanted."""
        return self._drawn(self._measured, "measured")

    def idle(self, among: Iterable[int] | None = None) -> list[int]:
        """Those of the reachable clients that owe no reply, and have none waiting to be taken from `arrivals`.

        `among` are the reachable clients that are of interest; all if not given.
        """
        busy = self._traffic.busy | self._traffic.waiting
        return [client for client in (self._traffic.reachable if among is None else among) if client not in busy]

    def cohort(self) -> list[int]:
        """The clients of this round: a share drawn from (seed, round), less those that still owe a reply."""
        size = max(1, round(len(self._traffic.reachable) * self._fraction)) if self._fraction < 1 else None
        busy = self._traffic.busy
        return [client for client in self._drawn(size, "cohort", self._traffic.round) if client not in busy]

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
        requests = self._traffic.send(handler.__name__, bodies, self._purpose)
        if self._purpose != TRAINING:
            until = FOREVER
        return self._accepted(self._traffic.replies(requests, until, in_order), accept)

    def tell(self, handler: Callable[[Any, Asked], Payload], bodies: Mapping[int, Asked]) -> None:
        """Ask these clients where nothing of their replies is of use."""
        for _ in self.ask(handler, bodies):
            pass

    def send(self, handler: Callable[[Any, Asked], Answered], bodies: Mapping[int, Asked]) -> None:
        """The first half of `ask`: replies come through `arrivals`, in this round or a later one."""
        if self._purpose != TRAINING:
            raise ProtocolError("send inside aside: evaluation must not leave requests behind; use ask")
        if not self._traffic.method.sends:
            name = type(self._traffic.method).__name__
            raise ProtocolError(f"{name} uses fleet.send, so its property `sends` must be True; it is False")
        self._traffic.send(handler.__name__, bodies, self._purpose)

    def arrivals(
        self,
        handler: Callable[[Any, Asked], Answered],
        *,
        count: int | None = None,
        until: float | None = None,
        accept: Accept[Answered] | None = None,
    ) -> Iterator[Reply[Answered]]:
        """Replies to `handler` as they arrive: those sent, and late ones of earlier asks.

        Stops after `count` replies, when the clock shows `until`, or when nothing is in flight any more. `accept` is
        as in `ask`; what it refuses does not count.
        """
        replies = self._traffic.arrivals(handler.__name__, FOREVER if until is None else until)
        return self._accepted(replies, accept, count)

    def refuse(self, reply: Reply[Any], reason: str) -> None:
        """Note that a reply was not accepted; the method goes on without it."""
        self._traffic.outcomes.withdrawn(reply.client, reply.handler, reason)

    def missing(self, client: int, handler: Callable[..., Any], why: str) -> None:
        """Note that the method goes on without a client."""
        self._traffic.outcomes.note("missing", client, handler.__name__, why)

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
        reachable = self._traffic.reachable
        if size is None or size >= len(reachable):
            return reachable
        drawn = numpy_generator(self._seed, *purpose).choice(len(reachable), size, replace=False)
        return sorted(reachable[place] for place in drawn.tolist())

    def _accepted(
        self, replies: Generator[Reply[Answered]], accept: Accept[Answered] | None, count: int | None = None
    ) -> Iterator[Reply[Answered]]:
        """The replies that the method accepts, `count` of them at most.

        An exception while the method holds one is blamed on that reply's client; between two, and after the last, on
        nobody.
        """
        outcomes, accepted = self._traffic.outcomes, 0
        outer = outcomes.in_use  # of a loop around this one
        with closing(replies):
            while accepted != count and (reply := next(replies, None)) is not None:
                outcomes.in_use = reply.client
                reason = accept(reply) if accept is not None else ""
                if reason:
                    self.refuse(reply, reason)
                else:
                    yield reply
                    accepted += 1
                outcomes.in_use = outer
