"""A transport for tests: answers come from a function, in any order, at any time, or never."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from catchment.core.transport import Snapshot, Transport
from catchment.exchange.request import Request, Response


class Fake(Transport):
    """Clients reply what `answer` returns. `when(request)` is the time of arrival; None means never."""

    def __init__(
        self,
        clients: int,
        answer: Callable[[Request], Response],
        when: Callable[[Request], float | None] = lambda request: 0.0,
    ) -> None:
        self.pushed: list[Request] = []
        self._clients = clients
        self._answer = answer
        self._when = when
        self._now = 0.0
        self._flying: list[tuple[float, int, Request]] = []

    @property
    def now(self) -> float:
        """Seconds, moved by `pull` alone."""
        return self._now

    def roster(self, round: int) -> Sequence[int]:
        """Everybody."""
        return range(self._clients)

    def push(self, requests: Sequence[Request]) -> None:
        """Remember requests and when they will be answered."""
        for request in requests:
            self.pushed.append(request)
            delay = self._when(request)
            if delay is not None:
                self._flying.append((self._now + delay, len(self.pushed), request))

    def pull(self, until: float) -> Response | None:
        """The earliest answer."""
        self._flying.sort(key=lambda item: item[:2])
        if not self._flying or self._flying[0][0] > until:
            if until < float("inf"):
                self._now = max(self._now, until)
            return None
        at, _, request = self._flying.pop(0)
        self._now = max(self._now, at)
        return self._answer(request)

    def snapshot(self, before: Callable[[int], int]) -> Snapshot:
        """The clock."""
        return Snapshot(self._now)

    def restore(self, snapshot: Snapshot) -> None:
        """The clock."""
        self._now = snapshot.now

    def close(self) -> None:
        """Nothing to release."""
