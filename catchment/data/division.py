"""A data set dealt to clients, with a public part if the experiment wants one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from catchment.data.boxes import find_boxes, read_boxes
from catchment.data.fitting import AS_THEY_COME, Fit
from catchment.data.image_files import ImageFiles
from catchment.data.partition import OWN, deal
from catchment.data.parts import Parts
from catchment.data.samples import Dataset, Form, Samples
from catchment.data.sources import left_out, numbered, samples_of
from catchment.data.splits import FORMS, find_split, find_whole
from catchment.errors import DataError, ExperimentError, UserError
from catchment.randomness import numpy_generator
from catchment.tasks import CLASSIFICATION, DETECTION, TASKS


@dataclass(frozen=True, eq=False)
class Division:
    """Who holds which samples."""

    dataset: Dataset
    clients: Parts[Tensor]  # rows of `dataset.train.images` by client, int64, ascending
    test: Samples  # the private part of the test set, or all of it
    public: Samples | None  # labels of another set's classes are -1
    public_test: Samples | None
    validation: Samples | None = None  # cut from the training data before they are dealt; nobody trains on it
    own: bool = False  # clients have data of their own: on the server all parts are empty, on a device all but its own

    @property
    def public_is_labelled(self) -> bool:
        """Whether there are public samples with labels of the private classes."""
        return self.public is not None and not self.dataset.task.refuses(self.public.targets, len(self.dataset.classes))

    def client(self, number: int) -> Samples:
        """The training samples of one client."""
        return Samples(self.dataset.train.images, self.dataset.train.labels, self.clients[number])

    @property
    def private(self) -> Samples:
        """The training samples of all clients together, by row."""
        rows = self.clients.whole.sort().values
        return Samples(self.dataset.train.images, self.dataset.train.labels, rows)


def divide(
    dataset: Dataset,
    clients: int,
    partition: Mapping[str, Any],
    public: float | Dataset | None,
    seed: int,
    validation: float = 0.0,
) -> Division:
    """Deal a data set to clients.

    `partition` holds the `name` of a partition and its options. `validation` is the share of the training samples that
    nobody trains on. Of the rest, `public` is the share, and the share of the test samples, that everybody may see:
    clients are dealt what then remains, and tested on what remains. Or it is another data set, whose training samples
    everybody may see. With the partition "own" nobody is dealt anything.
    """
    if dataset.task is CLASSIFICATION and len(dataset.classes) == 1:
        raise DataError(
            f"all samples are of one class, {dataset.classes[0]}, and a classifier needs two; images by class are in a "
            "folder for each"
        )
    train, test = dataset.train, dataset.test
    public_train = public_test = held_out = None
    if validation:
        held_out, train = _split(train, validation, seed, "validation", "train")
    if isinstance(public, Dataset):
        if dataset.task is not CLASSIFICATION or public.task is not CLASSIFICATION:
            raise ExperimentError("data.public is another data set, which is possible in classification alone")
        public_train = _foreign(public, dataset)
    elif public is not None:
        if not 0 < public < 1:
            raise ExperimentError(f"data.public = {public!r} must be a share between 0 and 1")
        public_train, train = _split(train, public, seed, "public", "train")
        public_test, test = _split(test, public, seed, "public", "test")
    labels = dataset.task.main_classes(train.targets, len(dataset.classes)).numpy()
    positions = deal(labels, clients, partition, numpy_generator(seed, "partition"))
    rows = Parts(train.index[torch.from_numpy(positions.whole)], positions.sizes)
    if partition["name"] == OWN:
        return Division(dataset, rows, test, dataset.public, None, own=True)
    return Division(dataset, rows, test, public_train, public_test, held_out)


def own_division(folder: Path, form: Form, client: int, clients: int, fit: Fit = AS_THEY_COME) -> Division:
    """The division on a device with its own data: all samples of its folder are its own, other clients have none.

    The folder has a split `train`, or no splits, and may have `test`, for methods whose clients measure themselves.
    Everything must agree with the `form` of the server's data set: classes by name, the split `public` if the server
    has one, and images, once they are as `fit` says.
    """
    if not 0 <= client < clients:
        raise UserError(f"client {client} does not exist; {clients} clients are numbered 0 to {clients - 1}")
    faults: dict[str, int] = {}
    train = _own_samples(folder, "train", form, fit, faults)
    if train is None:
        raise DataError(
            f"there is no train split in {folder}, which was given as the data of a client; "
            f"{FORMS.replace('TRAIN', 'train')} is expected, or images as CLASS/*.png"
        )
    empty = train.select(torch.arange(0))
    public = _own_samples(folder, "public", form, fit, faults) if form.public else None
    if form.public and (public is None or len(public) != form.public):
        raise DataError(
            f"{folder} has {0 if public is None else len(public)} public samples, the server {form.public}; "
            "copy the server's public split to every client"
        )
    tests = (_own_samples(folder, part, form, fit, faults) for part in ("test", "validation"))
    test = next((found for found in tests if found is not None), empty)
    dataset = Dataset(train, test, form.classes, form.normalise, public, TASKS[form.task], faults)
    rows = Parts(train.index, np.where(np.arange(clients) == client, len(train), 0))
    return Division(dataset, rows, test, public, None, own=True)


def describe(division: Division) -> list[list[int]]:
    """How much of each class each client has."""
    task, classes = division.dataset.task, len(division.dataset.classes)
    return [task.counts(division.client(k).targets, classes).tolist() for k in range(len(division.clients))]


def _own_samples(folder: Path, part: str, form: Form, fit: Fit, faults: dict[str, int]) -> Samples | None:
    """A split of a device's folder, if it is there; what is wrong in it is added to `faults`."""
    if form.task == DETECTION.name:
        boxes = find_boxes(folder, part)
        return None if boxes is None else read_boxes(boxes, np.arange(len(boxes)), form.classes, form.shape[1])[0]
    split = find_split(folder, part)
    if split is None and part == "train":
        split = find_whole(folder)
    if split is None:
        return None
    if isinstance(split, ImageFiles):
        split.check_inside(folder)
    labels = numbered(split, form.classes)
    pixels = split.images(np.arange(len(labels)), fit)
    faults |= left_out(pixels, part)
    channels, *size = form.shape
    given = list(pixels.images.shape[1:])
    if given[1:] != size or given[0] not in (1, channels):
        raise DataError(
            f"images of {split.place} are {given}, those of the server {list(form.shape)} ([C, H, W]); make them like "
            "that, or have the experiment say data.size or data.channels, which does it on every device"
        )
    return samples_of(pixels, labels, channels)


def _foreign(public: Dataset, private: Dataset) -> Samples:
    """The training samples of another data set; they are normalised as the private ones."""
    if public.shape != private.shape:
        raise DataError(
            f"data.public has images of {list(public.shape)}, data.name of {list(private.shape)} ([C, H, W]); models "
            "see both, so take a public set of the same shape"
        )
    if public.normalise.scale != private.normalise.scale:
        raise DataError(
            f"pixels of data.public run to {public.normalise.scale:g}, those of data.name to "
            f"{private.normalise.scale:g}; models see both, so take a public set of the same range"
        )
    if public.classes == private.classes:
        return public.train
    unknown = torch.full_like(public.train.labels, -1)  # so that nobody trains on them by mistake
    return Samples(public.train.images, unknown, public.train.index)


def _split(samples: Samples, share: float, seed: int, what: str, part: str) -> tuple[Samples, Samples]:
    """A random share of some samples and the rest, both in row order."""
    count = round(len(samples) * share)
    if not 0 < count < len(samples):
        raise DataError(
            f"data.{what} = {share} of {len(samples)} {part} samples is {count} and leaves {len(samples) - count}; "
            "both need some"
        )
    order = torch.from_numpy(numpy_generator(seed, what, part).permutation(len(samples)))
    return samples.select(order[:count].sort().values), samples.select(order[count:].sort().values)
