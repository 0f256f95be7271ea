"""Detection under every method that exchanges weights, on every path of the engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

import catchment
from catchment import Experiment
from catchment.errors import ExperimentError, ModelError
from catchment.methods import METHODS
from catchment.report import write_report
from catchment.runs.reading import RunFiles

HELPERS = str(Path(__file__).parents[1] / "helpers")
ANY_TASK = ("centralized", "dgc", "fedavg", "fedcams", "fedcom", "fedkgf", "fedpm", "fedprox", "smartidx", "standalone")


def experiment(method: str = "fedavg", **changes) -> Experiment:
    table = {
        "rounds": 2,
        "workers": 1,
        "path": HELPERS,
        "method": {"name": method},
        "data": {
            "name": "squares:images",
            "clients": 3,
            "train": 24,
            "test": 8,
            "augment": ["flip", "colour", "mosaic"],
        },
        "models": {"client": "squares:model"},
        "optimizer": {"client": {"name": "sgd", "lr": 0.01, "batch_size": 4}},
    }
    if method == "fedkgf":
        table["models"]["client"] = "kgf(squares:model,4)"
    return Experiment.from_dict(table, changes)


@pytest.mark.parametrize("method", ANY_TASK)
def test_methods_that_exchange_weights_detect(method):
    result = catchment.run(experiment(method))
    strict = catchment.run(experiment(method, strict=True))
    assert result["fingerprint"] == strict["fingerprint"]
    assert result["failed"] == result["refused"] == 0
    assert 0 <= result["accuracy"] <= 1
    if method != "standalone":
        assert {"accuracy", "loss", "AP50", "AP75"} <= result["server"].keys()


@pytest.mark.parametrize("method", sorted(set(METHODS) - set(ANY_TASK)))
def test_the_others_refuse_in_one_sentence(method):
    with pytest.raises(
        ExperimentError, match=f"^{method} works with classes of whole images, and the task .* is detection"
    ):
        experiment(method).build_world()


def test_a_run_goes_on_where_it_stopped(tmp_path):
    whole = catchment.run(experiment("fedavg", rounds=3))

    def stop(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        catchment.run(experiment("fedavg", rounds=3), tmp_path / "run", observe=stop)
    assert catchment.resume(tmp_path / "run")["fingerprint"] == whole["fingerprint"]


def test_a_run_draws_what_is_true_and_what_was_found(tmp_path):
    catchment.run(experiment("fedavg"), tmp_path / "run")
    with Image.open(tmp_path / "run" / "images" / "found.png") as picture:
        side = 32 * (56 // 32)  # small images are enlarged
        assert picture.size == (6 * side + 5 * 2, 2 * side + 2)
    page = write_report([RunFiles.read(tmp_path / "run")], tmp_path / "report.html")
    assert "what is true above, what was found below" in page.read_text()


def test_without_a_global_model_nothing_is_drawn(tmp_path):
    catchment.run(experiment("standalone"), tmp_path / "run")
    assert not (tmp_path / "run" / "images").exists()


def test_it_learns_squares():
    settings = {"name": "adam", "lr": 0.01, "batch_size": 4}
    result = catchment.run(experiment("fedavg", **{"rounds": 40, "optimizer.client": settings, "data.augment": []}))
    assert result["server"]["AP50"] > 0.15  # nothing at first; a convolution or two do not see more


def test_a_class_that_a_client_does_not_have(tmp_path):
    partition = {"name": "classes_per_client", "classes": 1}
    result = catchment.run(experiment("fedavg", **{"data.clients": 2, "data.partition": partition}))
    assert result["failed"] == 0


def test_models_of_classification_are_refused_and_the_other_way_round():
    with pytest.raises(ModelError, match=r'"resnet20" is not for detection: outputs have shape \[2, 2\], expected'):
        experiment(**{"models.client": "resnet20"}).build_world()
    with pytest.raises(ModelError, match=r'"yolox_nano" is not for classification: outputs have shape \[2, 84, 18\]'):
        Experiment.from_dict(
            {"data": {"name": "squares:grey"}, "models": {"client": "yolox_nano"}, "path": HELPERS}
        ).build_world()


def test_crops_are_for_classification():
    with pytest.raises(ExperimentError, match=r'data\.augment has "crop", which is none of detection'):
        experiment(**{"data.augment": ["crop"]}).build_world()
