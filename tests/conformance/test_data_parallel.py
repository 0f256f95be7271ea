"""Ranks that share the training of the server's model: every step is that of one process, up to rounding."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from jobs import job
from worlds import experiment

from catchment import launch
from catchment.learning import parallel
from catchment.runs.checkpoint import Checkpoints

HALVES = {"client": "models_of_users:flat_edge", "server": "models_of_users:flat_half"}
SERVERS: dict[
    str, Any
] = {  # with models that have no batch normalisation, as each rank normalises its own rows on CPUs
    "fedgkt": {"models": HALVES},
    "fedgkt, asynchronous": {"models": HALVES, "data": {"augment": []}},
    "oneshot": {"models": HALVES},
    "fedgem": {},
    "fedgems": {"models": {"client": "mlp", "server": "cnn"}},
    "dsfl": {},
    "feddf, two architectures": {},
    "standalone": {"models": {"client": "mlp", "server": "cnn"}, "data": {"public": 0.4}},
    "centralized": {},
}
SGD = {
    "server": {"name": "sgd", "lr": 0.1, "momentum": 0.9}
}  # Adam makes large steps of rounding where gradients are 0


@pytest.fixture(scope="module", params=[2])
def ranks(request):
    with job(request.param) as (ranks, _):
        yield ranks


@pytest.fixture
def steps(monkeypatch):
    """The sizes of the batches that are shared."""
    steps, step = [], parallel.Together._step

    def noted(together, own, rows, *rest):
        steps.append(len(rows[parallel.IMAGES]))
        return step(together, own, rows, *rest)

    monkeypatch.setattr(parallel.Together, "_step", noted)
    return steps


def state(out, name, ranks, **settings):
    """The tensors of the server's state after a round."""
    settings = {"optimizer": SGD, **settings}
    launch.run(experiment(name, rounds=1, few=True, data_parallel=True, **settings), out, ranks=ranks)
    tensors = Checkpoints(out / "checkpoints").latest().tensors
    return {key: tensor for key, tensor in tensors.items() if key.startswith("state/")}


@pytest.mark.parametrize("name", SERVERS)
def test_servers_train_as_in_one_process(name, ranks, steps, tmp_path):
    alone = state(tmp_path / "alone", name, None, **SERVERS[name])
    assert not steps
    shared = state(tmp_path / "shared", name, ranks, **SERVERS[name])
    assert steps
    assert shared.keys() == alone.keys()
    for key, tensor in shared.items():
        torch.testing.assert_close(tensor, alone[key], rtol=1e-4, atol=1e-5, msg=partial("{}: {}".format, key))
    again = state(tmp_path / "again", name, ranks, **SERVERS[name])
    for key, tensor in shared.items():
        assert torch.equal(tensor, again[key]), key


def test_batch_normalisation_and_lower_precision_are_shared_too(ranks, steps, tmp_path):
    """Each rank normalises its own rows: results are near those of one process, and equal to themselves."""
    changes = {"precision": "bfloat16", "models": {"client": "resnet4"}}
    first, again = (state(tmp_path / name, "centralized", ranks, **changes) for name in ("first", "again"))
    assert steps
    for key, tensor in first.items():
        assert tensor.isfinite().all(), key
        assert torch.equal(tensor, again[key]), key


def test_without_the_setting_nothing_is_shared(ranks, steps):
    launch.run(experiment("centralized", rounds=1), ranks=ranks)
    assert not steps


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("centralized", {"models": {"client": "models_of_users:dropout"}}),  # it draws
        (
            "fedgems",
            {"method": {"selection": "batch", "start_epochs": 0}},
        ),  # who teaches looks at outputs
    ],
)
def test_what_cannot_be_shared_is_trained_by_rank_0(name, changes, ranks, steps, tmp_path):
    shared, alone = (
        state(tmp_path / str(number), name, given, **changes) for number, given in enumerate((ranks, None))
    )
    assert not steps
    for key, tensor in alone.items():
        assert torch.equal(shared[key], tensor), key
