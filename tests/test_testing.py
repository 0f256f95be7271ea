"""The checks for methods, models and codec stages of your own: what is sound passes, and each mistake is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from worlds import HERE

from catchment import Experiment
from catchment.testing import check_method, check_model, check_stage

OWN = Path(__file__).parents[1] / "examples" / "own"
SMALL = {"models": {"client": "faulty:flat"}, "path": HERE}


def test_a_method_of_ones_own_passes():
    result = check_method("own:HalfSteps", path=str(OWN), data={"name": "own:blobs"}, models={"client": "own:net"})
    assert 0 <= result["accuracy"] <= 1


def test_an_experiment_is_checked_as_it_is():
    experiment = Experiment.of(**SMALL, rounds=1, data={"clients": 3, "train": 30, "test": 10})
    assert check_method(experiment)["data"]["clients"] == 3


@pytest.mark.slow
def test_a_method_runs_over_flower_too():
    check_method("own:HalfSteps", flower=True, path=str(OWN), data={"name": "own:blobs"}, models={"client": "own:net"})


@pytest.mark.parametrize(
    ("method", "says"),
    [
        ("Counts", "with three workers in strict mode: result differs: "),
        ("Breaks", "with one worker: client [0-3] is failed: .*the second round"),
        ("Divides", "with one worker: .* nan as "),
        ("Waits", "with messages that are lost: the run ends with KeyError"),
    ],
)
def test_a_mistake_of_a_method_is_named(method, says):
    with pytest.raises(AssertionError, match=says):
        check_method(f"faulty:{method}", **SMALL)


@pytest.mark.parametrize("model", ["cnn", "faulty:flat", "models_of_users:dropout", "mlp"])
def test_a_model_passes(model):
    check_model(model, path=HERE)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("drawn_elsewhere", "first weights differ from one time to the next, such as 1.bias"),
        ("of_its_batch", "the output of an image depends on the others of its batch"),
        ("one_class_more", r"10"),
        ("frozen", "nothing in it can be trained"),
    ],
)
def test_a_mistake_of_a_model_is_named(model, says):
    with pytest.raises(Exception, match=says):
        check_model(f"faulty:{model}", path=HERE)


@pytest.mark.parametrize("stage", ["int8", "zstd", "topk(0.1)", "sparse+zstd"])
def test_a_stage_passes(stage):
    check_stage(stage)


def test_a_stage_of_ones_own_passes():
    check_stage("ternary:Ternary", path=str(OWN))


def test_a_mistake_of_a_stage_is_named():
    with pytest.raises(AssertionError, match="comes back with other numbers; say loses = True"):
        check_stage("faulty:Rounded", path=HERE)
