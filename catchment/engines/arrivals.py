"""Responses that are in transit on the virtual clock, until their time of arrival; large ones wait on disk."""

from __future__ import annotations

import heapq
from pathlib import Path

from catchment.core.spool import Scratch
from catchment.exchange.message import Message
from catchment.exchange.request import Response

LARGE = 2**20  # bytes; a larger response waits on the disk


class Arrivals:
    """Responses in the order in which they arrive; `directory` is where large ones wait."""

    def __init__(self, directory: Path | None) -> None:
        self._heap: list[tuple[float, int, Response]] = []  # by (second of arrival, sequence)
        self._disk = Scratch(directory)  # by sequence: the bodies of large responses

    def hold(self, response: Response) -> Response:
        """The response without its body if that is large; the body goes to the disk. Any thread may call this."""
        if response.body is None or response.size() <= LARGE:
            return response
        self._disk.write(response.sequence, response.size(), response.body.buffers(response.envelope))
        return response._replace(body=None)

    def size(self, response: Response) -> int:
        """The bytes of a response, wherever its body is."""
        held = response.sequence in self._disk
        return self._disk.place(response.sequence)[1] if held else response.size()

    def add(self, second: float, response: Response) -> None:
        """Let a response arrive at this time, in seconds."""
        heapq.heappush(self._heap, (second, response.sequence, response))

    def next(self, until: float) -> tuple[float, Response] | None:
        """The earliest response with its time of arrival; None if that is after `until`."""
        if not self._heap or self._heap[0][0] > until:
            return None
        second, sequence, response = heapq.heappop(self._heap)
        if sequence in self._disk:
            body, _ = Message.from_bytes(self._disk.read(sequence))
            self._disk.remove(sequence)
            response = response._replace(body=body)
        return second, response

    def clients(self) -> set[int]:
        """Whose responses are on their way."""
        return {response.client for _, _, response in self._heap}

    def clear(self) -> None:
        """Forget everything and free the disk space."""
        self._disk.clear()
