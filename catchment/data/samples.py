"""What a data set is: images and labels in shared tensors, and views that name rows of them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from catchment.data.fitting import channels_first
from catchment.errors import DataError
from catchment.tasks import CLASSIFICATION, TASKS, Task


@dataclass(frozen=True, eq=False)
class Samples:
    """Some rows of a set's images and labels; nothing is copied. A sample's id is its row number."""

    images: Tensor  # uint8 [N, C, H, W], or float32 if normalised already; shared by all views of a set
    labels: Tensor  # [N, ...], shared too: as the task says, in classification int64 [N]
    index: Tensor  # int64 [n], the rows of this view

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.dtype not in (torch.uint8, torch.float32):
            raise DataError(f"images are {_described(self.images)}, expected uint8 or float32 of shape [N, C, H, W]")
        if len(self.images) != len(self.labels):
            raise DataError(f"{len(self.images)} images came with {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.index)

    @property
    def ids(self) -> Tensor:
        """The samples' ids: their row numbers."""
        return self.index

    @property
    def targets(self) -> Tensor:
        """The labels of this view, `[n, ...]`."""
        return self.labels[self.index]

    def select(self, positions: Tensor) -> Samples:
        """The samples at some positions of this view (0 to n - 1)."""
        return Samples(self.images, self.labels, self.index[positions])


@dataclass(frozen=True)
class Normalisation:
    """uint8 pixels to float32, `(x / scale - mean) / std` per channel; float images pass unchanged."""

    scale: float
    mean: tuple[float, ...]  # one per channel, or one for all
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std):
            raise DataError(f"normalisation has {len(self.mean)} means but {len(self.std)} standard deviations")
        if self.scale <= 0 or min(self.std, default=0.0) <= 0:
            raise DataError(
                f"normalisation needs a positive scale and positive standard deviations, "
                f"not scale {self.scale:g} and std {self.std}"
            )

    def __call__(self, images: Tensor) -> Tensor:
        """Normalised images, same shape."""
        if images.dtype != torch.uint8:
            return images
        factor, offset = self._line
        return images.float().mul_(factor).sub_(offset)

    @cached_property
    def _line(self) -> tuple[Tensor, Tensor]:
        """The same rule as `x * factor - offset`, each `[channels, 1, 1]`."""
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        return 1 / (std * self.scale), mean / std


@dataclass(frozen=True)
class Form:
    """What the data of server and clients must agree on."""

    shape: tuple[int, int, int]  # of an image: channels, height, width
    classes: tuple[str, ...]  # names, in the order of their numbers
    normalise: Normalisation
    public: int = 0  # samples that everybody has
    task: str = CLASSIFICATION.name

    def to_dict(self) -> dict[str, Any]:
        """For a message or a file, as JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Form:
        """The inverse of `to_dict`, also after JSON made lists of tuples."""
        try:
            (channels, height, width), normalise = map(int, table["shape"]), table["normalise"]
            return cls(
                (channels, height, width),
                tuple(map(str, table["classes"])),
                Normalisation(
                    float(normalise["scale"]), tuple(map(float, normalise["mean"])), tuple(map(float, normalise["std"]))
                ),
                int(table["public"]),
                TASKS[table.get("task", CLASSIFICATION.name)].name,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"a form of data cannot be read from {table} ({type(error).__name__}: {error})") from None


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training and a test part with the same classes: the result of a loader."""

    train: Samples  # none where clients bring data of their own
    test: Samples
    classes: tuple[str, ...]
    normalise: Normalisation
    public: Samples | None = None  # where clients bring data of their own: what everybody has
    task: Task = CLASSIFICATION
    faults: Mapping[str, int] = field(default_factory=dict)  # what was wrong in the files, and how often

    def __post_init__(self) -> None:
        parts = {"train": self.train, "test": self.test}
        if self.public is not None:
            parts["public"] = self.public
        for part, samples in parts.items():
            if why := self.task.refuses(samples.labels, len(self.classes)):
                raise DataError(f"{part} part: {why}")
            if not len(samples.labels):
                continue
            if samples.images.shape[1:] != self.train.images.shape[1:]:
                raise DataError(
                    f"train images are {list(self.shape)} but {part} images are {list(samples.images.shape[1:])} "
                    "([C, H, W]); all parts need one shape"
                )
        if len(self.normalise.mean) not in (1, self.shape[0]):
            raise DataError(
                f"normalisation has {len(self.normalise.mean)} means but images have {self.shape[0]} channels"
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of every image."""
        channels, height, width = self.train.images.shape[1:]
        return channels, height, width

    @property
    def form(self) -> Form:
        """What the data of other clients must agree with."""
        public = 0 if self.public is None else len(self.public)
        return Form(self.shape, self.classes, self.normalise, public, self.task.name)

    @classmethod
    def of(
        cls,
        train_images: Any,
        train_labels: Any,
        test_images: Any,
        test_labels: Any,
        classes: Sequence[str] | None = None,
        mean: float | Sequence[float] | None = None,
        std: float | Sequence[float] | None = None,
    ) -> Dataset:
        """A data set from arrays or tensors: images `[N, H, W]`, `[N, C, H, W]` or `[N, H, W, C]`, uint8 or float.

        uint8 pixels run from 0 to 255 and are normalised with `mean` and `std` (0.5 unless given); float
        images are taken as normalised already. Classes are called by their numbers unless `classes` is given.
        """
        train = _whole(train_images, train_labels, "train")
        test = _whole(test_images, test_labels, "test")
        if classes is None:
            classes = _numbered(torch.cat([train.labels.flatten(), test.labels.flatten()]))
        dataset = cls(train, test, tuple(classes), Normalisation(255, (0.5,), (0.5,)))
        return with_statistics(dataset, mean, std)


def with_statistics(
    dataset: Dataset, mean: float | Sequence[float] | None, std: float | Sequence[float] | None
) -> Dataset:
    """The same data set normalised with another mean or standard deviation (None: as it is)."""
    if mean is None and std is None:
        return dataset
    if torch.float32 in (dataset.train.images.dtype, dataset.test.images.dtype):
        raise DataError(
            "mean and std are for uint8 images; float images are taken as normalised already: leave both out"
        )
    old, channels = dataset.normalise, dataset.shape[0]
    normalise = Normalisation(old.scale, _per_channel(mean, old.mean, channels), _per_channel(std, old.std, channels))
    return replace(dataset, normalise=normalise)


def _per_channel(given: float | Sequence[float] | None, default: tuple[float, ...], channels: int) -> tuple[float, ...]:
    values = default if given is None else (given,) if isinstance(given, int | float) else tuple(given)
    return values * channels if len(values) == 1 else values


def _whole(images: Any, labels: Any, part: str) -> Samples:
    """All rows of a user's arrays."""
    images, labels = _tensor(images, f"{part} images"), _tensor(labels, f"{part} labels")
    try:
        images = channels_first(images)
    except ValueError as error:
        raise DataError(f"{part} images are {_described(images)}, which {error}") from None
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if images.is_floating_point():
        images = images.float()
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise DataError(f"{part} labels are {_described(labels)}, expected whole numbers of shape [N]")
    if len(labels) == 0:
        raise DataError(f"the {part} part has no samples")
    try:
        return Samples(images.contiguous(), labels.long(), torch.arange(len(images)))
    except DataError as error:
        raise DataError(f"{part} part: {error}") from None


def _tensor(values: Any, what: str) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach().cpu()
    array = np.require(values, requirements=["C", "W"])  # copies only what PyTorch cannot share
    if array.dtype.kind not in "biuf":
        text = "; classes, labels = numpy.unique(labels, return_inverse=True) makes names and numbers of texts"
        raise DataError(
            f"{what} are {array.dtype} of shape {list(array.shape)}, and numbers are expected"
            + (text if array.dtype.kind in "UO" else "")
        )
    return torch.from_numpy(array)


def _numbered(labels: Tensor) -> list[str]:
    """Classes that are called by their numbers, from 0 to the largest label."""
    used = torch.unique(labels[labels >= 0]).tolist()
    count = max(used, default=-1) + 1
    if empty := count - len(used):
        warnings.warn(
            f"labels go from {used[0]} to {used[-1]}, which makes {count} classes, and {empty} of them have no sample; "
            "number the classes from 0 without gaps, or give their names as classes",
            stacklevel=3,
        )
    return [str(label) for label in range(count)]


def _described(values: Tensor) -> str:
    return f"{str(values.dtype).removeprefix('torch.')} of shape {list(values.shape)}"
