"""Images and labels from NumPy's `.npz` files, for devices that have no more than NumPy.

Arrays are `images`, uint8 `[N, H, W]` or `[N, H, W, C]`, and `labels` `[N]` or `[N, 1]`, whole numbers or text;
`classes`, the names of the classes, may be there too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from catchment.data.decoding import Pixels
from catchment.data.fitting import Fit
from catchment.errors import DataError

CHANNELS = (1, 3)


@dataclass(frozen=True)
class ArraySplit:
    """One split of a data set in a `.npz` file."""

    file: Path
    names: tuple[str, ...] | None  # of the classes, if the file has them
    label: str = "labels"
    image: str = "images"

    @property
    def place(self) -> str:
        """Where it is."""
        return str(self.file)

    def labels(self) -> NDArray[Any]:
        """The labels of all rows as they are stored, numbers or text."""
        labels = _read(self.file, self.label)
        if labels.ndim == 2 and labels.shape[1] == 1:
            labels = labels[:, 0]
        if labels.dtype.kind not in "iuU" or labels.ndim != 1:
            raise DataError(
                f"{self.label} of {self.file} are {_described(labels)}; whole numbers or text of shape [N] or [N, 1] "
                "are expected"
            )
        return labels

    def images(self, rows: NDArray[np.int64], fit: Fit) -> Pixels:
        """The images of some rows, ascending."""
        images = _read(self.file, self.image)
        fits = images.ndim == 3 or (images.ndim == 4 and images.shape[3] in CHANNELS)
        if images.dtype != np.uint8 or not fits or 0 in images.shape[1:]:
            raise DataError(
                f"{self.image} of {self.file} are {_described(images)}; uint8 of shape [N, H, W] or [N, H, W, C] with "
                "1 or 3 channels is expected"
            )
        if not len(images):
            raise DataError(f"{self.file} has no rows")
        if len(images) != len(self.labels()):
            raise DataError(
                f"{self.file} has {len(images)} images and {len(self.labels())} labels; one for each is expected"
            )
        images = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
        chosen = np.ascontiguousarray(images if len(rows) == len(images) else images[rows])
        return Pixels(fit(torch.from_numpy(chosen)).numpy(), np.arange(len(chosen)))


def find_arrays(place: Path, split: str) -> ArraySplit | None:
    """The split in a file of its name, if it is there."""
    file = place / f"{split}.npz"
    return open_arrays(file) if file.is_file() else None


def open_arrays(file: Path) -> ArraySplit:
    """A split in a `.npz` file; its images are read later."""
    found = arrays_of(file)
    if missing := sorted({"images", "labels"} - found):
        raise DataError(
            f"{file} has no {' and no '.join(missing)}; it needs the arrays images and labels, and has "
            f"{', '.join(sorted(found)) or 'nothing'}"
        )
    return ArraySplit(file, _names(file) if "classes" in found else None)


def arrays_of(file: Path) -> set[str]:
    """The names of the arrays in a file."""
    with _opened(file) as arrays:
        return set(arrays.files)


def _names(file: Path) -> tuple[str, ...]:
    classes = _read(file, "classes")
    names = tuple(map(str, classes))
    if classes.dtype.kind != "U" or classes.ndim != 1 or len(set(names)) != len(names) or not names:
        raise DataError(f"classes of {file} are {_described(classes)}; a list of different names is expected")
    return names


def _read(file: Path, name: str) -> NDArray[Any]:
    with _opened(file) as arrays:
        try:
            array: NDArray[Any] = arrays[name]
        except KeyError:
            raise DataError(f"{file} has no {name}") from None
    return array


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            yield arrays
    except DataError:
        raise
    except Exception as error:  # damaged files, and those that claim what they do not have, raise many kinds of errors
        reason = str(error).partition("\n")[0]
        raise DataError(f"{file} is damaged or is not a file of NumPy arrays ({reason}); write it again") from error


def _described(array: NDArray[Any]) -> str:
    return f"{array.dtype} of shape {list(array.shape)}"
