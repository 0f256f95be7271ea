"""Where data sets come from: scikit-learn's digits, folders and files, or the user's own function."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from catchment.data.annotations import BoxSplit
from catchment.data.boxes import find_boxes, read_boxes
from catchment.data.decoding import Pixels
from catchment.data.download import download_set
from catchment.data.fitting import AS_THEY_COME, Fit
from catchment.data.image_files import check_names
from catchment.data.samples import Dataset, Normalisation, Samples, with_statistics
from catchment.data.splits import FORMS, Source, Split, cut, find_split, is_given, source_of_files, source_of_given
from catchment.errors import DataError, ExperimentError, needs
from catchment.names import call_with_known, did_you_mean, resolve
from catchment.randomness import numpy_generator
from catchment.tasks import CLASSIFICATION, DETECTION

VARIABLE = "CATCHMENT_DATA"
WITH_BOXES = ("bccd", "coco", "coco_mini")
SIDE = 416  # pixels, of the square that images with boxes are put in unless `data.size` says otherwise
TEST_SHARE = 0.2  # of a set that is not divided

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


class Wanted(NamedTuple):
    """What is asked of a data set; see `load`."""

    train: int | None
    test: int | None
    seed: int
    normalise: Normalisation
    classes: Sequence[str] | None
    own: bool
    fit: Fit
    test_share: float | None


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
    channels: int | None = None,
    test_share: float | None = None,
) -> Dataset:
    """A data set by name, by the path of a folder or a file, or from a user's "module:function".

    Named sets are folders of files in `root`, or else in the folder that the environment variable
    CATCHMENT_DATA names. `train` and `test` limit the samples: that many are drawn with `seed`, and only
    these are decoded. A user's function gets `root` and `seed` if it names them, and returns a `Dataset`, or a data set
    of PyTorch or Hugging Face.

    `classes` are the names of the classes in the order of their numbers, where the set does not say. With `own`,
    clients bring their training data: only the test part is loaded here, and the split `public` if the folder has one.
    Images are scaled into squares of side `size`, and made grey or colour as `channels` (1 or 3) says. Of a set without
    a test part the share `test_share` is for testing, drawn with `seed`.
    """
    if root is None and os.environ.get(VARIABLE):
        root = Path(os.environ[VARIABLE])
    fit = Fit(size, channels)
    halves = Normalisation(255, (0.5,), (0.5,))
    wanted = Wanted(train, test, seed, halves, classes, own, fit, test_share)
    if name == "digits":
        dataset = _limited(_digits(), wanted)
    elif name in STATISTICS:
        known = Normalisation(255, *STATISTICS[name])
        known = _of_grey(known) if channels == 1 else known
        dataset = _from_files(_folder_of(name, root, download, own), wanted._replace(normalise=known))
    elif "/" in name or Path(name).is_dir() or Path(name).is_file():
        dataset = _from_files(Path(name).expanduser(), wanted)
    elif ":" in name:
        found = call_with_known(resolve("data set", name, {}), root=root, seed=seed)
        if is_given(found):
            dataset = _from_source(source_of_given(found), wanted)
        elif isinstance(found, Dataset):
            dataset = _limited(found, wanted)
        else:
            raise DataError(
                f'data set "{name}" returned {type(found).__name__}, expected a catchment.Dataset '
                "(Dataset.of makes one from arrays), or a data set of PyTorch or Hugging Face"
            )
    else:
        raise ExperimentError(
            f'unknown data set "{name}" (not a folder or "module:function" either); {did_you_mean(name, STATISTICS)}'
        )
    check_names(dataset.classes, f'data set "{name}"')
    if own:
        dataset = replace(dataset, train=dataset.train.select(torch.arange(0)))
    for part, samples in (("train", dataset.train), ("test", dataset.test)):
        if not len(samples) and not (own and part == "train"):
            raise DataError(f"the {part} part has no samples")
        _check_finite(samples, part)
    if classes is not None and dataset.classes != tuple(classes):
        raise DataError(
            f'data.classes is {", ".join(classes)}, but data set "{name}" has its own: {", ".join(dataset.classes)}; '
            "leave it out"
        )
    return with_statistics(dataset, mean, std)


def _of_grey(normalise: Normalisation) -> Normalisation:
    """What is for the channels of colour images, for the same images in grey."""
    return replace(normalise, mean=(fmean(normalise.mean),), std=(fmean(normalise.std),))


def _check_finite(samples: Samples, part: str) -> None:
    """Refuse images with numbers that are none."""
    if samples.images.dtype == torch.uint8 or samples.images.isfinite().all():
        return
    bad = int((~samples.images[samples.index].isfinite().flatten(1).all(1)).sum())
    if bad:
        raise DataError(
            f"{bad:,} of {len(samples):,} {part} images have pixels that are NaN or infinite; leave them out, or "
            "replace the pixels"
        )


def _limited(dataset: Dataset, wanted: Wanted) -> Dataset:
    """A set with a test part of its own: at most so many samples, as views, and images as they are wanted."""
    if wanted.test_share is not None:
        raise _has_tests(wanted.test_share, "the data set")
    parts = []
    for part, samples, limit in (("train", dataset.train, wanted.train), ("test", dataset.test, wanted.test)):
        rows = _drawn(part, len(samples), limit, wanted.seed)
        parts.append(samples if limit is None else samples.select(torch.from_numpy(rows)))
    limited = replace(dataset, train=parts[0], test=parts[1])
    if wanted.fit == AS_THEY_COME:
        return limited
    if dataset.task is not CLASSIFICATION:
        raise DataError(
            f"data.size and data.channels are for classification, and the task is {dataset.task.name}; make the images "
            "of the data set as you want them, and leave both out"
        )
    fitted = [replace(part, images=wanted.fit(part.images)) for part in parts]
    normalise = _of_grey(dataset.normalise) if wanted.fit.channels == 1 else dataset.normalise
    return replace(limited, train=fitted[0], test=fitted[1], normalise=normalise)


def _has_tests(share: float, place: str) -> DataError:
    return DataError(f"data.test_share is {share}, but {place} has a test part of its own; leave it out")


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


def _from_files(place: Path, wanted: Wanted) -> Dataset:
    """A data set from a folder or a file; without a test split its validation split is used for testing."""
    if not place.exists():
        raise DataError(f"there is no folder or file {place}, which was given as a data set")
    tests = (find_boxes(place, "test") or find_boxes(place, "validation")) if place.is_dir() else None
    return _from_source(source_of_files(place), wanted) if tests is None else _with_boxes(place, tests, wanted)


def _from_source(source: Source, wanted: Wanted) -> Dataset:
    there = _splits(source, wanted)
    names, labels = _classes(list(there.values()), wanted.classes)
    limits = {"train": wanted.train, "test": wanted.test}
    rows = {part: _drawn(part, len(own), limits.get(part), wanted.seed) for part, own in zip(there, labels)}
    found = {part: split.images(rows[part], wanted.fit) for part, split in there.items()}
    sizes = {part: pixels.images.shape[2:] for part, pixels in found.items()}
    if len(set(sizes.values())) > 1:
        sides = ", ".join(f"{part} images {width} x {height}" for part, (height, width) in sizes.items())
        raise DataError(
            f"{source.place} has {sides} pixels; all images of a set must have one size: set data.size, such as "
            f"{min(map(min, sizes.values()))}, to scale them into squares"
        )
    channels = max(pixels.images.shape[1] for pixels in found.values())  # one colour image makes the set colour
    parts = {part: samples_of(pixels, own[rows[part]], channels) for (part, pixels), own in zip(found.items(), labels)}
    nothing = parts["test"].images[:0], parts["test"].labels[:0], torch.arange(0)
    return Dataset(
        parts.get("train") or Samples(*nothing),
        parts["test"],
        names,
        wanted.normalise,
        parts.get("public"),
        faults={fault: count for part, pixels in found.items() for fault, count in left_out(pixels, part).items()},
    )


def _splits(source: Source, wanted: Wanted) -> dict[str, Split]:
    """What is to be read, by the name of its part."""
    train, whole = None, None
    if not wanted.own:
        train = source.split("train")
        whole = source.whole() if train is None else None
        train = train or whole
        if train is None:
            raise DataError(
                f"there is no train split in {source.place}, which was given as a data set; "
                f"{source.forms.replace('TRAIN', 'train')} is expected"
                + (", or images as CLASS/*.png" if source.forms == FORMS else "")
            )
    test = source.split("test") or source.split("validation")
    if test is not None and wanted.test_share is not None:
        raise _has_tests(wanted.test_share, source.place)
    if train is not None and test is None and (whole or wanted.test_share is not None):
        train, test = cut(train, TEST_SHARE if wanted.test_share is None else wanted.test_share, wanted.seed)
    if test is None:
        found = "has no" if train is None else "has a train split but no"
        instead = "" if train is None else ", or data.test_share, such as 0.2, to test on a share of the train split"
        form = source.forms.replace("TRAIN", "test")
        raise DataError(f"{source.place} {found} test or validation split ({form}{instead})")
    public = source.split("public") if wanted.own else None
    parts = {"train": train, "test": test, "public": public}
    return {part: split for part, split in parts.items() if split is not None}


def _with_boxes(folder: Path, tests: BoxSplit, wanted: Wanted) -> Dataset:
    """A data set of images with boxes; its classes are those of the test split, unless they are given."""
    if wanted.fit.channels is not None or wanted.test_share is not None:
        raise DataError(
            f"data.channels and data.test_share are not for images with boxes, as in {folder}; leave both out"
        )
    names = tests.names if wanted.classes is None else tuple(wanted.classes)
    if names is None:
        raise DataError(f"{tests.files[0]} does not name its categories; set data.classes")
    side = wanted.fit.side or SIDE
    test, faults = _read(tests, "test", names, wanted.test, wanted.seed, side)
    train = test.select(torch.arange(0))
    if not wanted.own:
        split = find_boxes(folder, "train")
        if split is None:
            raise DataError(f"{folder} has a test or validation split with boxes, but no train split with boxes")
        train, more = _read(split, "train", names, wanted.train, wanted.seed, side)
        faults = more | faults
    return Dataset(train, test, names, wanted.normalise, task=DETECTION, faults=faults)


def _read(
    split: BoxSplit, part: str, names: Sequence[str], limit: int | None, seed: int, side: int
) -> tuple[Samples, dict[str, int]]:
    samples, faults = read_boxes(split, _drawn(part, len(split), limit, seed), names, side)
    return samples, {f"{part}: {fault}": count for fault, count in faults.items() if count}


def samples_of(pixels: Pixels, labels: NDArray[np.int64], channels: int) -> Samples:
    """The images that there are, with their labels; grey images become as many channels as wanted."""
    images = pixels.images
    if images.shape[1] != channels:
        images = np.repeat(images, channels, axis=1)
    return Samples(torch.from_numpy(images), torch.from_numpy(labels[pixels.kept]), torch.arange(len(images)))


def left_out(pixels: Pixels, part: str) -> dict[str, int]:
    """What of a part is not there and why, in words, and how many images that are."""
    count, some = len(pixels.left_out), "; ".join(pixels.left_out[:3])
    return {f"{part}: images left out ({some}{'; ...' if count > 3 else ''})": count} if count else {}


def _classes(splits: Sequence[Split], given: Sequence[str] | None) -> tuple[tuple[str, ...], list[NDArray[np.int64]]]:
    """Class names, and the labels of each split as class numbers."""
    names = splits[0].names if given is None else tuple(given)
    if names is not None:
        return names, [numbered(split, names) for split in splits]
    labels = [split.labels() for split in splits]
    for split, own in zip(splits, labels):
        if (own.dtype.kind == "U") != (labels[0].dtype.kind == "U"):
            raise DataError(f"labels are text in one of {splits[0].place} and {split.place} and numbers in the other")
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
            f"row {unnamed[0]} of the split in {split.place} has {split.label} {labels[unnamed[0]]}, but "
            f"{len(names)} classes are numbered 0 to {len(names) - 1}"
        )
    strange = sorted({names[label] for label in np.unique(labels)} - set(classes))
    if strange:
        raise DataError(
            f"{split.place} has samples of {', '.join(strange[:4])}, but the classes are {', '.join(classes)}"
        )
    position = {name: number for number, name in enumerate(classes)}
    return np.take([position.get(name, -1) for name in names], labels).astype(np.int64)
