"""Runs as a library user sees them: directories, observers, failures that lose nothing."""

from __future__ import annotations

import errno
import json
import os

import pytest
from worlds import experiment

import catchment
from catchment.errors import CatchmentError, ProtocolError, RunError, UserError
from catchment.runs import loop
from catchment.simulation import inprocess
from catchment.simulation.inprocess import InProcess


def test_a_run_directory_holds_everything(tmp_path):
    seen = []
    result = catchment.run(experiment("fedavg", rounds=4), out=tmp_path / "run", observe=seen.append)
    files = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"experiment.toml", "rounds.jsonl", "ledger.jsonl", "result.json", "checkpoints"} <= files
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result
    assert [record["round"] for record in seen] == [1, 2, 3, 4]
    assert {"accuracy", "server", "clients", "bytes", "seconds", "rounds", "lost", "late"} <= result.keys()
    assert set(result["clients"]["accuracy"]) == {"mean", "min", "max"}
    assert set(result["bytes"]) == {"up", "down", "evaluation"}
    assert result["accuracy"] == seen[-1]["accuracy"]
    for record in (result, *seen):
        assert sum(record["spent"].values()) == pytest.approx(record["seconds"])
    assert all(seen[0]["spent"][kind] > 0 for kind in ("clients", "server", "evaluation"))
    assert result["spent"]["disk"] > 0
    assert result["seconds"] > sum(record["seconds"] for record in seen)  # the last checkpoint came after them


def test_the_resolved_experiment_gives_the_same_result_again(tmp_path):
    first = catchment.run(experiment("fedprox"), out=tmp_path / "first")
    again = catchment.run(catchment.Experiment.load(tmp_path / "first" / "experiment.toml"))
    assert again["fingerprint"] == first["fingerprint"]


def test_bytes_of_the_rounds_and_of_the_ledger_sum_to_those_of_the_result(tmp_path):
    result = catchment.run(experiment("standalone"), out=tmp_path / "run")
    rounds = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    for direction in ("up", "down", "evaluation"):
        assert sum(r["bytes"][direction] for r in rounds) == result["bytes"][direction] > 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()]
    entries = [entry for line in lines for entry in line["entries"]]
    assert sum(len(e["clients"]) * sum(e["tensors"].values()) for e in entries) == sum(result["bytes"].values())


def test_fedavg_moves_the_models_bytes_and_a_small_frame(tmp_path):
    result = catchment.run(experiment("fedavg", rounds=1, participation={"fraction": 1.0}), out=tmp_path / "run")
    payload = 5 * 4 * result["costs"]["clients"]["cnn"]["parameters"]  # 5 clients, 4 bytes a weight, no buffers
    assert payload < result["bytes"]["up"] < payload + 5 * 1000


def test_peak_memory_of_a_clients_work_counts_its_activations(tmp_path):
    costs = catchment.run(experiment("fedavg", rounds=1))["costs"]
    peak = costs["peak_memory"]["local_training of cnn"]
    weights = 4 * costs["clients"]["cnn"]["parameters"]
    activations = 32 * 4 * (16 * 64 + 16 * 16)  # a batch of 32: the first feature maps before and after pooling
    assert peak > 4 * weights + activations  # weights, gradients, two slots of Adam


def test_a_directory_is_never_overwritten(tmp_path):
    catchment.run(experiment("fedavg", rounds=1), out=tmp_path / "run")
    with pytest.raises(UserError, match="already holds a run; resume it, or choose another --out"):
        catchment.run(experiment("fedavg", rounds=1), out=tmp_path / "run")


def test_nothing_is_written_for_an_experiment_that_cannot_run(tmp_path):
    with pytest.raises(UserError):
        catchment.run(experiment("fedavg", data={"clients": 1000}), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_resume_needs_a_run(tmp_path):
    with pytest.raises(UserError, match="holds no run to resume"):
        catchment.resume(tmp_path)


def test_a_diverging_loss_stops_the_run_in_one_sentence_and_keeps_what_was_done(tmp_path):
    wild = experiment("fedavg", rounds=6, optimizer={"client": {"name": "sgd", "lr": 1e30}})
    with pytest.raises(RunError, match=r"rounds 1 to 3: all \d clients failed; client \d: .*optimizer"):
        catchment.run(wild, out=tmp_path / "run")
    assert (tmp_path / "run" / "experiment.toml").exists()


def test_a_full_disk_stops_the_run_and_freeing_it_lets_it_go_on(tmp_path, monkeypatch):
    whole = catchment.run(experiment("standalone", rounds=5), out=tmp_path / "whole")
    fsync, calls = os.fsync, [0]

    def full(descriptor):
        calls[0] += 1
        if calls[0] > 25:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="cannot be written: No space left on device; what was there before is kept"):
        catchment.run(experiment("standalone", rounds=5), out=tmp_path / "run")
    monkeypatch.setattr(os, "fsync", fsync)
    assert not list((tmp_path / "run").rglob("*.part"))
    assert catchment.resume(tmp_path / "run")["fingerprint"] == whole["fingerprint"]
    assert catchment.resume(tmp_path / "run")["accuracy"] == whole["accuracy"]


def test_evaluation_can_be_rare_and_the_last_round_is_always_evaluated():
    seen = []
    catchment.run(experiment("fedavg", rounds=5, evaluation={"every": 2}), observe=seen.append)
    assert [record["round"] for record in seen if "accuracy" in record] == [2, 4, 5]


def test_events_say_who_was_lost_and_why(tmp_path):
    seen = []
    result = catchment.run(experiment("fedavg", rounds=6, faults={"crash": 0.4}), observe=seen.append)
    events = [event for record in seen for event in record["events"]]
    assert result["lost"] == len(events) > 0
    assert {event["why"] for event in events} == {"the device crashed (injected)"}


def test_a_second_process_on_one_run_is_refused(tmp_path):
    def intrude(record):
        if record["round"] == 2:
            with pytest.raises(UserError, match="is in use: another process is running it"):
                catchment.resume(tmp_path / "run")

    result = catchment.run(experiment("fedavg", rounds=3), out=tmp_path / "run", observe=intrude)
    assert result["fingerprint"] == catchment.run(experiment("fedavg", rounds=3))["fingerprint"]


@pytest.mark.parametrize("damaged", ["state", "rounds.jsonl", "ledger.jsonl"])
def test_a_run_that_cannot_be_resumed_is_left_as_it_is(tmp_path, monkeypatch, damaged):
    def stop(record):
        if record["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        catchment.run(experiment("fedavg", rounds=4, checkpoint={"every": 2}), out=tmp_path, observe=stop)
    if damaged == "state":

        def refuse(form, tensors, fresh):
            raise ProtocolError("another method")

        monkeypatch.setattr(loop, "unflatten", refuse)
    else:
        whole = (tmp_path / damaged).read_text()
        (tmp_path / damaged).write_text(whole.partition("\n")[0] + "\n")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(CatchmentError, match=r"another method|has 1 rounds, its checkpoint says 2; it was changed"):
        catchment.resume(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_greetings_are_in_the_ledger_of_their_round(tmp_path, monkeypatch):
    said = iter([[], [(1, "down", 700), (1, "up", 9)]])
    monkeypatch.setattr(InProcess, "greetings", lambda self: next(said))
    catchment.run(experiment("fedavg", few=True, rounds=2), out=tmp_path / "run")
    rounds = [json.loads(line)["entries"] for line in (tmp_path / "run/ledger.jsonl").read_text().splitlines()]
    booked = [[(row["direction"], row["clients"]) for row in rows if row["purpose"] == "greeting"] for rows in rounds]
    assert booked == [[], [("down", [1]), ("up", [1])]]


def test_barren_rounds_count_on_though_the_run_is_stopped_after_each(tmp_path, monkeypatch):
    serve = inprocess.serve

    class Stop(BaseException):
        pass

    def fails_from_round_2(world, request, *others):
        if request.round < 2:
            return serve(world, request, *others)
        return inprocess.Response(request.client, request.sequence, None, error="no", failed=True)

    def stop(record):
        raise Stop

    monkeypatch.setattr(inprocess, "serve", fails_from_round_2)
    with pytest.raises(Stop):
        catchment.run(experiment("fedavg", few=True, rounds=6), out=tmp_path / "run", observe=stop)
    for _ in range(2):
        with pytest.raises(Stop):
            catchment.resume(tmp_path / "run", observe=stop)
    with pytest.raises(RunError, match=r"^rounds 2 to 4: "):
        catchment.resume(tmp_path / "run", observe=stop)
