"""Any task rides on methods that exchange weights; the others refuse it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import catchment
from catchment import Dataset, Experiment, Normalisation, Samples
from catchment.errors import DataError, ExperimentError, ModelError
from catchment.methods import METHODS
from catchment.tasks import CLASSIFICATION, Rows

ANY_TASK = ("centralized", "dgc", "fedavg", "fedcams", "fedcom", "fedkgf", "fedpm", "fedprox", "smartidx", "standalone")
HELPERS = str(Path(__file__).parents[1] / "helpers")


def experiment(method: str, **changes) -> Experiment:
    table = {
        "rounds": 2,
        "workers": 1,
        "path": HELPERS,
        "method": {"name": method},
        "data": {"name": "brightness:images", "clients": 3},
        "models": {"client": "brightness:model"},
        "optimizer": {"client": {"name": "sgd", "lr": 0.1, "batch_size": 5}},
    }
    return Experiment.from_dict(table, changes)


@pytest.mark.parametrize("method", ANY_TASK)
def test_a_task_of_ones_own_needs_one_file(method):
    result = catchment.run(
        experiment(method, **{"models.client": "kgf(brightness:model,2)"} if method == "fedkgf" else {})
    )
    assert result["rounds"] == 2
    if method != "standalone":  # whose clients measure by themselves
        assert set(result["server"]) == {"accuracy", "loss", "worst"}


def test_it_is_learned():
    result = catchment.run(experiment("fedavg", **{"rounds": 30}))
    assert result["server"]["loss"] < 0.02  # the variance of brightness is 0.08


@pytest.mark.parametrize("method", sorted(set(METHODS) - set(ANY_TASK)))
def test_methods_of_classes_refuse_it_in_one_sentence(method):
    with pytest.raises(
        ExperimentError, match=f"^{method} works with classes of whole images, and the task .* regression"
    ):
        experiment(method).build_world()


def test_a_model_of_another_task_is_refused():
    with pytest.raises(
        ModelError, match=r'model "brightness:three" is not for regression: outputs have shape \[2, 3\]'
    ):
        experiment("fedavg", **{"models.client": "brightness:three"}).build_world()


def test_labels_of_another_task_are_refused():
    images = torch.zeros(2, 1, 4, 4, dtype=torch.uint8)
    samples = Samples(images, torch.zeros(2), torch.arange(2))
    with pytest.raises(
        DataError, match=r"train part: labels are float32 of shape \[2\], expected int64 of shape \[N\]"
    ):
        Dataset(samples, samples, ("a",), Normalisation(255, (0.5,), (0.5,)))


def test_an_augmentation_of_another_task_is_refused():
    with pytest.raises(ExperimentError, match=r'data\.augment has "flip", which is none of regression'):
        experiment("fedavg", **{"data.augment": ["flip"]}).build_world()


def test_what_needs_classes_of_images_refuses_other_tasks():
    with pytest.raises(ExperimentError, match="label-flip changes the class of an image, and the task is regression"):
        experiment("fedavg", **{"attack": {"name": "label-flip"}}).build_world()
    with pytest.raises(ExperimentError, match=r"data\.public is another data set, which is possible in classification"):
        experiment("fedavg", **{"data.public": {"name": "digits"}}).build_world()


def test_classification_counts_and_augments():
    labels = torch.tensor([2, 0, 2])
    assert CLASSIFICATION.counts(labels, 4).tolist() == [1, 0, 2, 0]
    images = torch.arange(12, dtype=torch.uint8).view(3, 1, 2, 2)
    rows = Rows(images, labels, torch.arange(3))
    changed, same = CLASSIFICATION.augment(rows, rows, ("flip",), 1)
    assert same is labels
    assert changed.shape == images.shape
