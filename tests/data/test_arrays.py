"""NumPy's files: the same data set as in Parquet, and everything that cannot be one."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import catchment
from catchment.data import Dataset, load
from catchment.errors import DataError

Write = Callable[..., None]
Draw = Callable[..., list[np.ndarray]]


def read(folder: Path, **options: Any) -> Dataset:
    return load(str(folder), None, **{"train": None, "test": None, "seed": 3, **options})


def save(file: Path, **arrays: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, **arrays)


def equal(one: Dataset, other: Dataset) -> bool:
    parts = ((one.train, other.train), (one.test, other.test))
    tensors = all(getattr(a, name).equal(getattr(b, name)) for a, b in parts for name in ("images", "labels", "index"))
    return tensors and one.classes == other.classes and one.normalise == other.normalise


@pytest.fixture(params=["grey", "colour", "one channel"])
def both(request: pytest.FixtureRequest, tmp_path: Path, write_split: Write, random_images: Draw) -> tuple[Path, Path]:
    """The same 20 + 8 images in two folders: of Parquet files, of NumPy's."""
    shape = (6, 5, 3) if request.param == "colour" else (6, 5)
    for split, count in (("train", 20), ("test", 8)):
        images, labels = random_images(count, shape, seed=count), [r % 3 for r in range(count)]
        write_split(tmp_path / f"parquet/{split}.parquet", images, labels, names="abc")
        stacked = np.stack(images)[..., None] if request.param == "one channel" else np.stack(images)
        save(tmp_path / f"numpy/{split}.npz", images=stacked, labels=np.array(labels), classes=["a", "b", "c"])
    return tmp_path / "parquet", tmp_path / "numpy"


def test_the_same_data_are_the_same_set(both: tuple[Path, Path]) -> None:
    parquet, numpy = both
    assert equal(read(parquet), read(numpy))
    assert equal(read(parquet, train=7, test=3), read(numpy, train=7, test=3))
    assert read(numpy).classes == ("a", "b", "c")
    assert read(numpy).train.images.is_contiguous()


def test_the_same_data_give_the_same_results(both: tuple[Path, Path]) -> None:
    results = []
    for folder in both:
        table = {
            "rounds": 2,
            "workers": 1,
            "data": {"name": str(folder), "clients": 2, "augment": ["crop", "flip"]},
            "models": {"client": "mlp(8)"},
        }
        results.append(catchment.run(catchment.Experiment.from_dict(table)))
    assert results[0]["fingerprint"] == results[1]["fingerprint"]


@pytest.mark.parametrize(
    ("labels", "classes", "targets"),
    [
        (np.array([5, 9, 5, 7], dtype=np.uint8), ("5", "7", "9"), [0, 2, 0, 1]),
        (np.array(["dog", "cat", "dog", "ant"]), ("ant", "cat", "dog"), [2, 1, 2, 0]),
    ],
)
def test_labels_without_names_name_themselves(
    tmp_path: Path, random_images: Draw, labels: np.ndarray, classes: tuple, targets: list
) -> None:
    save(tmp_path / "train.npz", images=np.stack(random_images(4)), labels=labels)
    np.savez_compressed(tmp_path / "test.npz", images=np.stack(random_images(1)), labels=labels[3:])
    dataset = read(tmp_path)
    assert dataset.classes == classes
    assert dataset.train.targets.tolist() == targets
    assert dataset.test.targets.tolist() == targets[3:]


def test_a_folder_may_mix_both_kinds_but_a_split_may_not(
    tmp_path: Path, write_split: Write, random_images: Draw
) -> None:
    images = random_images(4)
    save(tmp_path / "data/train.npz", images=np.stack(images), labels=[0, 1, 0, 1])
    write_split(tmp_path / "data/test.parquet", images[:2], [0, 1])
    assert read(tmp_path).test.images[:, 0].equal(torch.from_numpy(np.stack(images[:2])))
    write_split(tmp_path / "data/train.parquet", images, [0, 1, 0, 1])
    with pytest.raises(DataError, match=r"data has both train\.npz and train\.parquet; keep the one"):
        read(tmp_path)


GREY = np.zeros((4, 6, 5), dtype=np.uint8)
LABELS = np.array([0, 1, 0, 1])
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no labels": ({"images": GREY, "label": LABELS}, r"has no labels; it needs .*, and has images, label"),
    "nothing": ({}, r"has no images and no labels; it needs .*, and has nothing"),
    "floats": (
        {"images": GREY / 255, "labels": LABELS},
        r"images of .*train\.npz are float64 of shape \[4, 6, 5\]; uint8",
    ),
    "channels first": (
        {"images": np.zeros((4, 3, 6, 5), np.uint8), "labels": LABELS},
        r"uint8 of shape \[4, 3, 6, 5\]; uint8 of shape \[N, H, W\] or \[N, H, W, C\] with 1 or 3 channels",
    ),
    "flat": ({"images": np.zeros((4, 30), np.uint8), "labels": LABELS}, r"images of .* are uint8 of shape \[4, 30\]"),
    "no pixels": ({"images": np.zeros((4, 0, 5), np.uint8), "labels": LABELS}, r"uint8 of shape \[4, 0, 5\]"),
    "no rows": ({"images": GREY[:0], "labels": LABELS[:0]}, r"train\.npz has no rows"),
    "one label less": ({"images": GREY, "labels": LABELS[:3]}, r"train\.npz has 4 images and 3 labels"),
    "labels that are floats": ({"images": GREY, "labels": LABELS / 2}, r"labels of .* are float64 of shape \[4\]"),
    "labels in a table": ({"images": GREY, "labels": np.eye(4, 2)}, r"labels of .* are float64 of shape \[4, 2\]"),
    "objects": (
        {"images": GREY, "labels": np.array([0, 1, None, 1], dtype=object)},
        r"is damaged or is not a file of NumPy arrays \(Object arrays cannot be loaded",
    ),
    "a name twice": (
        {"images": GREY, "labels": LABELS, "classes": ["a", "a"]},
        r"classes of .* are <U1 of shape \[2\]; a list of different names",
    ),
    "numbers for names": ({"images": GREY, "labels": LABELS, "classes": [1, 2]}, r"classes of .* are int64"),
    "an unnamed class": (
        {"images": GREY, "labels": LABELS * 2, "classes": ["a", "b"]},
        r"row 1 of the split in .*train\.npz has labels 2, but 2 classes are numbered 0 to 1",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_a_split_is_one_sentence(tmp_path: Path, case: str) -> None:
    arrays, expected = BAD[case]
    save(tmp_path / "train.npz", **arrays)
    save(tmp_path / "test.npz", images=GREY, labels=LABELS)
    with pytest.raises(DataError, match=expected) as caught:
        read(tmp_path)
    assert "\n" not in str(caught.value)


def claiming(rows: int) -> bytes:
    """A small file that says that it has this many images."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (rows, 8, 8)})
    labels, file = io.BytesIO(), io.BytesIO()
    np.save(labels, LABELS)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("images.npy", header.getvalue())
        archive.writestr("labels.npy", labels.getvalue())
    return file.getvalue()


@pytest.mark.parametrize("damage", ["half", "no zip", "changed", "huge", "later"])
def test_damaged_files_are_one_sentence(tmp_path: Path, damage: str) -> None:
    save(tmp_path / "train.npz", images=GREY, labels=LABELS)
    save(tmp_path / "test.npz", images=GREY, labels=LABELS)
    whole = (tmp_path / "train.npz").read_bytes()
    needed = whole.index(b"PK\1\2") + 6  # the version of ZIP that is needed
    damaged = {
        "half": whole[: len(whole) // 2],
        "no zip": b"images, labels",
        "changed": whole.replace(bytes(64), b"\1" * 64, 1),  # a checksum does not fit
        "huge": claiming(10**13),
        "later": whole[:needed] + b"\x63" + whole[needed + 1 :],  # a version of ZIP that is to come
    }
    assert damaged[damage] != whole
    (tmp_path / "train.npz").write_bytes(damaged[damage])
    with pytest.raises(DataError, match=r"train\.npz is damaged or is not a file of NumPy arrays"):
        read(tmp_path)
