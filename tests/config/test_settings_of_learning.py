"""Schedules, averages, validation samples and precision, from the file to the world."""

from __future__ import annotations

import pytest

from catchment import Experiment
from catchment.errors import ExperimentError
from catchment.learning.schedules import Schedule


def test_they_reach_the_world_and_come_back_from_toml():
    table = {
        "rounds": 7,
        "data": {"clients": 2, "train": 100, "test": 20, "validation": 0.1},
        "models": {"client": "mlp(4)"},
        "optimizer": {
            "client": {"schedule": {"name": "step", "at": [2, 5], "warmup": 1}},
            "server": {"schedule": {"name": "plateau", "patience": 3}},
        },
        "evaluation": {"average": 0.99},
    }
    experiment = Experiment.from_dict(table)
    assert Experiment.from_toml(experiment.to_toml()) == experiment
    world = experiment.build_world()
    assert world.client_optimizer.schedule == Schedule("step", at=(2, 5), warmup=1)
    assert world.server_optimizer.schedule == Schedule("plateau", patience=3)
    assert (world.rounds, world.average, world.precision) == (7, 0.99, "float32")
    assert world.data.validation is not None
    assert len(world.data.validation) == 10


def test_another_schedule_drops_the_options_of_the_earlier_file(tmp_path):
    (tmp_path / "base.toml").write_text("[optimizer.client.schedule]\nname = 'step'\nevery = 3\n")
    (tmp_path / "own.toml").write_text("extends = 'base.toml'\n[optimizer.client.schedule]\nname = 'cosine'\n")
    assert Experiment.load(tmp_path / "own.toml").optimizer.client.schedule == Schedule("cosine")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"optimizer.client.schedule.name": "sine"},
            r'schedule.name is the text "sine"; expected one of constant, step, cosine, plateau',
        ),
        ({"optimizer.server.schedule.name": "plateau"}, r'optimizer.server.schedule is "plateau".*set data.validation'),
        ({"evaluation.average": 1.0}, r"evaluation.average is 1.0; a decay from 0 to below 1"),
        ({"data.validation": 1.0}, r"data.validation is 1.0; a share from 0 to below 1"),
        ({"precision": "float16"}, r'precision is the text "float16"; expected one of float32, bfloat16'),
    ],
)
def test_what_cannot_work_is_refused(changes, sentence):
    with pytest.raises(ExperimentError, match=sentence):
        Experiment.from_dict({}, changes)


def test_a_device_without_autocast_is_refused():
    small = {"data": {"clients": 2, "train": 20, "test": 20}, "models": {"client": "mlp(4)"}, "device": "meta"}
    with pytest.raises(ExperimentError, match='device "meta" has no automatic mixed precision'):
        Experiment.from_dict({**small, "precision": "bfloat16"}).build_world()
