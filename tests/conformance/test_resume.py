"""A run that is killed and resumed, any number of times, ends as if nothing had happened."""

from __future__ import annotations

import multiprocessing
import random
import time
from multiprocessing import forkserver
from pathlib import Path

import pytest
from lives import CASES, live, rounds_done
from worlds import PHONES, experiment

import catchment
from catchment.runs import checkpoint, client_files
from catchment.testing import Outcome

KILLS_EACH = 4


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
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "helpers"))
        forkserver.ensure_running()
    return context


@pytest.mark.parametrize("name", CASES)
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


@pytest.mark.parametrize("name", ["standalone", "fedgkt, asynchronous"])
def test_stopped_at_every_write_of_a_checkpoint(name, tmp_path, monkeypatch):
    """Die just before the n-th file is put in its place, for every n: the moments that random kills rarely hit."""
    settings = {"few": True, "rounds": 4, **PHONES}
    catchment.run(experiment(name, **settings), out=tmp_path / "whole")
    write = checkpoint.write_atomically

    class Died(BaseException):
        pass

    for fatal in range(1, 9):
        out = tmp_path / f"broken{fatal}"
        left = [fatal]

        def dying(path, content, left=left):
            left[0] -= 1
            if left[0] == 0:
                whole = b"".join(content)
                path.with_name(path.name + ".part").write_bytes(whole[: len(whole) // 2])
                raise Died
            write(path, content)

        for module in (checkpoint, client_files):
            monkeypatch.setattr(module, "write_atomically", dying)
        with pytest.raises(Died):
            catchment.run(experiment(name, **settings), out=out)
        for module in (checkpoint, client_files):
            monkeypatch.setattr(module, "write_atomically", write)
        catchment.resume(out)
        assert Outcome.of(out) == Outcome.of(tmp_path / "whole"), fatal


def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(tmp_path):
    settings = {"rounds": 5}
    catchment.run(experiment("standalone", **settings), out=tmp_path / "whole")
    catchment.run(experiment("standalone", **settings), out=tmp_path / "broken")
    (tmp_path / "broken" / "result.json").unlink()
    newest = max((tmp_path / "broken" / "checkpoints").glob("round-*"))
    newest.write_bytes(newest.read_bytes()[:-100])
    catchment.resume(tmp_path / "broken")
    assert Outcome.of(tmp_path / "broken") == Outcome.of(tmp_path / "whole")


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    catchment.run(experiment("fedavg"), out=tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    catchment.resume(tmp_path / "run")
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before
