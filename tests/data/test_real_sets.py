"""The real files, where CATCHMENT_DATA names a folder that has them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from catchment.data import batches, describe, divide, load
from catchment.errors import DataError
from catchment.tasks import CLASSIFICATION

ROOT = Path(os.environ.get("CATCHMENT_DATA", "nowhere"))


def need(name: str) -> None:
    if not (ROOT / name).is_dir():
        pytest.skip(f"CATCHMENT_DATA has no {name}")


@pytest.mark.parametrize(
    ("name", "shape", "classes", "first", "last"),
    [
        ("mnist", (1, 28, 28), 10, "0", "9"),
        ("fashion_mnist", (1, 28, 28), 10, "T - shirt / top", "Ankle boot"),
        ("cifar10", (3, 32, 32), 10, "airplane", "truck"),
        ("cifar100", (3, 32, 32), 100, "apple", "worm"),
        ("pneumoniamnist", (1, 28, 28), 2, "normal", "pneumonia"),
    ],
)
def test_a_named_set(name: str, shape: tuple, classes: int, first: str, last: str) -> None:
    need(name)
    dataset = load(name, None, train=1000, test=200, seed=0)
    assert dataset.shape == shape
    assert (len(dataset.train), len(dataset.test)) == (1000, 200)
    assert (len(dataset.classes), dataset.classes[0], dataset.classes[-1]) == (classes, first, last)
    counts = CLASSIFICATION.counts(dataset.train.targets, classes)
    assert int((counts > 0).sum()) == classes  # drawn from all rows, not from the first
    (batch,) = batches(dataset.train, 1000, normalise=dataset.normalise, seed=None)
    if name != "pneumoniamnist":  # normalised with 0.5, as is usual for it
        assert float(batch.images.mean().abs()) < 0.05
        assert float((batch.images.std() - 1).abs()) < 0.05


def test_table_6_fits_the_real_cifar10() -> None:
    need("cifar10")
    dataset = load("cifar10", ROOT, train=5000, test=100, seed=0)
    division = divide(dataset, 16, {"name": "table", "file": "fedgkt_table6", "scale": True}, None, 0)
    totals = torch.tensor(describe(division)).sum(0)
    assert (totals == totals[0]).all()
    assert 400 < int(totals[0]) <= 500


def test_digits_as_a_folder(tmp_path: Path) -> None:
    need("digits")
    with pytest.raises(DataError, match=r"no test or validation split"):
        load(str(ROOT / "digits"), None, train=None, test=None, seed=0)
    for split in ("train", "test"):
        (tmp_path / f"{split}.parquet").symlink_to(ROOT / "digits" / "train.parquet")
    folder = load(str(tmp_path), None, train=None, test=None, seed=0)
    ours = load("digits", None, train=None, test=None, seed=0)
    assert folder.classes == ours.classes
    theirs = sorted(map(tuple, folder.train.images.flatten(1).tolist()))
    both = torch.cat([ours.train.images, ours.test.images])
    assert theirs == sorted(map(tuple, both.flatten(1).tolist()))
