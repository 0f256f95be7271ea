"""Workers in other processes: what goes there and comes back, and what is said when they are gone."""

from __future__ import annotations

import threading
from multiprocessing import Pipe

import pytest
import torch
from worlds import experiment

from catchment.client.seats import Seat, work
from catchment.client.state import Versions
from catchment.core.worker import WorkerCache
from catchment.errors import RunError
from catchment.exchange.message import Message
from catchment.exchange.request import Request
from catchment.runtimes.torch import TorchRuntime, serve


@pytest.fixture(scope="module")
def world():
    return experiment("standalone", data={"train": 60, "test": 20}).build_world()


@pytest.fixture
def seat(world):
    here, there = Pipe()
    worker = threading.Thread(target=work, args=(there, TorchRuntime(world, WorkerCache()), world.codecs, True))
    worker.start()
    seat = Seat(here, "rank 1 on there")
    yield seat
    seat.close()
    worker.join()


def request(number: int, handler: str = "local_training", **more) -> Request:
    return Request(1, handler, number + 1, 0, number, Message({}), **more)


def test_the_state_goes_there_and_comes_back(world, seat):
    here, there = Versions(), Versions()
    for number in range(2):
        ours = serve(world, request(number), here, WorkerCache())
        theirs = seat.answer(request(number), there)
        assert ours.body.tensors.keys() == theirs.body.tensors.keys()
        assert ours.body.scalars == theirs.body.scalars
        assert ours.macs == theirs.macs
    assert here.newest(1)["model"].keys() == there.newest(1)["model"].keys()
    for number in (1, 2):
        for group, tensors in here.newest(number).items():
            for name, tensor in tensors.items():
                assert torch.equal(tensor, there.newest(number)[group][name]), name


def test_an_aside_and_a_failure_leave_the_state_as_it_was(seat):
    versions = Versions()
    seat.answer(request(0), versions)
    before = versions.newest(9)
    assert seat.answer(request(1, "test", purpose="evaluation"), versions).body is not None
    failed = seat.answer(request(1, "no such handler"), versions)
    assert failed.failed
    assert "no such handler" in failed.error
    assert versions.newest(9) is not before
    assert all(versions.newest(9)[group] is tensors for group, tensors in before.items())


def test_who_waits_for_a_worker_that_is_sent_home_is_woken():
    here, there = Pipe()
    seat, errors = Seat(here, "rank 1 on there"), []

    def wait() -> None:
        with pytest.raises(RunError) as error:
            seat.answer(request(0), None)
        errors.append(str(error.value))

    waiting = threading.Thread(target=wait)
    waiting.start()
    there.recv_bytes()
    seat.close()
    waiting.join()
    assert errors == ["rank 1 on there is gone"]
