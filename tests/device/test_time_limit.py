"""Work that is given up after some seconds."""

from __future__ import annotations

import math
import sys
import threading

import pytest

from catchment.device import time_limit
from catchment.device.policy import Refusal
from catchment.device.time_limit import TimeLimit


def test_work_in_time_gives_its_result_or_what_it_raised() -> None:
    limited = TimeLimit(math.inf)
    assert limited.run(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        limited.run(lambda: 1 // 0)
    assert not limited.stop.is_set()


def test_work_that_looks_at_stop_ends_by_itself_and_the_next_may_begin() -> None:
    limited = TimeLimit(0.01)
    ended = threading.Event()

    def polite() -> None:
        limited.stop.wait()
        ended.set()

    with pytest.raises(Refusal, match=r"the work took longer than limits\.seconds_per_request, 0\.01 s") as refusal:
        limited.run(polite)
    assert refusal.value.to_server == "the work took longer than the device allows"
    assert ended.is_set()
    limited._seconds = math.inf
    assert limited.run(limited.stop.is_set) is False


def test_work_that_does_not_look_at_stop_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limit, "GRACE", 0.2)
    ended = threading.Event()

    def stubborn() -> None:
        try:
            while True:
                try:
                    while True:
                        math.sqrt(2)
                except Exception:
                    continue
        finally:
            ended.set()

    limited = TimeLimit(0.1)
    with pytest.raises(Refusal, match="the work took longer"):
        limited.run(stubborn)
    assert ended.wait(60)


@pytest.mark.skipif(sys.gettrace() is not None, reason="a traced CPython 3.11 spins while an interruption is pending")
def test_nothing_is_begun_while_work_cannot_be_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limit, "GRACE", 0.01)
    limited = TimeLimit(0.01)
    call = threading.Lock()  # to wait for it is one call into a C library
    call.acquire()
    with pytest.raises(Refusal, match="the work took longer"):
        limited.run(call.acquire)
    with pytest.raises(Refusal, match="has not ended yet"):
        limited.run(lambda: 3)
    call.release()
    assert limited._left_behind is not None
    limited._left_behind.join(60)
    limited._seconds = math.inf
    assert limited.run(lambda: 3) == 3
