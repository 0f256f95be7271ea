"""Data sets of PyTorch and Hugging Face, given in Python; and what must not train without a word."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, ClassVar

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset as TorchDataset, IterableDataset, Subset, TensorDataset

import catchment
from catchment import Dataset, Experiment
from catchment.errors import DataError, ExperimentError, ModelError

IMAGES = torch.arange(20, dtype=torch.uint8).view(20, 1, 1, 1).repeat(1, 1, 4, 4)
LABELS = torch.arange(20) % 2
NAMES = ("cat", "dog")


def experiment(name: Any, **more: Any) -> Experiment:
    data = {"name": name, "clients": 2, **more}
    return Experiment.of(rounds=1, workers=1, models={"client": "mlp(4)"}, data=data)


def built(name: Any, **more: Any) -> Dataset:
    return experiment(name, **more).build_world().data.dataset


class Pictures(TorchDataset):
    """As sets of torchvision are: Pillow's images, and the names of the classes."""

    classes: ClassVar = list(NAMES)

    def __len__(self) -> int:
        return 20

    def __getitem__(self, row: int) -> tuple[Any, int]:
        return Image.fromarray(IMAGES[row, 0].numpy()), int(LABELS[row])


def hub(images: list[Any] | None = None) -> datasets.Dataset:
    features = datasets.Features({"scan": datasets.Image(), "finding": datasets.ClassLabel(names=list(NAMES))})
    arrays = [image[0].numpy() for image in IMAGES] if images is None else images
    return datasets.Dataset.from_dict({"scan": arrays, "finding": LABELS.tolist()[: len(arrays)]}, features)


# ---- PyTorch


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (TensorDataset(IMAGES, LABELS[:, None]), ("0", "1")),
        (Pictures(), NAMES),
        (Subset(Pictures(), range(20)), NAMES),
        ([{"image": image, "label": NAMES[label]} for image, label in zip(IMAGES[:, 0].numpy(), LABELS)], NAMES),
        (
            [(image.permute(1, 2, 0).expand(4, 4, 3).numpy(), int(label)) for image, label in zip(IMAGES, LABELS)],
            ("0", "1"),
        ),
    ],
    ids=["tensors", "pictures", "a part", "dicts", "channels last"],
)
def test_a_data_set_of_pytorch_is_taken_as_it_is(given: Any, names: tuple[str, ...]) -> None:
    if isinstance(given, list):
        given = Subset(given, range(20))  # type: ignore[arg-type]
    dataset = built(given)
    assert dataset.classes == names
    assert (len(dataset.train), len(dataset.test)) == (16, 4)  # a fifth of each class
    for part in (dataset.train, dataset.test):
        assert part.images.dtype == torch.uint8
        assert (part.images[:, 0, 0, 0] % 2).tolist() == part.targets.tolist()
    both = built({"train": given, "test": given}, train=6)
    assert (len(both.train), len(both.test)) == (6, 20)
    assert both.test.images[:, :1].equal(IMAGES)


def test_floats_are_taken_as_normalised_and_what_draws_draws_alike() -> None:
    class Noisy(Pictures):
        def __getitem__(self, row: int) -> tuple[Any, int]:
            return torch.randn(1, 4, 4, dtype=torch.float64), int(LABELS[row])

    noisy = Noisy()
    before = torch.get_rng_state()
    first, again = built(noisy), built(noisy)
    assert first.train.images.dtype == torch.float32
    assert first.train.images.equal(again.train.images)
    assert torch.get_rng_state().equal(before)


def test_such_a_set_trains() -> None:
    assert catchment.run(experiment({"train": Pictures(), "test": hub()}))["rounds"] == 1


# ---- Hugging Face


def test_a_data_set_of_hugging_face_is_taken_as_it_is() -> None:
    dataset = built(hub())
    assert (dataset.classes, len(dataset.train), len(dataset.test)) == (NAMES, 16, 4)
    assert (dataset.test.images[:, 0, 0, 0] % 2).tolist() == dataset.test.targets.tolist()
    divided = built(hub().train_test_split(0.25, seed=0).with_format("torch"))
    assert (divided.shape, len(divided.train), len(divided.test)) == ((1, 4, 4), 15, 5)
    assert (divided.train.images[:, 0, 0, 0] % 2).tolist() == divided.train.targets.tolist()


def test_sizes_and_damage() -> None:
    images = [
        {"bytes": b"no image", "path": None},
        np.full((3, 9), 7, np.uint8),
        *(image[0].numpy() for image in IMAGES[2:]),
    ]
    with pytest.raises(DataError, match=r"4 x 4 pixels, those before it 9 x 3; .* set data\.size"):
        built({"train": hub(images), "test": hub()})
    dataset = built({"train": hub(images), "test": hub()}, size=5)
    assert dataset.shape == (1, 5, 5)
    assert dataset.train.images[:, 0, 0, 0].tolist() == [7, *range(2, 20)]
    ((fault, count),) = dataset.faults.items()
    assert fault.startswith("train: images left out (the image in row 0 of the split train cannot be decoded: ")
    assert count == 1


def test_columns_are_known_by_their_names_where_types_do_not_tell() -> None:
    plain = datasets.Dataset.from_dict({"img": IMAGES.tolist(), "label": [NAMES[label] for label in LABELS]})
    dataset = built(plain)
    assert (dataset.classes, dataset.train.images.dtype) == (NAMES, torch.uint8)
    with pytest.raises(
        DataError, match=r"no column that is known for its labels; its columns are img, kind: .*Dataset\.of"
    ):
        built(plain.rename_column("label", "kind"))
    with pytest.raises(DataError, match=r"no column that is known for its images; its columns are scan, label"):
        built(plain.rename_column("img", "scan"))


# ---- the user's own function, and what is refused


def test_a_function_may_return_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "given_by_a_function.py").write_text("import sets\npictures = sets.Pictures\n")
    monkeypatch.setitem(sys.modules, "sets", sys.modules[__name__])
    monkeypatch.syspath_prepend(tmp_path)
    assert built("given_by_a_function:pictures", test_share=0.5).classes == NAMES


class Torn(Pictures):
    def __getitem__(self, row: int) -> Any:
        if row == 3:
            raise OSError("torn")
        return super().__getitem__(row)


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(())


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (Stream(), r"the data set is of type Stream, which has no length; catchment\.Dataset\.of"),
        (hub().to_iterable_dataset(), r"is of type IterableDataset, .*; load it without streaming"),
        (TensorDataset(IMAGES), r"item 0 of the data set is no pair of an image and a label"),
        (TensorDataset(IMAGES, LABELS / 2), r"item 0 of the data set is no pair of an image and a label"),
        (
            TensorDataset(IMAGES.int(), LABELS),
            r"no image that can be read: .* is int32 of shape \[1, 4, 4\]; uint8 or float",
        ),
        (
            {"train": Pictures()},
            r'the data set has a train split but no test or validation split \("test": \.\.\. in the dict, or data',
        ),
        ({"test": Pictures()}, r'no train split in the data set, .*; "train": \.\.\. in the dict is expected$'),
        (
            Torn(),
            r"item 3 of the data set cannot be read \(OSError: torn\); torch\.utils\.data\.Subset leaves items out",
        ),
    ],
    ids=["stream", "hub stream", "no labels", "float labels", "whole numbers", "no tests", "no training", "torn"],
)
def test_what_cannot_be_used_is_one_sentence(given: Any, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        built(given)


@pytest.mark.parametrize("given", [DataLoader(Pictures()), (IMAGES, LABELS), {"training": Pictures()}, 3])
def test_other_objects_are_refused_with_what_can_be_given(given: Any) -> None:
    with pytest.raises(
        ExperimentError, match=r"data\.name is of type \w+; .*catchment\.Dataset \(Dataset\.of makes one"
    ):
        experiment(given)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("part", ["train", "test"])
def test_images_that_are_not_numbers_are_refused(bad: float, part: str) -> None:
    images = {"train": IMAGES.float(), "test": IMAGES.float()}
    images[part][[3, 5], 0, 1, 1] = bad
    dataset = Dataset.of(images["train"], LABELS, images["test"], LABELS)
    with pytest.raises(DataError, match=rf"2 of 20 {part} images have pixels that are NaN or infinite; leave them out"):
        built(dataset)


@pytest.mark.parametrize("outputs", [1, 3, 10])
def test_a_model_needs_an_output_for_each_class(outputs: int) -> None:
    def net() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, outputs))

    made = Experiment.of(models={"client": net}, data={"name": Pictures(), "clients": 2})
    with pytest.raises(
        ModelError, match=rf"outputs have shape \[2, {outputs}\] for two images, expected logits \[2, 2\]"
    ):
        made.build_world()
