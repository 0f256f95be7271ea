"""Clients that are trained in one call: the same results up to rounding, and refusals where it cannot be done."""

from __future__ import annotations

import pytest
import torch

import catchment
from catchment.engines import together
from catchment.errors import ExperimentError

TINY = {
    "rounds": 3,
    "data": {"name": "digits", "clients": 6, "train": 240},
    "models": {"client": "tiny:dense"},
    "method": {"name": "fedavg", "client_epochs": 2},
    "optimizer": {"client": {"name": "sgd", "lr": 0.1, "momentum": 0.9, "batch_size": 16}},
}
DENSE = """
from torch import nn

def dense():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "tiny.py").write_text(DENSE)

    def go(**changes):
        table = {**TINY, "path": str(tmp_path), **changes}
        return catchment.run(catchment.Experiment.from_dict(table), out(tmp_path))

    return go


def out(folder):
    return folder / f"run{len(list(folder.glob('run*')))}"


def test_same_results_up_to_rounding_and_the_same_bytes_and_work(run, tmp_path, monkeypatch):
    calls = []
    serve = together.serve_together
    monkeypatch.setattr(together, "serve_together", lambda *a: calls.append(len(a[1])) or serve(*a))
    alone, grouped = run(), run(batched=True)
    assert calls == [6, 6, 6]
    assert grouped["bytes"] == alone["bytes"]
    assert grouped["accuracy"] == pytest.approx(alone["accuracy"], abs=0.01)
    assert grouped["server"]["loss"] == pytest.approx(alone["server"]["loss"], rel=1e-4)
    assert grouped["virtual_seconds"] == alone["virtual_seconds"]


def test_virtual_time_is_that_of_clients_served_one_by_one(run):
    devices = {"profile": "10mbit"}
    assert run(batched=True, devices=devices)["virtual_seconds"] == run(devices=devices)["virtual_seconds"] > 0


def test_groups_have_clients_of_one_size(run, monkeypatch):
    calls = []
    serve = together.serve_together
    monkeypatch.setattr(together, "serve_together", lambda *a: calls.append(len(a[1])) or serve(*a))
    data = {**TINY["data"], "train": 243}  # three clients have 41 samples, three have 40
    assert run(batched=True, data=data)["accuracy"] == pytest.approx(run(data=data)["accuracy"], abs=0.01)
    assert calls == [3, 3] * 3


def test_groups_are_not_larger_than_fits(run, monkeypatch):
    calls = []
    serve = together.serve_together
    monkeypatch.setattr(together, "MOST", 4)
    monkeypatch.setattr(together, "serve_together", lambda *a: calls.append(len(a[1])) or serve(*a))
    run(batched=True)
    assert calls == [4, 2] * 3


def test_lost_replies_are_the_same_ones(run):
    faults = {"crash": 0.2, "drop": 0.2}
    alone, grouped = run(faults=faults), run(batched=True, faults=faults)
    assert grouped["lost"] == alone["lost"] > 0
    assert grouped["accuracy"] == pytest.approx(alone["accuracy"], abs=0.01)


def test_a_group_that_fails_is_served_one_by_one(run, monkeypatch):
    def fail(*arguments):
        raise RuntimeError("not together")

    monkeypatch.setattr(together, "serve_together", fail)
    assert run(batched=True)["fingerprint"] == run()["fingerprint"]


def test_codecs_of_uploads_go_with_it(run):
    wire = {"codecs": ["up:weights/*=update+int8"]}
    alone, grouped = run(wire=wire), run(batched=True, wire=wire)
    assert grouped["bytes"] == alone["bytes"]
    assert grouped["accuracy"] == pytest.approx(alone["accuracy"], abs=0.02)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"method": {"name": "fedprox"}}, "FedProx trains clients one by one"),
        ({"models": {"client": "cnn"}}, '"cnn" is not one of them'),
        ({"strict": True}, "serve each by itself"),
        ({"engine": "flower"}, "serve each by itself"),
        ({"wire": {"codecs": ["down:weights/*=fp16"]}}, "codecs down"),
    ],
)
def test_what_cannot_be_trained_together_is_refused(run, changes, why):
    with pytest.raises(ExperimentError, match=why):
        run(batched=True, **changes)


def test_one_step_by_hand():
    from catchment.data import Batch
    from catchment.learning.together import SideBySide

    model = torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(1.0)
    pair = SideBySide(model, 2)
    few = [Batch(torch.tensor([[x]]), torch.tensor([y]), torch.tensor([0])) for x, y in ((1.0, 0.0), (2.0, 1.0))]
    losses = pair.fit(torch.optim.SGD(pair.parameters, lr=0.5), [few], lambda z, y: ((z[:, 0] - y) ** 2).mean())
    assert losses == [1.0, 1.0]  # (1 - 0)^2 and (2 - 1)^2
    # gradients 2 (1 - 0) 1 = 2 and 2 (2 - 1) 2 = 4
    assert [weights["weight"].item() for weights in pair.weights()] == [0.0, -1.0]
