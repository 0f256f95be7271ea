"""Data that only a device has: what the server loads, and how a device's labels become the server's classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from catchment.data import Dataset, Form, Normalisation, divide, load, own_division
from catchment.errors import DataError

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 4, 5), dtype=np.uint8)
FORM = Form((1, 4, 5), ("ant", "bee", "cat"), Normalisation(255, (0.5,), (0.5,)))


def save(file: Path, labels: Any, images: Any = PIXELS, **more: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, images=images[: len(labels)], labels=np.asarray(labels), **more)


def server(folder: Path, **options: Any) -> Dataset:
    return load(str(folder), None, train=None, test=None, seed=0, own=True, **options)


# ---- the server


def test_a_server_needs_no_train_split(tmp_path: Path) -> None:
    save(tmp_path / "test.npz", [2, 0, 2], classes=["ant", "bee", "cat"])
    dataset = server(tmp_path)
    assert (len(dataset.train), len(dataset.test), dataset.public) == (0, 3, None)
    assert dataset.form == FORM
    save(tmp_path / "train.npz", [0, 1], images=PIXELS[:, :1])  # of no interest, whatever it is
    assert server(tmp_path).form == FORM


def test_a_server_deals_nothing(tmp_path: Path) -> None:
    save(tmp_path / "test.npz", [2, 0, 2])
    save(tmp_path / "public.npz", [0, 2, 2, 0])
    division = divide(server(tmp_path), 4, {"name": "own"}, None, 0)
    assert division.own
    assert [len(rows) for rows in division.clients] == [0, 0, 0, 0]
    assert len(division.test) == 3
    assert division.public is not None
    assert division.public.targets.tolist() == [0, 1, 1, 0]  # classes "0" and "2"
    assert division.public_test is None
    assert server(tmp_path).form.public == 4


def test_named_sets_and_functions_keep_only_what_a_server_has(tmp_path: Path) -> None:
    digits = load("digits", None, train=None, test=50, seed=0, own=True)
    assert (len(digits.train), len(digits.test)) == (0, 50)
    save(tmp_path / "mnist/test.npz", [0, 1])
    assert load("mnist", tmp_path, train=None, test=None, seed=0, own=True).normalise.mean == (0.1307,)
    with pytest.raises(DataError, match=r'"kmnist" is not at .* \(no test\.parquet or test\.npz there\)'):
        load("kmnist", tmp_path, train=None, test=None, seed=0, own=True)
    with pytest.raises(DataError, match=r"there is no folder or file .*mnist/none"):
        server(tmp_path / "mnist/none")


def test_classes_that_the_test_split_does_not_show_are_given(tmp_path: Path) -> None:
    save(tmp_path / "test.npz", ["cat", "ant", "cat"])
    assert server(tmp_path).classes == ("ant", "cat")
    dataset = server(tmp_path, classes=["ant", "bee", "cat"])
    assert dataset.classes == ("ant", "bee", "cat")
    assert dataset.test.targets.tolist() == [2, 0, 2]
    with pytest.raises(DataError, match=r"test\.npz has samples of cat, but the classes are ant, bee"):
        server(tmp_path, classes=["ant", "bee"])


# ---- a device


def test_a_device_has_all_of_its_folder_and_others_have_nothing(tmp_path: Path) -> None:
    save(tmp_path / "train.npz", [2, 0, 1, 1])
    save(tmp_path / "test.npz", [2])
    division = own_division(tmp_path, Form.from_dict(json.loads(json.dumps(FORM.to_dict()))), 1, 3)
    assert division.own
    assert [rows.tolist() for rows in division.clients] == [[], [0, 1, 2, 3], []]
    assert division.client(1).targets.tolist() == [2, 0, 1, 1]
    assert division.dataset.form == FORM
    assert division.test.targets.tolist() == [2]
    assert division.client(1).images[:, 0].equal(torch.from_numpy(PIXELS[:4]))


@pytest.mark.parametrize(
    ("labels", "names", "expected"),
    [
        ([2, 0, 1], None, [2, 0, 1]),  # numbers without names are class numbers
        ([0, 1, 0], ["cat", "ant"], [2, 0, 2]),  # a device may number its classes in another way
        (["bee", "ant", "cat"], None, [1, 0, 2]),
        ([1, 1], ["dog", "bee"], [1, 1]),  # a name without samples does no harm
    ],
)
def test_labels_become_the_servers_numbers(tmp_path: Path, labels: list, names: list | None, expected: list) -> None:
    save(tmp_path / "train.npz", labels, **({} if names is None else {"classes": names}))
    assert own_division(tmp_path, FORM, 0, 1).client(0).targets.tolist() == expected


def test_classes_that_are_called_by_numbers_are_meant_by_name(tmp_path: Path) -> None:
    form = Form((1, 4, 5), ("3", "5", "7"), FORM.normalise)
    save(tmp_path / "train.npz", [7, 3, 7])
    assert own_division(tmp_path, form, 0, 1).client(0).targets.tolist() == [2, 0, 2]
    save(tmp_path / "train.npz", [0, 1])
    with pytest.raises(DataError, match=r"train\.npz has samples of 0, 1, but the classes are 3, 5, 7"):
        own_division(tmp_path, form, 0, 1)


def test_grey_images_become_as_colourful_as_the_servers(tmp_path: Path) -> None:
    save(tmp_path / "train.npz", [0, 1])
    division = own_division(tmp_path, Form((3, 4, 5), FORM.classes, FORM.normalise), 0, 1)
    assert division.dataset.shape == (3, 4, 5)
    assert division.client(0).images[1].equal(torch.from_numpy(PIXELS[1]).expand(3, 4, 5))


@pytest.mark.parametrize(
    ("labels", "images", "expected"),
    [
        ([3], PIXELS, r"has labels 3, but 3 classes are numbered 0 to 2"),
        (["dog"], PIXELS, r"has samples of dog, but the classes are ant, bee, cat"),
        ([0], PIXELS[:, :3], r"are \[1, 3, 5\], those of the server \[1, 4, 5\]"),
        ([0], np.stack([PIXELS] * 3, 3), r"are \[3, 4, 5\], those of the server \[1, 4, 5\]"),
        (np.zeros(0, int), PIXELS, r"has no rows"),
    ],
)
def test_data_that_do_not_fit_the_servers_are_refused(
    tmp_path: Path, labels: Any, images: np.ndarray, expected: str
) -> None:
    save(tmp_path / "train.npz", labels, images)
    with pytest.raises(DataError, match=expected):
        own_division(tmp_path, FORM, 0, 1)


def test_an_empty_folder_and_other_public_data_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no train split in .*, which was given as the data of a client; train\.npz, "):
        own_division(tmp_path, FORM, 0, 1)
    save(tmp_path / "train.npz", [0, 1])
    form = Form(FORM.shape, FORM.classes, FORM.normalise, public=3)
    with pytest.raises(DataError, match=r"has 0 public samples, the server 3; copy the server's public split"):
        own_division(tmp_path, form, 0, 1)
    save(tmp_path / "public.npz", [0, 1])
    with pytest.raises(DataError, match=r"has 2 public samples, the server 3"):
        own_division(tmp_path, form, 0, 1)
    save(tmp_path / "public.npz", [0, 1, 2])
    public = own_division(tmp_path, form, 0, 1).public
    assert public is not None
    assert len(public) == 3


@pytest.mark.parametrize("damage", [{"shape": [1, 2]}, {"normalise": {}}, {"public": None}, {"classes": 3}])
def test_a_form_that_is_none_is_refused(damage: dict) -> None:
    with pytest.raises(DataError, match="a form of data cannot be read from"):
        Form.from_dict({**FORM.to_dict(), **damage})
