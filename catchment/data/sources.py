"""Where data sets come from: scikit-learn's digits, folders of Parquet or NumPy files, or the user's own function."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from catchment.data.annotations import BoxSplit
from catchment.data.boxes import find_boxes, read_boxes
from catchment.data.download import download_set
from catchment.data.samples import Dataset, Normalisation, Samples, with_statistics
from catchment.data.splits import Split, find_split
from catchment.errors import DataError, ExperimentError, needs
from catchment.names import call_with_known, did_you_mean, resolve
from catchment.randomness import numpy_generator
from catchment.tasks import DETECTION

VARIABLE = "CATCHMENT_DATA"
WITH_BOXES = ("bccd", "coco", "coco_mini")
SIDE = 416  # pixels, of the square that images with boxes are put in unless `data.size` says otherwise

# Mean and standard deviation of the training pixels, per channel, after division by 255 (digits: by 16).
STATISTICS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "digits": ((0.3053,), (0.3760,)),
    "mnist": ((0.1307,), (0.3081,)),
    "fashion_mnist": ((0.2860,), (0.3530,)),
    "kmnist": ((0.1918,), (0.3483,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "cinic10": ((0.4789, 0.4723, 0.4305), (0.2421, 0.2383, 0.2587)),
    "svhn": ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
    "pneumoniamnist": ((0.5,), (0.5,)),
    **dict.fromkeys(WITH_BOXES, ((0.5,), (0.5,))),
}


def load(
    name: str,
    root: Path | None,
    *,
    train: int | None,
    test: int | None,
    seed: int,
    download: bool = False,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    classes: Sequence[str] | None = None,
    own: bool = False,
    size: int | None = None,
) -> Dataset:
    """A data set by name, by the path of a folder, or from a user's "module:function".

    Named sets are folders of files in `root`, or else in the folder that the environment variable
    CATCHMENT_DATA names. `train` and `test` limit the samples: that many are drawn with `seed`, and only
    these are decoded. A user's function gets `root` and `seed` if it names them, and returns a `Dataset`.

    `classes` are the names of the classes in the order of their numbers, where the set does not say. With `own`,
    clients bring their training data: only the test part is loaded here, and the split `public` if the folder has one.
    Images with boxes are put into squares of side `size`.
    """
    if root is None and os.environ.get(VARIABLE):
        root = Path(os.environ[VARIABLE])
    if name == "digits":
        dataset = _limited(_digits(), train, test, seed)
    elif name in STATISTICS:
        folder = _folder_of(name, root, download, own)
        dataset = _from_folder(folder, train, test, seed, Normalisation(255, *STATISTICS[name]), classes, own, size)
    elif "/" in name or Path(name).is_dir():
        folder = Path(name).expanduser()
        dataset = _from_folder(folder, train, test, seed, Normalisation(255, (0.5,), (0.5,)), classes, own, size)
    elif ":" in name:
        dataset = call_with_known(resolve("data set", name, {}), root=root, seed=seed)
        if not isinstance(dataset, Dataset):
            raise DataError(
                f'data set "{name}" returned {type(dataset).__name__}, expected a catchment.data.Dataset; '
                "Dataset.of makes one from arrays"
            )
        dataset = _limited(dataset, train, test, seed)
    else:
        raise ExperimentError(
            f'unknown data set "{name}" (not a folder or "module:function" either); {did_you_mean(name, STATISTICS)}'
        )
    if size is not None and dataset.task is not DETECTION:
        raise DataError(
            f'data.size is {size}, but only images with boxes are resized, and "{name}" has none; leave it out'
        )
    if own:
        dataset = replace(dataset, train=dataset.train.select(torch.arange(0)))
    for part, samples in (("train", dataset.train), ("test", dataset.test)):
        if not len(samples) and not (own and part == "train"):
            raise DataError(f"the {part} part has no samples")
    if classes is not None and dataset.classes != tuple(classes):
        raise DataError(
            f'data.classes is {", ".join(classes)}, but data set "{name}" has its own: {", ".join(dataset.classes)}; '
            "leave it out"
        )
    return with_statistics(dataset, mean, std)


def _limited(dataset: Dataset, train: int | None, test: int | None, seed: int) -> Dataset:
    """At most `train` and `test` samples, as views."""
    parts = []
    for part, samples, limit in (("train", dataset.train, train), ("test", dataset.test, test)):
        rows = _drawn(part, len(samples), limit, seed)
        parts.append(samples if limit is None else samples.select(torch.from_numpy(rows)))
    return replace(dataset, train=parts[0], test=parts[1])


def _drawn(part: str, available: int, limit: int | None, seed: int) -> NDArray[np.int64]:
    """The rows of a split to use, ascending."""
    if limit is None:
        return np.arange(available)
    if not 1 <= limit <= available:
        raise DataError(
            f"data.{part} = {limit}, but the {part} split has {available} samples; take from 1 to {available}"
        )
    return np.sort(numpy_generator(seed, "limit", part).choice(available, limit, replace=False))


def _digits() -> Dataset:
    """The 8 x 8 digits of scikit-learn; which 300 of the 1,797 are for testing never changes."""
    with needs('data set "digits"', "research"):
        from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.from_numpy(digits.images.astype(np.uint8)).unsqueeze(1)  # [1797, 1, 8, 8], pixels 0 to 16
    labels = torch.from_numpy(digits.target.astype(np.int64))
    order = torch.from_numpy(numpy_generator(0, "digits", "split").permutation(len(labels)))
    tests = 300  # train : test is about 5 : 1
    train, test = (
        Samples(images[rows], labels[rows], torch.arange(len(rows)))
        for rows in (order[tests:].sort().values, order[:tests].sort().values)
    )
    return Dataset(train, test, tuple("0123456789"), Normalisation(16, *STATISTICS["digits"]))


def _folder_of(name: str, root: Path | None, download: bool, own: bool) -> Path:
    """The folder of a named set, downloaded from the hub if it is empty and `download` allows it."""
    if root is None:
        raise DataError(
            f'data set "{name}" cannot be found, as no folder of data sets is given: '
            f"set data.root or the environment variable {VARIABLE}"
        )
    folder = Path(root).expanduser() / name
    needed = "test" if own else "train"
    if find_boxes(folder, needed) is None and find_split(folder, needed) is None:
        if not download:
            raise DataError(
                f'data set "{name}" is not at {folder} (no {needed}.parquet or {needed}.npz there): '
                f"set data.root or the environment variable {VARIABLE} to the folder that has it, "
                "or fetch it with data.download = true"
            )
        download_set(name, folder)
    return folder


def _from_folder(
    folder: Path,
    train_limit: int | None,
    test_limit: int | None,
    seed: int,
    normalise: Normalisation,
    classes: Sequence[str] | None,
    own: bool,
    size: int | None,
) -> Dataset:
    """A data set from a folder; without a test split its validation split is used for testing."""
    tests = find_boxes(folder, "test") or find_boxes(folder, "validation")
    if tests is not None:
        return _with_boxes(folder, tests, train_limit, test_limit, seed, normalise, classes, own, size or SIDE)
    splits = {} if own else {"train": find_split(folder, "train")}
    splits["test"] = find_split(folder, "test") or find_split(folder, "validation")
    if own and (public := find_split(folder, "public")):
        splits["public"] = public
    there = {part: split for part, split in splits.items() if split is not None}
    if "train" in splits and "train" not in there:
        raise DataError(
            f"there is no train.parquet or train.npz in {folder}, which was given as the folder of a data set"
        )
    if "test" not in there:
        found = "has a train split but no" if there else "has no"
        raise DataError(f"{folder} {found} test or validation split (test.parquet or test.npz)")
    names, labels = _classes(list(there.values()), classes)
    limits = {"train": train_limit, "test": test_limit}
    rows = {part: _drawn(part, len(own), limits.get(part), seed) for part, own in zip(there, labels)}
    images = {part: split.images(rows[part]) for part, split in there.items()}
    channels = max(pixels.shape[1] for pixels in images.values())  # one colour image makes the set colour
    parts = {part: samples_of(images[part], own[rows[part]], channels) for part, own in zip(there, labels)}
    nothing = parts["test"].images[:0], parts["test"].labels[:0], torch.arange(0)
    return Dataset(parts.get("train") or Samples(*nothing), parts["test"], names, normalise, parts.get("public"))


def _with_boxes(
    folder: Path,
    tests: BoxSplit,
    train_limit: int | None,
    test_limit: int | None,
    seed: int,
    normalise: Normalisation,
    classes: Sequence[str] | None,
    own: bool,
    side: int,
) -> Dataset:
    """A data set of images with boxes; its classes are those of the test split, unless they are given."""
    names = tests.names if classes is None else tuple(classes)
    if names is None:
        raise DataError(f"{tests.files[0]} does not name its categories; set data.classes")
    test, faults = _read(tests, "test", names, test_limit, seed, side)
    train = test.select(torch.arange(0))
    if not own:
        split = find_boxes(folder, "train")
        if split is None:
            raise DataError(f"{folder} has a test or validation split with boxes, but no train split with boxes")
        train, more = _read(split, "train", names, train_limit, seed, side)
        faults = more | faults
    return Dataset(train, test, names, normalise, task=DETECTION, faults=faults)


def _read(
    split: BoxSplit, part: str, names: Sequence[str], limit: int | None, seed: int, side: int
) -> tuple[Samples, dict[str, int]]:
    samples, faults = read_boxes(split, _drawn(part, len(split), limit, seed), names, side)
    return samples, {f"{part}: {fault}": count for fault, count in faults.items() if count}


def samples_of(images: NDArray[np.uint8], labels: NDArray[np.int64], channels: int) -> Samples:
    """All rows of arrays; grey images become as many channels as wanted."""
    if images.shape[1] != channels:
        images = np.repeat(images, channels, axis=1)
    return Samples(torch.from_numpy(images), torch.from_numpy(labels), torch.arange(len(labels)))


def _classes(splits: Sequence[Split], given: Sequence[str] | None) -> tuple[tuple[str, ...], list[NDArray[np.int64]]]:
    """Class names, and the labels of each split as class numbers."""
    names = splits[0].names if given is None else tuple(given)
    if names is not None:
        return names, [numbered(split, names) for split in splits]
    labels = [split.labels() for split in splits]
    for split, own in zip(splits, labels):
        if (own.dtype.kind == "U") != (labels[0].dtype.kind == "U"):
            raise DataError(
                f"labels are text in one of {splits[0].files[0]} and {split.files[0]} and numbers in the other"
            )
    values = np.unique(np.concatenate(labels))
    return tuple(str(value) for value in values), [np.searchsorted(values, own) for own in labels]


def numbered(split: Split, classes: Sequence[str]) -> NDArray[np.int64]:
    """The labels of a split as numbers of these classes.

    Labels mean names: text does by itself, numbers by the names that the split has. Numbers without names are those of
    the classes, or their names if all classes are called by numbers.
    """
    labels, names = split.labels(), split.names or tuple(classes)
    if labels.dtype.kind == "U" or (split.names is None and all(name.isdecimal() for name in classes)):
        found, labels = np.unique(labels, return_inverse=True)
        names = tuple(map(str, found))
    unnamed = np.flatnonzero((labels < 0) | (labels >= len(names)))
    if len(unnamed):
        raise DataError(
            f"row {unnamed[0]} of the split in {split.files[0]} has {split.label} {labels[unnamed[0]]}, but "
            f"{len(names)} classes are numbered 0 to {len(names) - 1}"
        )
    strange = sorted({names[label] for label in np.unique(labels)} - set(classes))
    if strange:
        raise DataError(
            f"{split.files[0]} has samples of {', '.join(strange[:4])}, but the classes are {', '.join(classes)}"
        )
    position = {name: number for number, name in enumerate(classes)}
    return np.take([position.get(name, -1) for name in names], labels).astype(np.int64)
