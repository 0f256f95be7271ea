"""Images and labels from NumPy's `.npz` files, for devices that have no more than NumPy.

Arrays are `images`, uint8 `[N, H, W]` or `[N, H, W, C]`, and `labels` `[N]`, whole numbers or text; `classes`, the
names of the classes, may be there too.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from catchment.errors import DataError

CHANNELS = (1, 3)


@dataclass(frozen=True)
class ArraySplit:
    """One split of a data set in a `.npz` file."""

    files: tuple[Path, ...]  # one
    names: tuple[str, ...] | None  # of the classes, if the file has them
    label: str = "labels"

    def labels(self) -> NDArray[Any]:
        """The labels of all rows as they are stored, numbers or text."""
        return _read(self.files[0], self.label)

    def images(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The images of some rows, ascending, as `[n, C, H, W]`."""
        file = self.files[0]
        images = _read(file, "images")
        if len(images) != len(self.labels()):
            raise DataError(
                f"{file} has {len(images)} images and {len(self.labels())} labels; one for each is expected"
            )
        images = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
        return np.ascontiguousarray(images if len(rows) == len(images) else images[rows])


def open_arrays(file: Path) -> ArraySplit:
    """A split in a `.npz` file; its arrays are checked, and images are read later."""
    with _opened(file) as arrays:
        found = set(arrays.files)
    if missing := sorted({"images", "labels"} - found):
        raise DataError(
            f"{file} has no {' and no '.join(missing)}; it needs the arrays images and labels, and has "
            f"{', '.join(sorted(found)) or 'nothing'}"
        )
    return ArraySplit((file,), _names(file) if "classes" in found else None)


def _names(file: Path) -> tuple[str, ...]:
    classes = _read(file, "classes")
    names = tuple(map(str, classes))
    if classes.dtype.kind != "U" or classes.ndim != 1 or len(set(names)) != len(names) or not names:
        raise DataError(f"classes of {file} are {_described(classes)}; a list of different names is expected")
    return names


def _read(file: Path, name: str) -> NDArray[Any]:
    """One array, if its dtype and shape fit its name."""
    with _opened(file) as arrays:
        array: NDArray[Any] = arrays[name]
    if name == "images":
        fits = array.ndim == 3 or (array.ndim == 4 and array.shape[3] in CHANNELS)
        if array.dtype != np.uint8 or not fits or 0 in array.shape[1:]:
            raise DataError(
                f"images of {file} are {_described(array)}; uint8 of shape [N, H, W] or [N, H, W, C] with 1 or 3 "
                "channels is expected"
            )
        if not len(array):
            raise DataError(f"{file} has no rows")
    if name == "labels" and (array.dtype.kind not in "iuU" or array.ndim != 1):
        raise DataError(f"labels of {file} are {_described(array)}; whole numbers or text of shape [N] are expected")
    return array


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            yield arrays
    except (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{file} is damaged or is not a file of NumPy arrays ({reason}); write it again") from error


def _described(array: NDArray[Any]) -> str:
    return f"{array.dtype} of shape {list(array.shape)}"
