"""Filters between the replies of clients and the method: simulated attacks, and the server's inspection of uploads.

A filter takes the replies to one request as they come and passes them on, changed, dropped or held back. The run builds
the filters of an experiment; evaluation is not filtered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from catchment.codecs import Wire
from catchment.core.outcomes import Outcomes
from catchment.exchange.message import Message
from catchment.exchange.request import Request
from catchment.robust import AttackPlan
from catchment.robust.inspection import Inspection, Profile


class ReceivedReply(NamedTuple):
    """A client's reply to a request, before the method gets it."""

    request: Request
    message: Message | None  # None: nothing that can be used, and counted as such


class ReplyFilter(Protocol):
    """One step between decoding a reply and the method."""

    def __call__(self, replies: Iterable[ReceivedReply], outcomes: Outcomes) -> Iterator[ReceivedReply]:
        """The replies to one request as the next step gets them; what happens to them is noted in `outcomes`."""


class AttackFilter:
    """Replaces the replies of attackers, once those of the honest clients, which attackers may see, have come."""

    def __init__(self, plan: AttackPlan, wire: Wire) -> None:
        self._plan = plan
        self._wire = wire

    def __call__(self, replies: Iterable[ReceivedReply], outcomes: Outcomes) -> Iterator[ReceivedReply]:
        """Honest replies as they come, then the lies in the order of clients."""
        honest: dict[int, Message] = {}
        waiting: dict[int, tuple[Request, Message]] = {}
        for request, message in replies:
            if message is not None and request.client in self._plan.attackers:
                waiting[request.client] = request, message
                continue
            if message is not None and self._plan.attack.needs_honest and _finite(message):
                honest[request.client] = message
            yield ReceivedReply(request, message)
        for place, (_, (request, own)) in enumerate(sorted(waiting.items())):
            lie = self._plan.lie(own, honest, self._wire.decode(request.body, "down"), place, len(waiting))
            if lie is not own:
                numbers = self._plan.attack.numbers(len(honest), len(waiting))
                outcomes.attacked(request, numbers, len(honest))
            yield ReceivedReply(request, lie)


class InspectionFilter:
    """Compares the replies with each other, and flags or drops outliers."""

    def __init__(self, inspection: Inspection) -> None:
        self._inspection = inspection
        self.profiles: Mapping[int, Profile] = {}  # by client: what is known of its last uploads

    def __call__(self, replies: Iterable[ReceivedReply], outcomes: Outcomes) -> Iterator[ReceivedReply]:
        """All replies, when the last one is there."""
        received = list(replies)
        uploads = {request.client: message for request, message in received if message is not None}
        reasons, self.profiles = self._inspection.judge(uploads, self.profiles)
        drop = self._inspection.action == "drop"
        for request, _ in received:
            if request.client in reasons:
                outcomes.flagged(request, reasons[request.client], drop)
        for request, message in received:
            yield ReceivedReply(request, None if drop and request.client in reasons else message)


def _finite(message: Message) -> bool:
    """Whether an attacker can use it."""
    return all(bool(t.isfinite().all()) for t in message.tensors.values() if t.is_floating_point())
