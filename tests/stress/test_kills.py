"""A run that is killed at random moments and resumed ends as if nothing had happened: a few kills of kills.py."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from multiprocessing import forkserver
from pathlib import Path

import pytest
from jobs import rounds_done
from lives import CASES, live
from marks import quick

from catchment.testing import Outcome

KILLS_EACH = 4
QUICK = ("fedavg", "standalone", "fedgkt, asynchronous", "dgc")  # the others are killed in the slow suite


def live_to_the_end(processes, name: str, out: Path) -> None:
    process = processes.Process(target=live, args=(name, CASES[name], str(out)))
    process.start()
    process.join()
    assert process.exitcode == 0


@pytest.fixture(scope="module")
def processes():
    """Processes that have everything imported already, so that a life begins at once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["preloaded"])
    with pytest.MonkeyPatch.context() as patch:
        folders = (Path(__file__).parent, Path(__file__).parents[1] / "helpers")
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, folders)))
        forkserver.ensure_running()
    return context


@pytest.mark.parametrize("name", quick(QUICK, CASES))
def test_killed_at_random_moments_and_resumed(name, tmp_path, processes):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    began = time.monotonic()
    live_to_the_end(processes, name, whole)
    round_length = (time.monotonic() - began) / CASES[name]["rounds"]
    moments = random.Random(name)
    for _ in range(KILLS_EACH):
        process = processes.Process(target=live, args=(name, CASES[name], str(broken)))
        process.start()
        goal = rounds_done(broken) + moments.choice([0, 1, 1])
        while rounds_done(broken) < goal and process.is_alive():
            time.sleep(0.001)
        moment = time.monotonic() + moments.uniform(0, round_length)  # in a round, or in writing its checkpoint
        while time.monotonic() < moment and rounds_done(broken) <= goal:
            time.sleep(0.001)
        assert process.is_alive(), "the run ended before it could be killed: give it more rounds"
        process.kill()
        process.join()
    live_to_the_end(processes, name, broken)
    assert Outcome.of(broken) == Outcome.of(whole)
