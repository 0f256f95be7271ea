"""What may stand between the replies of clients and the method: lying clients, and a server that looks for them.

A filter takes the replies to one question as they come and gives them on, changed, dropped or held back. The run builds
the filters of an experiment; evaluation is not filtered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from catchment.codecs import Wire
from catchment.core.outcomes import Outcomes
from catchment.core.session import uncoded_request
from catchment.exchange.message import Message
from catchment.exchange.request import Request
from catchment.robust import AttackPlan
from catchment.robust.inspection import Inspection, Profile


class Heard(NamedTuple):
    """What a client replied to a request, on its way to the method."""

    request: Request
    message: Message | None  # None: nothing that can be used, and counted as such


class ReplyFilter(Protocol):
    """One step on the way."""

    def __call__(self, replies: Iterable[Heard], outcomes: Outcomes) -> Iterator[Heard]:
        """The replies to one question as the next step gets them; what happens to them goes to `outcomes`."""


class AttackFilter:
    """Attackers lie: their replies wait until they have seen those of the honest clients, and are then replaced."""

    def __init__(self, plan: AttackPlan, wire: Wire) -> None:
        self._plan = plan
        self._wire = wire

    def __call__(self, replies: Iterable[Heard], outcomes: Outcomes) -> Iterator[Heard]:
        """Honest replies as they come, then the lies in the order of clients."""
        honest: dict[int, Message] = {}
        waiting: dict[int, tuple[Request, Message]] = {}
        for request, message in replies:
            if message is not None and request.client in self._plan.attackers:
                waiting[request.client] = request, message
                continue
            if message is not None and self._plan.attack.needs_honest and _finite(message):
                honest[request.client] = message
            yield Heard(request, message)
        for place, (_, (request, own)) in enumerate(sorted(waiting.items())):
            lie = self._plan.lie(own, honest, uncoded_request(self._wire, request), place, len(waiting))
            if lie is not own:
                numbers = self._plan.attack.numbers(len(honest), len(waiting))
                outcomes.attacked(request, numbers, len(honest))
            yield Heard(request, lie)


class InspectionFilter:
    """The server compares the replies with each other, and drops those that stand out if it is to."""

    def __init__(self, inspection: Inspection) -> None:
        self._inspection = inspection
        self.profiles: Mapping[int, Profile] = {}  # by client: what is known of its last uploads

    def __call__(self, replies: Iterable[Heard], outcomes: Outcomes) -> Iterator[Heard]:
        """All replies, when the last one is there."""
        heard = list(replies)
        uploads = {request.client: message for request, message in heard if message is not None}
        reasons, self.profiles = self._inspection.judge(uploads, self.profiles)
        drop = self._inspection.action == "drop"
        for request, _ in heard:
            if request.client in reasons:
                outcomes.flagged(request, reasons[request.client], drop)
        for request, message in heard:
            yield Heard(request, None if drop and request.client in reasons else message)


def _finite(message: Message) -> bool:
    """Whether an attacker learns anything from it."""
    return all(bool(t.isfinite().all()) for t in message.tensors.values() if t.is_floating_point())
