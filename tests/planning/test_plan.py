"""The plan of a run, compared with the run that follows."""

from __future__ import annotations

import dataclasses

import pytest
from marks import quick
from worlds import METHODS, ONE_EACH, PHONES, experiment

import catchment
from catchment.errors import ExperimentError
from catchment.planning.plan import plan
from catchment.planning.walk import real
from catchment.runs.rehearsal import PeakMemory

VALUES_MATTER = {
    "fedgkt, coded", "oneshot, coded", "fedgems", "fedavg, coded", "fedgkt, asynchronous, sign-flip",
    "smartidx, base kernels", "fedpm",
}  # fmt: skip


@pytest.mark.parametrize("name", quick([*ONE_EACH, "fedgkt, coded", "fedgkt, asynchronous"], METHODS))
def test_a_plan_equals_the_ledger_of_the_run_that_follows(name):
    chosen = experiment(name, few=True, **PHONES, rounds=2)
    planned = plan(chosen)
    result = catchment.run(chosen)
    for way in ("up", "down"):
        amount, sent = getattr(planned, way), result["bytes"][way]
        assert amount.low <= sent <= amount.high
        assert abs(amount.expected - sent) <= 0.05 * amount.high
    assert planned.evaluation == result["bytes"]["evaluation"]
    exact = planned.up.exact and planned.down.exact
    assert exact is (name not in VALUES_MATTER)
    if exact:
        assert planned.virtual_seconds == result["virtual_seconds"]
    measured = [(key.split(" of ")[1], peak) for key, peak in result["costs"]["peak_memory"].items() if peak]
    for kind in planned.devices:
        peak = max(peak for model, peak in measured if model == kind.model)
        assert abs(kind.memory - peak) <= 0.2 * peak


SERVERS = (
    "fedavg", "centralized", "fedgkt, averaged", "fedgkt, asynchronous", "split learning", "splitfed, v1", "fedgems",
    "dsfl", "feddf, two architectures", "fedzkt", "fedzkt, one architecture", "fedkgf",
)  # fmt: skip


@pytest.mark.parametrize("name", quick(("fedavg", "fedgkt, averaged", "split learning", "fedzkt"), SERVERS))
def test_the_memory_of_the_server_is_that_of_the_run(name):
    settings = experiment(name, few=True, **PHONES, rounds=2)
    world = settings.build_world()
    world.check_models()  # builds them
    with PeakMemory() as memory:
        real(settings, world)
    assert abs(plan(settings, measure=False).server.memory - memory.peak) <= 0.2 * memory.peak


def small(**more):
    return experiment("fedavg", models={"client": "mlp"}, participation={"fraction": 1.0}, **more)


def test_work_and_bytes_by_hand():
    """Digits are 8 x 8, the mlp has 64 hidden numbers and 10 classes; a training step is three forward passes."""
    planned = plan(small(data={"name": "digits", "clients": 2, "train": 100, "test": 20}, rounds=4))
    (kind,) = planned.devices
    assert (kind.clients, kind.samples) == (2, 50)
    assert kind.parameters == 64 * 64 + 64 + 64 * 10 + 10
    assert kind.macs == 3 * 50 * (64 * 64 + 64 * 10)
    assert planned.down.high == 4 * 2 * kind.down
    assert 4 * kind.parameters < kind.down < 4 * kind.parameters + 1000
    assert planned.leaves == ("weights", "counts", "metrics")
    assert planned.server.macs == 0  # it averages
    assert planned.work == 4 * 2 * kind.macs
    assert planned.fits


def test_the_work_of_a_server_that_trains_by_hand():
    """FedGKT's server passes the features of all 80 samples through its half, there and back, in each of two epochs."""
    table = {"method": {"name": "fedgkt", "server_epochs": 2}, "models": {"client": "cnn", "server": "resnet10"}}
    data = {"name": "digits", "clients": 2, "train": 80, "test": 20}
    made = catchment.Experiment.from_dict({**table, "data": data, "rounds": 3, "workers": 1})
    assert plan(made).server.macs == 2 * 3 * 80 * made.build_world().server_architecture.facts.total_macs


def test_rounds_that_there_is_no_time_for_are_like_those_before():
    whole, hasty = plan(small(rounds=6)), plan(small(rounds=6), seconds=0)
    assert (whole.walked, hasty.walked) == (6, 1)
    assert hasty.up == whole.up
    assert hasty.work == whole.work
    assert hasty.evaluation == whole.evaluation


def test_what_does_not_fit_says_why():
    profiles = {"tiny": {"compute": 1e6, "memory": 0.01}}
    planned = plan(small(devices={"profile": "tiny", "profiles": profiles}))
    assert not planned.fits
    assert "0.01 MiB of memory" in planned.devices[0].problems[0]
    late = dataclasses.replace(small(devices={"profile": "sensor"}), participation=_deadline(0.01))
    (why,) = plan(late, measure=False).devices[0].problems
    assert "participation.deadline is 0.01 s" in why


def _deadline(seconds):
    return dataclasses.replace(small().participation, deadline=seconds)


def test_what_only_devices_know_cannot_be_planned():
    own = catchment.Experiment.from_dict({"engine": "flower", "data": {"partition": {"name": "own"}}})
    with pytest.raises(ExperimentError, match="only the devices know"):
        plan(own)
