"""Where the time goes, on a clock that the test sets."""

from __future__ import annotations

import pytest

from catchment.core import stopwatch
from catchment.core.stopwatch import Stopwatch


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 0.0

    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: Clock.now)
    return Clock


def test_every_second_is_of_one_kind(clock):
    watch = Stopwatch()
    clock.now = 1.0  # of the server
    with watch.during("disk"):
        clock.now = 3.0
        before = watch.switch("clients")
        assert before == "disk"
        clock.now = 7.0
        watch.switch(before)
        clock.now = 8.0
    clock.now = 10.0
    assert watch.lap() == {"clients": 4.0, "wire": 0.0, "server": 3.0, "evaluation": 0.0, "disk": 3.0}


def test_a_lap_starts_again_and_goes_on_with_the_kind_it_is_in(clock):
    watch = Stopwatch()
    with watch.during("wire"):
        clock.now = 2.0
        assert watch.lap()["wire"] == 2.0
        clock.now = 3.0
    clock.now = 4.0
    assert watch.lap() == {"clients": 0.0, "wire": 1.0, "server": 1.0, "evaluation": 0.0, "disk": 0.0}


def test_what_an_evaluation_asks_of_clients_is_of_the_evaluation(clock):
    watch = Stopwatch()
    with watch.during("evaluation", whole=True):
        with watch.during("clients"):
            clock.now = 5.0
        clock.now = 6.0
    clock.now = 7.0
    assert watch.lap() == {"clients": 0.0, "wire": 0.0, "server": 1.0, "evaluation": 6.0, "disk": 0.0}


def test_a_block_that_fails_gives_the_clock_back(clock):
    watch = Stopwatch()
    with pytest.raises(ValueError, match="x"), watch.during("disk"):
        raise ValueError("x")
    clock.now = 1.0
    assert watch.lap()["server"] == 1.0
