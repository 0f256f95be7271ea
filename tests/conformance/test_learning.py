"""Schedules, moving averages and precision: for every kind of method, resumed and over bytes the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from worlds import METHODS, experiment

import catchment
from catchment.config.settings import DataSettings
from catchment.core.client import AVERAGE, Client
from catchment.errors import ExperimentError
from catchment.runs.checkpoint import Checkpoints, Loaded

# One of each: aggregated weights, a server half, models that clients keep, copies that are averaged, several models.
KINDS = ("fedavg", "fedgkt", "standalone", "splitfed, v1", "centralized", "fedzkt", "fedpm", "feddf, two architectures")
RATE = Client.rate


class Stopped(Exception):
    """Raised to stop a run."""


def stop(record: dict) -> None:
    raise Stopped


def scheduled(name: str, **more):
    """A warm-up and a cosine on the clients, a plateau on the server, and averages."""
    table = {
        "data": {**METHODS[name].get("data", {}), "validation": 0.1},
        "optimizer": {
            "client": {"name": "adam", "lr": 0.005, "schedule": {"name": "cosine", "warmup": 1}},
            "server": {"schedule": {"name": "plateau", "patience": 1, "factor": 0.5}},
        },
        "evaluation": {"average": 0.9},
    }
    return experiment(name, few=True, **{**table, **more})


def checkpoint(out: Path) -> Loaded:
    loaded = Checkpoints(out / "checkpoints").latest()
    assert loaded is not None
    return loaded


@pytest.mark.parametrize("name", KINDS)
def test_schedules_and_averages_go_on_exactly_where_they_stopped(name, tmp_path):
    whole = catchment.run(scheduled(name), tmp_path / "whole")
    with pytest.raises(Stopped):
        catchment.run(scheduled(name), tmp_path / "parts", observe=stop)
    assert catchment.resume(tmp_path / "parts")["fingerprint"] == whole["fingerprint"]
    one, other = (checkpoint(tmp_path / out).averages for out in ("whole", "parts"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[place][key], other[place][key]) for place in one for key in one[place])


@pytest.mark.parametrize("name", KINDS)
def test_averages_leave_training_alone(name, tmp_path):
    catchment.run(experiment(name, few=True, evaluation={"average": 0.0}), tmp_path / "without")
    catchment.run(experiment(name, few=True, evaluation={"average": 0.9}), tmp_path / "with")
    without, averaged = checkpoint(tmp_path / "without"), checkpoint(tmp_path / "with")
    kept = {key: tensor for key, tensor in averaged.tensors.items() if not key.startswith("averages/")}
    assert kept.keys() == without.tensors.keys()
    assert all(torch.equal(kept[key], tensor) for key, tensor in without.tensors.items())
    for client, state in without.fleet.inflight.transport.states.items():
        own = averaged.fleet.inflight.transport.states[client]
        assert own.keys() - {AVERAGE} == state.keys()
        assert all(torch.equal(own[group][key], t) for group in state for key, t in state[group].items())


def test_what_is_measured_and_exported_is_the_average(tmp_path):
    result = catchment.run(experiment("fedgkt", evaluation={"average": 0.9}), tmp_path / "run")
    loaded, run = checkpoint(tmp_path / "run"), catchment.Run(tmp_path / "run")
    server = run.model().state_dict()
    average = loaded.averages["model"]
    assert all(torch.equal(server[key], average[key]) for key in server)
    clients = range(run.experiment.data.clients)
    accuracies = []
    for client in clients:
        model, test = run.client_model(client), run.world.data.test
        with torch.no_grad():
            predicted = model(run.world.normalise(test.images[test.index])).argmax(1)
        accuracies.append(float((predicted == test.targets).float().mean()))
    assert result["accuracy"] == pytest.approx(sum(accuracies) / len(accuracies))


def test_a_plateau_of_validation_accuracies_lowers_the_rates_of_clients_and_server(tmp_path, monkeypatch):
    rates: dict[int, set[float]] = {}
    monkeypatch.setattr(Client, "rate", property(lambda client: noted(client, RATE.fget(client))))

    def noted(client: Client, rate: float) -> float:
        rates.setdefault(client.round, set()).add(rate)
        return rate

    plateau = {"name": "plateau", "patience": 1, "factor": 0.5}
    still = {"name": "sgd", "lr": 1e-9, "schedule": plateau}  # so low that nothing gets better
    tables = {"data": {"validation": 0.1}, "optimizer": {"client": still, "server": still}}
    catchment.run(experiment("fedavg", **tables), tmp_path / "clients")
    assert rates == {1: {1e-9}, 2: {1e-9}, 3: {5e-10}}
    catchment.run(experiment("centralized", **tables), tmp_path / "server")
    records = [json.loads(line) for line in (tmp_path / "server" / "rounds.jsonl").read_text().splitlines()]
    assert len({record["validation"] for record in records}) == 1
    assert '["lr", {"value": 5e-10}]' in json.dumps(checkpoint(tmp_path / "server").state)


def test_a_plateau_without_validation_samples_is_refused():
    with pytest.raises(ExperimentError, match=r"set data.validation, such as 0.1"):
        experiment("fedavg", optimizer={"client": {"schedule": {"name": "plateau"}}})
    with pytest.raises(ExperimentError, match=r"data.validation is 0.1, a share of samples that are dealt"):
        DataSettings(validation=0.1, partition={"name": "own"})


PROGRAM = """
import sys
from pathlib import Path
import torch, catchment
from worlds import experiment
from catchment.runs.checkpoint import Checkpoints

torch.set_num_threads(1)
engine, *names = sys.argv[1:]
for name in names:
    out = Path(name)
    full = catchment.run(experiment(name, rounds=2), out / "full")
    half = catchment.run(experiment(name, rounds=2, precision="bfloat16"), out / "half")
    strict = catchment.run(experiment(name, rounds=2, precision="bfloat16", strict=True), out / "strict")
    assert half["fingerprint"] == strict["fingerprint"] != full["fingerprint"]
    assert half["failed"] == half["refused"] == 0
    loaded = Checkpoints(out / "half" / "checkpoints").latest()
    kept = loaded.fleet.inflight.transport.states.values()
    states = [tensor for state in kept for group in state.values() for tensor in group.values()]
    assert torch.bfloat16 not in {tensor.dtype for tensor in (*loaded.tensors.values(), *states)}
    if engine == "flower":
        there = catchment.run(experiment(name, rounds=2, precision="bfloat16", engine=engine), out / engine)
        assert there["fingerprint"] == half["fingerprint"]
"""


def run_in_bfloat16(engine: str, *names: str, folder: Path) -> None:
    # oneDNN takes instructions for granted that some virtual machines announce and do not have.
    helpers = os.pathsep.join([str(Path(__file__).parents[1] / "helpers"), str(Path(__file__).parents[2])])
    there = {"PYTHONPATH": helpers, "OMP_NUM_THREADS": "1", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
    command = [sys.executable, "-c", PROGRAM, engine, *names]
    done = subprocess.run(command, cwd=folder, env={**os.environ, **there}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_bfloat16_trains_and_leaves_no_trace_in_what_is_kept(tmp_path):
    run_in_bfloat16("inprocess", "fedavg", "fedgkt", "fedgems", "fedzkt", folder=tmp_path)


@pytest.mark.slow
def test_both_engines_agree_in_bfloat16(tmp_path):
    run_in_bfloat16("flower", "fedgkt", folder=tmp_path)
