"""The splits of a data set in a folder, as Parquet or NumPy files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from catchment.data.arrays import open_arrays
from catchment.errors import DataError

SHARD = re.compile(r".+-\d+-of-(\d+)\.parquet")


class Split(Protocol):
    """One split of a data set on disk."""

    @property
    def files(self) -> tuple[Path, ...]:
        """Where it is."""

    @property
    def label(self) -> str:
        """What the labels are called there."""

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the classes, if they are there."""

    def labels(self) -> NDArray[Any]:
        """The labels of all rows as they are stored, numbers or text."""

    def images(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The images of some rows, ascending, as `[n, C, H, W]`."""


def find_split(folder: Path, split: str) -> Split | None:
    """A split in a folder or its folder `data`: `train.npz`, `train.parquet`, or `train-00000-of-00002.parquet` ..."""
    for place in (folder, folder / "data"):
        arrays, files = place / f"{split}.npz", parquet_files(place, split)
        if arrays.is_file() and files:
            raise DataError(f"{place} has both {arrays.name} and {files[0].name}; keep the one that is to be used")
        if arrays.is_file():
            return open_arrays(arrays)
        if files:
            from catchment.data.parquet import open_parquet  # needs packages that not every install has

            return open_parquet(files, split)
    return None


def parquet_files(place: Path, split: str) -> list[Path]:
    """The Parquet files of a split: one, or all of its numbered ones."""
    whole = place / f"{split}.parquet"
    files = [whole] if whole.is_file() else sorted(place.glob(f"{split}-*-of-*.parquet"))
    numbered = SHARD.fullmatch(files[0].name) if files else None
    if numbered and len(files) != int(numbered[1]):
        raise DataError(
            f"{place} has {len(files)} of the {int(numbered[1])} files of the {split} split; "
            "copy or download the others too"
        )
    return files
