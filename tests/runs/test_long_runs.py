"""Runs of many rounds: what they hold and what a checkpoint writes does not grow with the rounds. Nothing is timed."""

from __future__ import annotations

import gc
import json

import pytest
from worlds import experiment

import catchment
from catchment.exchange.message import Message
from catchment.runs.history import History
from catchment.runs.records import Best, Bytes, Event, Round

ROUNDS = 40


def record(number: int, accuracy: float | None = None, validation: float | None = None, events=()) -> Round:
    sizes = Bytes(up=0, down=0, evaluation=0)
    return Round(
        round=number, accuracy=accuracy, validation=validation, bytes=sizes, seconds=0.0, virtual_seconds=0.0,
        events=list(events),
    )  # fmt: skip


def test_a_history_has_the_last_the_best_and_what_schedules_need():
    lie = Event(what="attacked", client=0, handler="train", why="", numbers={"z": 1.5})
    other = Event(what="attacked", client=1, handler="train", why="", numbers={"z": 2.0})
    history = History()
    for one in (record(1, 0.5, 0.1), record(2), record(3, 0.7, 0.3, [lie, other]), record(4, 0.7, None, [lie])):
        history.add(one)
    assert (history.last.round, history.best) == (4, Best(accuracy=0.7, round=3))
    assert (history.validation, history.strengths) == ([0.1, 0.3], [{"z": 1.5}, {"z": 2.0}])


@pytest.mark.parametrize("name", ["fedavg", "standalone"])
def test_rounds_and_their_checkpoints_leave_nothing_behind(name, tmp_path):
    counts, objects, files = {}, {}, {}

    def look(seen):
        if seen["round"] in (ROUNDS // 2, ROUNDS):
            gc.collect()
            found = gc.get_objects()
            counts[seen["round"]] = sum(type(thing) in (Round, Event) for thing in found)
            objects[seen["round"]] = len(found)
            paths = (tmp_path / "run" / "checkpoints").iterdir()
            files[seen["round"]] = sum(path.stat().st_size for path in paths)

    catchment.run(experiment(name, rounds=ROUNDS, evaluation={"every": 20}), tmp_path / "run", observe=look)
    assert counts[ROUNDS] <= counts[ROUNDS // 2] <= 3
    assert files[ROUNDS] < 1.01 * files[ROUNDS // 2]
    assert objects[ROUNDS] - objects[ROUNDS // 2] < 10 * ROUNDS


def test_a_checkpoint_that_has_only_the_sum_of_seconds_is_gone_on_with(tmp_path):
    def stop(seen):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        catchment.run(experiment("fedavg"), tmp_path / "run", observe=stop)
    path = tmp_path / "run" / "checkpoints" / "round-000001.safetensors"
    message, _ = Message.from_bytes(path.read_bytes())
    meta = json.loads(message.scalars["meta"])
    del meta["progress"]["spent"]
    meta["progress"]["seconds"] = 1000.0
    path.write_bytes(Message(message.tensors, {"meta": json.dumps(meta)}).to_bytes())
    assert catchment.resume(tmp_path / "run")["seconds"] > 1000
