"""Where the wall time of a run goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

KINDS = ("clients", "wire", "server", "evaluation", "disk")


class Stopwatch:
    """Seconds of the server's thread by kind of work; at any time it does one of them.

    `clients` is waiting for them, or serving them in this thread; `wire` is coding and decoding; `disk` is writing
    uploads, records and checkpoints; `server` is the rest of a method's round.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(KINDS, 0.0)
        self._kind = "server"
        self._since = time.perf_counter()
        self._whole = False  # all that happens now counts as one kind

    def switch(self, kind: str) -> str:
        """Count the time from now on as of another kind; returns the kind before, to switch back to."""
        before = self._kind
        if not self._whole and kind != before:
            now = time.perf_counter()
            self.seconds[before] += now - self._since
            self._kind, self._since = kind, now
        return before

    @contextmanager
    def during(self, kind: str, whole: bool = False) -> Iterator[None]:
        """Count the time of a block; with `whole`, also that of what it calls."""
        before, outer = self.switch(kind), self._whole
        self._whole = outer or whole
        try:
            yield
        finally:
            self._whole = outer
            self.switch(before)

    def lap(self) -> dict[str, float]:
        """The seconds since the last lap, by kind; they start again from zero."""
        now = time.perf_counter()
        self.seconds[self._kind] += now - self._since
        self._since = now
        lap, self.seconds = self.seconds, dict.fromkeys(KINDS, 0.0)
        return lap
