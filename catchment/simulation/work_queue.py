"""Requests that wait for a worker, and those that are being worked on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from catchment.exchange.request import Request, Response

SHORT = 0.003  # seconds; for shorter work threads cost more than they gain, as they share the interpreter lock


class WorkQueue:
    """Serves requests in order, at most `ahead` of them before their responses are wanted.

    Without a pool, and while work is short, a request is served by the caller when its response is wanted.
    """

    def __init__(
        self, serve: Callable[[Request], Response], pool: ThreadPoolExecutor | None, ahead: int | None
    ) -> None:
        self._serve = serve
        self._pool = pool
        self._ahead = ahead
        self._waiting: deque[Request] = deque()
        self._begun: deque[tuple[Request, Future[Response]]] = deque()
        self._recent: deque[float] = deque([SHORT], maxlen=8)  # seconds of work

    def __len__(self) -> int:
        return len(self._waiting) + len(self._begun)

    def clients(self) -> set[int]:
        """Whose requests are here."""
        return {request.client for request in self._waiting} | {request.client for request, _ in self._begun}

    def add(self, request: Request) -> None:
        """Queue a request; a worker takes it as soon as it may."""
        self._waiting.append(request)
        self._feed()

    def next(self) -> tuple[Request, Response]:
        """The oldest request with its response; waits for it."""
        if self._begun:
            request, future = self._begun[0]
            response = future.result()
            self._begun.popleft()
        else:
            request = self._waiting.popleft()
            response = self._serve(request)
        self._recent.append(response.seconds)
        self._feed()
        return request, response

    def _feed(self) -> None:
        """Give the workers as many requests as may be started."""
        if self._pool is None or min(self._recent) < SHORT:
            return
        while self._waiting and (self._ahead is None or len(self._begun) < self._ahead):
            request = self._waiting.popleft()
            self._begun.append((request, self._pool.submit(self._serve, request)))
