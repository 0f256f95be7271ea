"""Work with a time limit, so that a device can answer the next message."""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from catchment.device.policy import Refusal

T = TypeVar("T")
GRACE = 5.0  # seconds for work to notice `stop`, and again to be interrupted


class Interrupted(BaseException):
    """Raised in the middle of work that did not notice `stop`; no `except Exception` catches it."""


class TimeLimit:
    """Does one piece of work at a time, in a thread of its own, for at most some seconds.

    Work is asked to stop (`stop`, which training looks at between batches), then interrupted at its next line of
    Python. A single call into a C library cannot be interrupted: it is left behind, and nothing is begun until it ends.
    """

    def __init__(self, seconds: float) -> None:
        self.stop = threading.Event()
        self._seconds = seconds
        self._left_behind: threading.Thread | None = None

    def run(self, work: Callable[[], T]) -> T:
        """The result of `work()`, or what it raised, or a refusal if it takes too long."""
        if self._left_behind is not None and self._left_behind.is_alive():
            raise Refusal("work on an earlier request ran out of time and has not ended yet", "the device is busy")
        self.stop.clear()
        task = _Task(work)
        thread = threading.Thread(target=task, daemon=True)
        thread.start()
        try:
            thread.join(None if math.isinf(self._seconds) else self._seconds)
        except BaseException:  # Ctrl-C: the process is about to end
            self._end(thread)
            raise
        if not thread.is_alive():
            return task.outcome()
        self._end(thread)
        self._left_behind = thread
        raise Refusal(
            f"the work took longer than limits.seconds_per_request, {self._seconds:g} s",
            "the work took longer than the device allows",
        )

    def _end(self, thread: threading.Thread) -> None:
        self.stop.set()
        thread.join(GRACE)
        if thread.is_alive() and thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Interrupted))
            thread.join(GRACE)


class _Task(Generic[T]):
    """Work, and what became of it."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._done: list[T] = []
        self._error: BaseException | None = None

    def __call__(self) -> None:
        try:
            self._done.append(self._work())
        except BaseException as error:
            self._error = error

    def outcome(self) -> T:
        if self._error is not None:
            raise self._error
        return self._done[0]
