"""Every method gives the same results, bit for bit, however the in-process engine serves it."""

from __future__ import annotations

import json

import pytest
import torch
from worlds import METHODS, TROUBLE, experiment

import catchment
from catchment.simulation import work_queue
from catchment.testing import Outcome

VARIANTS = {"8 workers": {"workers": 8}, "strict, 2 workers": {"strict": True, "workers": 2}}
WORLDS = {"ideal": {}, "trouble": TROUBLE}
DROPOUT = "models_of_users:dropout"


@pytest.fixture(autouse=True)
def _workers_take_short_work_too(monkeypatch):
    monkeypatch.setattr(work_queue, "SHORT", 0.0)


def outcome(name, out, **settings):
    """All that must be equal."""
    catchment.run(experiment(name, **settings), out)
    return Outcome.of(out)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", METHODS)
def test_workers_and_strictness_change_nothing(name, world, reference, tmp_path):
    expected = reference(name, rounds=2, **WORLDS[world])
    for label, variant in VARIANTS.items():
        settings = {"few": True, "rounds": 2, **WORLDS[world], **variant}
        assert outcome(name, tmp_path / label, **settings) == expected, label


@pytest.mark.parametrize("name", ["fedavg", "fedkgf"])
def test_order_of_arrival_changes_nothing(name, tmp_path):
    """Synchronous methods end equal whoever is faster; only times differ."""
    slow_first = {"devices": {"profile": ["sensor", "phone", "slow-phone"]}}
    fast_first = {"devices": {"profile": ["laptop", "slow-phone", "sensor"]}}
    results = [
        outcome(name, tmp_path / str(n), few=True, **world).result
        for n, world in enumerate(({}, slow_first, fast_first))
    ]
    assert len({result["fingerprint"] for result in results}) == 1
    assert len({json.dumps(result["bytes"]) for result in results}) == 1
    assert len({result["virtual_seconds"] for result in results}) == 3


def test_evaluating_less_often_does_not_change_training(tmp_path):
    often = outcome("fedgkt", tmp_path / "often", rounds=4, few=True).result
    seldom = outcome("fedgkt", tmp_path / "seldom", rounds=4, few=True, evaluation={"every": 4}).result
    assert often["fingerprint"] == seldom["fingerprint"]
    assert often["bytes"]["evaluation"] > seldom["bytes"]["evaluation"] > 0


def test_another_seed_gives_another_result(tmp_path):
    one, other = (outcome("fedavg", tmp_path / str(seed), few=True, seed=seed).result for seed in (0, 1))
    assert one["fingerprint"] != other["fingerprint"]


def test_a_model_that_draws_is_served_the_same_by_any_number_of_workers(tmp_path):
    """Dropout draws from PyTorch's global generator, which all threads share."""
    model = {"models": {"client": DROPOUT}, "few": True}
    reference = outcome("fedavg", tmp_path / "1", **model)
    assert outcome("fedavg", tmp_path / "4", workers=4, **model) == reference
    assert outcome("fedavg", tmp_path / "s", strict=True, **model) == reference


@pytest.mark.parametrize(
    ("name", "models"),
    [("feddf", {"client": DROPOUT}), ("centralized", {"client": DROPOUT}), ("fedgem", {"server": DROPOUT})],
)
def test_a_model_that_draws_is_trained_the_same_by_the_server(name, models, tmp_path):
    settings = {"few": True, "models": models, "rounds": 2}
    reference = outcome(name, tmp_path / "1", **settings)
    torch.rand(1)
    assert outcome(name, tmp_path / "2", **settings) == reference
