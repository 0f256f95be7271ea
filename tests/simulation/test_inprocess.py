"""The engine's clock, devices, faults and threads."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from worlds import experiment
from worlds_by_hand import HandlersOnly, world

import catchment
from catchment.core.method import on_client
from catchment.exchange.message import Message
from catchment.exchange.payload import Payload
from catchment.exchange.request import Request
from catchment.simulation import inprocess, work_queue
from catchment.simulation.devices import PROFILES, DeviceProfile, Faults
from catchment.simulation.inprocess import InProcess

FOREVER = float("inf")
SERVED: list[tuple[int, int]] = []
HOLD = threading.Event()
BEGUN = threading.Semaphore(0)
PATIENCE = 60  # seconds that a thread is waited for before the test has failed


@dataclass(frozen=True)
class Nothing(Payload):
    values: Tensor | None = None


@dataclass(frozen=True)
class Echo(HandlersOnly):
    @on_client
    def echo(self, client, request: Nothing) -> Nothing:
        SERVED.append((client.id, torch.get_num_threads()))
        return Nothing(torch.full((250,), float(client.id)))

    @on_client
    def hold(self, client, request: Nothing) -> Nothing:
        if client.id == 0:
            HOLD.wait(PATIENCE)
        SERVED.append((client.id, 0))
        BEGUN.release()
        return Nothing()

    @on_client
    def whose(self, client, request: Nothing) -> Nothing:
        SERVED.append((client.id, threading.current_thread() is threading.main_thread()))
        return Nothing()

    @on_client
    def train(self, client, request: Nothing) -> Nothing:
        model = client.model()
        for batch in client.batches():
            model(batch.images)
        return Nothing()

    @on_client
    def forever(self, client, request: Nothing) -> Nothing:
        BEGUN.release()
        while True:
            for _ in client.batches():
                pass


WORLD = world(Echo(), [([[1.0, 0.0]], [0])] * 6)


def request(client, handler="echo", sequence=None, **fields):
    body = Message({"values": torch.zeros(250)})
    return Request(client, handler, 1, 0, client if sequence is None else sequence, body, **fields)


@pytest.fixture(autouse=True)
def fresh():
    SERVED.clear()
    HOLD.clear()
    while BEGUN.acquire(blocking=False):
        pass


def wait_for(count):
    """Until this many handlers have said so."""
    for _ in range(count):
        assert BEGUN.acquire(timeout=PATIENCE)


@pytest.mark.parametrize("workers", [1, 4])
def test_ideal_devices_answer_in_the_order_of_asking(workers):
    transport = InProcess(WORLD, workers=workers)
    transport.push([request(k) for k in (3, 1, 2)])
    assert [transport.pull(FOREVER).client for _ in range(3)] == [3, 1, 2]
    assert transport.pull(FOREVER) is None
    assert transport.now == 0
    transport.close()


def test_time_is_latency_and_transfer_and_work():
    device = DeviceProfile(compute=1000.0, up=0.01, down=0.02, latency=0.5)
    transport = InProcess(WORLD, devices=[device])
    r = request(0, "train")
    transport.push([r])
    response = transport.pull(FOREVER)
    # One sample of 2 features to 2 classes: 4 multiply-accumulates forward, three times that with the backward pass.
    expected = 2 * 0.5 + len(r.to_bytes()) * 8 / 20_000 + 12 / 1000 + len(response.to_bytes()) * 8 / 10_000
    assert transport.now == pytest.approx(expected)


def test_the_clock_decides_the_order_and_stops_at_the_deadline():
    devices = [DeviceProfile(latency=t) for t in (3.0, 1.0, 2.0)]
    transport = InProcess(WORLD, devices=devices, workers=2)
    transport.push([request(k) for k in (0, 1, 2)])
    assert transport.pull(FOREVER).client == 1
    assert transport.now == 2.0
    assert transport.pull(3.0) is None
    assert transport.now == 3.0
    assert [transport.pull(FOREVER).client for _ in range(2)] == [2, 0]
    assert transport.now == 6.0
    transport.close()


@pytest.mark.parametrize("workers", [1, 3])
def test_large_replies_wait_on_the_disk_and_nothing_else_changes(workers, monkeypatch, tmp_path):
    def arrived(large):
        monkeypatch.setattr(inprocess, "LARGE", large)
        transport = InProcess(
            WORLD,
            devices=[DeviceProfile(latency=t, up=0.01) for t in (3.0, 1.0, 2.0)],
            workers=workers,
            directory=tmp_path,
        )
        transport.push([request(k) for k in range(6)])
        found, held = [], []
        for _ in range(6):
            response = transport.pull(FOREVER)
            held.append(sum(k in transport._arrivals._disk for k in range(6)))
            found.append((response._replace(seconds=0.0, body=None), response.body.to_bytes(), transport.now))
        assert transport._arrivals._disk.size == 0  # space is given back
        transport.close()
        return found, held

    in_memory, held = arrived(10_000)
    assert held == [0] * 6
    on_disk, held = arrived(1_000)  # a reply has 250 numbers of 4 bytes
    assert held == [5, 4, 3, 2, 1, 0]
    assert on_disk == in_memory
    assert [response.client for response, _, _ in on_disk] == [1, 4, 2, 5, 0, 3]
    assert list(tmp_path.iterdir()) == []


def test_closing_gives_back_what_still_waits_on_the_disk(monkeypatch, tmp_path):
    monkeypatch.setattr(inprocess, "LARGE", 1_000)
    transport = InProcess(WORLD, devices=[DeviceProfile(latency=1.0)], directory=tmp_path)
    transport.push([request(k) for k in range(3)])
    transport.pull(FOREVER)
    assert transport._arrivals._disk.size > 2_000
    transport.close()
    assert transport._arrivals._disk.size == 0


def test_replies_that_stream_do_not_go_to_the_disk(monkeypatch, tmp_path):
    monkeypatch.setattr(inprocess, "LARGE", 1_000)
    transport = InProcess(WORLD, directory=tmp_path / "missing")
    transport.push([request(0), request(1, purpose="evaluation")])
    assert [transport.pull(FOREVER).body.tensors["values"][0].item() for _ in range(2)] == [1.0, 0.0]


def test_asides_take_no_time_and_come_first():
    transport = InProcess(WORLD, devices=[DeviceProfile(latency=1.0)])
    transport.push([request(0)])
    transport.push([request(1, purpose="evaluation")])
    assert transport.pull(FOREVER).client == 1
    assert transport.now == 0
    assert transport.pull(FOREVER).client == 0


def test_workers_run_only_a_few_replies_ahead():
    """Memory is bounded by the workers, not by the cohort: of the four that are begun, client 0's is held."""
    transport = InProcess(world(Echo(), [([[1.0, 0.0]], [0])] * 50), workers=2)
    transport.push([request(k, "hold") for k in range(50)])
    wait_for(3)
    assert sorted(client for client, _ in SERVED) == [1, 2, 3]
    assert len(transport._training._waiting) == 46
    HOLD.set()
    assert [transport.pull(FOREVER).client for _ in range(50)] == list(range(50))
    transport.close()


@pytest.mark.parametrize("workers", [1, 3])
def test_client_work_always_has_the_same_number_of_torch_threads(workers):
    before = torch.get_num_threads()
    transport = InProcess(WORLD, workers=workers, threads=2)
    transport.push([request(k) for k in range(6)])
    for _ in range(6):
        transport.pull(FOREVER)
    transport.close()
    assert {threads for _, threads in SERVED} == {2}
    assert torch.get_num_threads() == before


def test_crashes_leave_the_work_undone_and_drops_lose_it():
    crash = InProcess(WORLD, faults=Faults(crash=1.0))
    crash.push([request(0)])
    response = crash.pull(FOREVER)
    assert response.body is None
    assert not response.failed
    assert "crashed" in response.error
    assert SERVED == []
    drop = InProcess(WORLD, faults=Faults(drop=1.0))
    drop.push([request(0)])
    assert "dropped" in drop.pull(FOREVER).error
    assert len(SERVED) == 1


def test_faults_are_as_likely_as_said_and_derived_from_the_seed():
    transport = InProcess(WORLD, faults=Faults(crash=0.3))
    requests = [Request(k % 6, "echo", k // 6, 0, k, Message({})) for k in range(600)]
    lost = [transport._happens("crash", r) for r in requests]
    assert 140 < sum(lost) < 220
    assert lost == [InProcess(WORLD, faults=Faults(crash=0.3))._happens("crash", r) for r in requests]


def test_delays_add_virtual_seconds():
    transport = InProcess(WORLD, faults=Faults(delay=1.0, delay_seconds=7.0))
    transport.push([request(0)])
    transport.pull(FOREVER)
    assert transport.now == 7.0


def test_unavailable_devices_are_not_on_the_roster():
    transport = InProcess(
        WORLD, devices=[DeviceProfile(availability=0.0), DeviceProfile(), DeviceProfile(availability=0.5)]
    )
    rosters = [transport.roster(n) for n in range(100)]
    assert all({1, 4} <= set(r) and not {0, 3} & set(r) for r in rosters)
    assert 60 < sum((2 in r) + (5 in r) for r in rosters) < 140
    assert rosters == [transport.roster(n) for n in range(100)]


def test_closing_stops_work_after_the_batch_it_is_in():
    transport = InProcess(WORLD, workers=2)
    transport.push([request(0, "forever"), request(1, "forever")])
    wait_for(2)
    transport.close()  # would wait for ever
    assert not any(thread.name.startswith("client") for thread in threading.enumerate())


def test_modules_are_built_once_per_worker(monkeypatch):
    from catchment.core.architecture import Architecture

    built = []
    build = Architecture.build
    monkeypatch.setattr(Architecture, "build", lambda self: built.append(self) or build(self))
    w = world(Echo(), [([[1.0, 0.0]], [0])] * 20)
    transport = InProcess(w, workers=3)
    transport.push([request(k, "train") for k in range(20)])
    for _ in range(20):
        transport.pull(FOREVER)
    transport.close()
    assert 2 <= len(built) <= 5  # one trial run, at most one per worker, one for the caller


@pytest.mark.parametrize(("short", "by_caller"), [(FOREVER, True), (0.0, False)])
def test_short_work_is_done_by_the_caller_and_long_work_by_workers(short, by_caller, monkeypatch):
    monkeypatch.setattr(work_queue, "SHORT", short)
    transport = InProcess(WORLD, workers=2)
    transport.push([request(0, "whose")])
    transport.pull(FOREVER)  # shows how long the work takes
    transport.push([request(k, "whose") for k in range(1, 6)])
    for _ in range(5):
        transport.pull(FOREVER)
    transport.close()
    assert [found for _, found in SERVED[1:]] == [by_caller] * 5


def test_every_named_device_can_be_used():
    for name in PROFILES:
        result = catchment.run(experiment("fedavg", rounds=1, devices={"profile": name}))
        assert (result["virtual_seconds"] > 0) == (name != "ideal")


def test_a_device_of_ones_own_and_a_deadline():
    """Half of the devices are too slow for the deadline: they are late, are left in peace until then, and asked again.

    Rounds end at 1.0 (the deadline), 1.2, 1.4 and 1.6 (the fast ones alone; the slow ones come in at 1.5), and 2.6.
    """
    result = catchment.run(
        experiment(
            "fedavg",
            rounds=5,
            data={"clients": 4},
            participation={"fraction": 1.0, "deadline": 1.0},
            devices={"profile": ["fast", "slow"], "profiles": {"fast": {"latency": 0.1}, "slow": {"latency": 0.75}}},
        )
    )
    assert result["virtual_seconds"] == pytest.approx(2.6)
    assert (result["late"], result["lost"]) == (2, 0)
