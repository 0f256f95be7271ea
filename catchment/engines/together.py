"""Requests that are answered in groups, where `batched` is set."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from catchment.core.together import alike, has_together, serve_together
from catchment.core.worker import WorkerCache
from catchment.core.world import World
from catchment.exchange.request import Request, Response

MOST = 128  # clients per call


class Together:
    """Groups of requests that are alike; the first of a group that is wanted is answered with all others."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._groups: dict[int, list[Request]] = {}  # by the number of a request: those that are answered with it
        self._answered: dict[int, Response] = {}  # by the number of a request

    def add(self, requests: Sequence[Request]) -> None:
        """Group requests that were sent at once."""
        self._answered.clear()
        waiting: dict[Hashable, list[Request]] = {}
        for request in requests:
            if has_together(type(self._world.method), request.handler) and not request.aside:
                key = alike(self._world, request)
                if len(waiting.get(key, ())) == MOST:
                    del waiting[key]
                group = waiting.setdefault(key, [])
                group.append(request)
                self._groups[request.sequence] = group

    def answer(self, request: Request, cache: WorkerCache) -> Response | None:
        """The response to a request; None if it has to be served by itself."""
        group = self._groups.pop(request.sequence, [])
        if request.sequence not in self._answered and len(group) > 1:
            try:
                responses = serve_together(self._world, group, cache)
            except Exception:  # of one client, which serving them one by one will name
                responses = []
            self._answered |= {response.sequence: response for response in responses}
            group.clear()
        return self._answered.pop(request.sequence, None)
