"""Every method gives the same results, bit for bit, however the in-process engine serves it."""

from __future__ import annotations

import json

import pytest
import torch
from worlds import METHODS, PHONES, TROUBLE, experiment

import catchment

VARIANTS = {
    "2 workers": {"workers": 2},
    "8 workers": {"workers": 8},
    "strict": {"strict": True},
    "strict, 2 workers": {"strict": True, "workers": 2},
}
WORLDS = {"ideal": {}, "phones": PHONES, "trouble": TROUBLE}
ELSEWHERE = ("8 workers", "strict, 2 workers")  # than in the ideal world: with these the others would differ too


def outcome(name, tmp_path, **settings):
    """All that must be equal: result, rounds and ledger, less the wall time."""
    out = tmp_path / "run"
    result = catchment.run(experiment(name, **settings), out=out)
    rounds = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    for record in (result, *rounds):
        del record["seconds"], record["spent"]
    return result, rounds, (out / "ledger.jsonl").read_text()


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", METHODS)
def test_workers_and_strictness_change_nothing(name, world, tmp_path):
    settings = {"few": True, **WORLDS[world]}
    reference = outcome(name, tmp_path / "reference", **settings)
    for label in VARIANTS if world == "ideal" else ELSEWHERE:
        assert outcome(name, tmp_path / label, **settings, **VARIANTS[label]) == reference, label


@pytest.mark.parametrize("name", ["fedavg", "fedkgf"])
def test_order_of_arrival_changes_nothing(name, tmp_path):
    """Synchronous methods end equal whoever is faster; only times differ."""
    slow_first = {"devices": {"profile": ["sensor", "phone", "slow-phone"]}}
    fast_first = {"devices": {"profile": ["laptop", "slow-phone", "sensor"]}}
    results = [outcome(name, tmp_path / str(n), **world)[0] for n, world in enumerate(({}, slow_first, fast_first))]
    assert len({result["fingerprint"] for result in results}) == 1
    assert len({json.dumps(result["bytes"]) for result in results}) == 1
    assert len({result["virtual_seconds"] for result in results}) == 3


def test_evaluating_less_often_does_not_change_training(tmp_path):
    often = outcome("fedgkt", tmp_path / "often", rounds=4)[0]
    seldom = outcome("fedgkt", tmp_path / "seldom", rounds=4, evaluation={"every": 4})[0]
    assert often["fingerprint"] == seldom["fingerprint"]
    assert often["bytes"]["evaluation"] > seldom["bytes"]["evaluation"] > 0


def test_another_seed_gives_another_result(tmp_path):
    assert (
        outcome("fedavg", tmp_path / "a")[0]["fingerprint"]
        != outcome("fedavg", tmp_path / "b", seed=1)[0]["fingerprint"]
    )


def test_a_model_that_draws_is_served_the_same_by_any_number_of_workers(tmp_path):
    """Dropout draws from PyTorch's global generator, which all threads share."""
    model = {"models": {"client": "models_of_users:dropout"}}
    reference = outcome("fedavg", tmp_path / "1", **model)
    assert outcome("fedavg", tmp_path / "4", workers=4, **model) == reference
    assert outcome("fedavg", tmp_path / "s", strict=True, **model) == reference


DROPOUT = "models_of_users:dropout"


@pytest.mark.parametrize(
    ("name", "models"),
    [("feddf", {"client": DROPOUT}), ("centralized", {"client": DROPOUT}), ("fedgem", {"server": DROPOUT})],
)
def test_a_model_that_draws_is_trained_the_same_by_the_server(name, models, tmp_path):
    settings = {"few": True, "models": models, "rounds": 2}
    reference = outcome(name, tmp_path / "1", **settings)
    torch.rand(1)
    assert outcome(name, tmp_path / "2", **settings) == reference
