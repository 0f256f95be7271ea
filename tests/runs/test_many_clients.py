"""Runs with many registered clients: what they hold and write is bounded by who takes part. Nothing is timed."""

from __future__ import annotations

import gc
import json
import sys
from functools import partial
from pathlib import Path

import many_clients
import pytest
import worlds
from many_clients import CLIENTS

import catchment
from catchment.simulation import inprocess
from catchment.simulation.states import ClientStates

HERE = str(Path(many_clients.__file__).parent)


def experiment(**changes):
    table = {
        "rounds": 2, "workers": 1, "path": HERE,
        "participation": {"fraction": 10 / CLIENTS},
        "data": {"name": "many_clients:grey_squares", "clients": CLIENTS},
        "models": {"client": "mlp(4)"},
        "optimizer": {"client": {"name": "sgd", "lr": 0.1, "batch_size": 4}},
    }  # fmt: skip
    return catchment.Experiment.from_dict(table | changes)


def tracked() -> int:
    """How many containers and tensors there are."""
    gc.collect()
    return len(gc.get_objects())


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "classes_per_client", "main_class"])
def test_a_registered_client_costs_no_object(partition):
    made = experiment(data={**experiment().to_dict()["data"], "partition": {"name": partition}})
    made.build_world()  # imports
    before = tracked()
    world = made.build_world()
    assert tracked() - before < CLIENTS / 10
    sizes = world.data.clients.sizes
    assert (len(sizes), world.clients) == (CLIENTS, CLIENTS)
    assert sizes.min() >= 1
    assert all(len(world.private(client)) == sizes[client] for client in range(0, CLIENTS, 997))


def test_a_roster_is_drawn_once_per_round_and_kept_as_numbers():
    made = experiment(devices={"profile": "away", "profiles": {"away": {"availability": 0.5}}})
    transport = made.build_transport(made.build_world())
    roster = transport.roster(3)
    assert 0.4 * CLIENTS < len(roster) < 0.6 * CLIENTS
    assert sys.getsizeof(roster) < 9 * len(roster)
    assert transport.roster(3) is roster
    assert type(roster[0]) is int


def test_what_a_run_writes_is_bounded_by_who_takes_part(tmp_path):
    result = catchment.run(experiment(), tmp_path / "run")
    assert result["clients"]["accuracy"]["mean"] == pytest.approx(result["accuracy"])
    written = {path.name: path.stat().st_size for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert sum(written.values()) < 30_000, written


def test_few_measure_models_of_their_own_if_that_is_asked_for(tmp_path):
    few = experiment(method={"name": "standalone"}, evaluation={"clients": 5})
    catchment.run(few, tmp_path / "run")
    (evaluated,) = {
        tuple(entry["clients"])
        for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()
        for entry in json.loads(line)["entries"]
        if (entry["purpose"], entry["direction"]) == ("evaluation", "up")
    }
    assert len(evaluated) == 5


# ---- what clients remember --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedmd", "fedgkt, coded", "fedgkt, asynchronous"])
def test_states_on_the_disk_change_nothing(name, tmp_path, monkeypatch):
    made = worlds.experiment(name, rounds=2)
    in_memory = catchment.run(made)
    monkeypatch.setattr(inprocess, "ClientStates", partial(ClientStates, resident=0))

    def stop(record):
        raise KeyboardInterrupt

    on_disk = catchment.run(made)
    with pytest.raises(KeyboardInterrupt):
        catchment.run(made, tmp_path / "run", observe=stop)
    resumed = catchment.resume(tmp_path / "run")
    assert in_memory["fingerprint"] == on_disk["fingerprint"] == resumed["fingerprint"]


def test_states_of_many_clients_are_not_in_memory(tmp_path, monkeypatch):
    found, resident = [], []

    class Watched(ClientStates):
        def __init__(self, directory):
            super().__init__(directory, resident=20_000)
            found.append(self)

    monkeypatch.setattr(inprocess, "ClientStates", Watched)
    many = experiment(
        method={"name": "standalone"}, participation={"fraction": 100 / CLIENTS}, evaluation={"clients": 5}
    )
    catchment.run(many, tmp_path / "run", observe=lambda record: resident.append(found[0].resident))
    assert max(resident) <= 20_000
