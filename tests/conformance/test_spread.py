"""Ranks that share the training of the server's model: every step is that of one process, up to rounding."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from jobs import job
from worlds import experiment

from catchment import launch
from catchment.learning import spread
from catchment.runs.checkpoint import Checkpoints

SERVERS = ("fedgkt", "fedgkt, asynchronous", "fedgem", "fedgems", "dsfl", "feddf, two architectures", "fedzkt")
SERVERS += ("centralized",)


@pytest.fixture(scope="module")
def ranks():
    with job(2) as (ranks, _):
        yield ranks


@pytest.fixture
def steps(monkeypatch):
    """The sizes of the batches that are shared."""
    steps, apply = [], spread._Step.apply

    def noted(own, rows, *rest):
        steps.append(len(rows))
        return apply(own, rows, *rest)

    monkeypatch.setattr(spread._Step, "apply", noted)
    return steps


def state(out, name, ranks, **settings):
    """The tensors of the server's state after a round."""
    launch.run(experiment(name, rounds=1, few=True, spread=True, **settings), out, ranks=ranks)
    tensors = Checkpoints(out / "checkpoints").latest().tensors
    return {key: tensor for key, tensor in tensors.items() if key.startswith("state/")}


@pytest.mark.parametrize("name", SERVERS)
def test_servers_train_as_in_one_process(name, ranks, steps, tmp_path):
    alone = state(tmp_path / "alone", name, None)
    assert not steps
    shared = state(tmp_path / "shared", name, ranks)
    assert steps
    assert shared.keys() == alone.keys()
    for key, tensor in shared.items():
        torch.testing.assert_close(tensor, alone[key], rtol=1e-2, atol=1e-3, msg=partial("{}: {}".format, key))
    again = state(tmp_path / "again", name, ranks)
    for key, tensor in shared.items():
        assert torch.equal(tensor, again[key]), key


def test_without_the_setting_nothing_is_shared(ranks, steps):
    launch.run(experiment("centralized", rounds=1), ranks=ranks)
    assert not steps


def test_a_model_that_draws_is_trained_by_rank_0(ranks, steps):
    launch.run(
        experiment("centralized", rounds=1, spread=True, models={"client": "models_of_users:dropout"}), ranks=ranks
    )
    assert not steps
