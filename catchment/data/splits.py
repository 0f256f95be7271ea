"""The splits of a data set: in a folder, in one file, or given in Python. Every reader is a module of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from catchment.data.arrays import find_arrays, open_arrays
from catchment.data.class_folders import find_class_folders, open_class_folders
from catchment.data.csv_files import find_csv, find_other_csv, open_csv
from catchment.data.decoding import Pixels
from catchment.data.fitting import Fit
from catchment.data.hub_sets import is_hub_set, open_hub_set
from catchment.data.image_files import ImageFiles
from catchment.data.medmnist import find_medmnist
from catchment.data.torch_sets import open_torch_set
from catchment.errors import DataError
from catchment.randomness import numpy_generator

SHARD = re.compile(r".+-\d+-of-(\d+)\.parquet")
NAMES = {"train": ("train",), "test": ("test",), "validation": ("validation", "val"), "public": ("public",)}
KNOWN = {name for names in NAMES.values() for name in names}
FORMS = "TRAIN.npz, TRAIN.parquet, TRAIN.csv, or TRAIN/CLASS/*.png"
LIKE_SPLITS = {*KNOWN, "training", "testing", "valid"}  # whatever the case


class Split(Protocol):
    """One split of a data set."""

    @property
    def place(self) -> str:
        """Where it is, in words."""

    @property
    def label(self) -> str:
        """What the labels are called there."""

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the classes, if they are there."""

    def labels(self) -> NDArray[Any]:
        """The labels of all rows as they are stored, numbers or text."""

    def images(self, rows: NDArray[np.int64], fit: Fit) -> Pixels:
        """The images of some rows, ascending."""


class Source(NamedTuple):
    """Where a data set is."""

    place: str
    split: Callable[[str], Split | None]  # by name: train, test, validation, public
    whole: Callable[[], Split | None]  # what is not divided into splits
    forms: str = FORMS  # of a split TRAIN


@dataclass(frozen=True)
class SomeRows:
    """Some rows of a split, as a split."""

    split: Split
    rows: NDArray[np.int64]  # ascending

    @property
    def place(self) -> str:
        """Where it is, in words."""
        return self.split.place

    @property
    def label(self) -> str:
        """What the labels are called there."""
        return self.split.label

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the classes, if they are there."""
        return self.split.names

    def labels(self) -> NDArray[Any]:
        """The labels of these rows."""
        return self.split.labels()[self.rows]

    def images(self, rows: NDArray[np.int64], fit: Fit) -> Pixels:
        """The images of some of them."""
        return self.split.images(self.rows[rows], fit)


def source_of_files(place: Path) -> Source:
    """The source of a folder or a file."""
    return Source(str(place), lambda split: find_split(place, split), lambda: find_whole(place))


def is_given(thing: Any) -> bool:
    """Whether it can be a source as it is: a data set of PyTorch or Hugging Face, or a table of them by split."""
    if isinstance(thing, Mapping) and not is_hub_set(thing):
        return bool(thing) and thing.keys() <= KNOWN and all(map(is_given, thing.values()))
    return isinstance(thing, torch.utils.data.Dataset) or is_hub_set(thing)


def source_of_given(thing: Any) -> Source:
    """The source of a data set in Python, or of one for each split."""
    if not isinstance(thing, Mapping):
        return Source("the data set", lambda split: None, lambda: _open_given(thing, "the data set"))

    def split(name: str) -> Split | None:
        found = next((own for own in NAMES[name] if own in thing), None)
        return None if found is None else _open_given(thing[found], f"the split {found}")

    return Source("the data set", split, lambda: None, '"TRAIN": ... in the dict')


def _open_given(thing: Any, place: str) -> Split:
    return open_hub_set(thing, place) if is_hub_set(thing) else open_torch_set(thing, place)


def find_split(place: Path, split: str) -> Split | None:
    """A split of a folder, or of its folder `data`, or of a file of MedMNIST's."""
    if place.is_file():
        return find_medmnist(place, split) if place.suffix == ".npz" else None
    for name in NAMES[split]:
        for folder in (place, place / "data"):
            there = [found for find in _FINDERS if (found := find(folder, name)) is not None]
            if there:
                return _only(there, folder)
    return None


def find_whole(place: Path) -> Split | None:
    """What a file, or a folder, has as one: a list in a CSV file, or class folders."""
    if place.is_file():
        open_file = _OPENERS.get(place.suffix.lower())
        if open_file is None:
            raise DataError(f"{place} is no data set; a folder, or a file of {', '.join(_OPENERS)}, is expected")
        return open_file(place)
    others = {*KNOWN, "data"}
    folders = open_class_folders(place, others)
    if folders and (splits := sorted(name for name in set(folders.values) if name.lower() in LIKE_SPLITS)):
        raise DataError(
            f"{place} has {' and '.join(splits)} where folders of classes are expected; call splits train and test"
        )
    try:
        listed = find_other_csv(place, others)
    except DataError as error:
        aside = "; if the class folders beside it are the data, move CSV files elsewhere" if folders else ""
        raise DataError(f"{error}{aside}") from error
    there = [found for found in (listed, folders) if found is not None]
    return _only(there, place) if there else None


def _only(found: Sequence[Split], folder: Path) -> Split:
    """The one that was found, or the list in a CSV file, which comes first, of images in class folders."""
    if len(found) == 1:
        return found[0]
    files = [one.paths for one in found if isinstance(one, ImageFiles)]
    if len(files) == len(found) == 2 and not set(files[0]).isdisjoint(files[1]):
        return found[0]
    both = " and ".join(Path(one.place).name if one.place != str(folder) else "class folders" for one in found)
    raise DataError(f"{folder} has both {both}; keep the one that is to be used")


def cut(split: Split, share: float, seed: int) -> tuple[Split, Split]:
    """A split without a random share of its rows, and that share: of every class alike, where it has two rows."""
    labels = split.labels()
    rows: list[int] = []
    for value in np.unique(labels):
        own = np.flatnonzero(labels == value)
        count = min(max(1, round(share * len(own))), len(own) - 1)
        rows += numpy_generator(seed, "test_share", str(value)).permutation(own)[:count].tolist()
    if not rows:
        raise DataError(f"{split.place} has one row of each class, and none of them can be for testing; add more")
    chosen = np.array(sorted(rows), dtype=np.int64)
    return SomeRows(split, np.setdiff1d(np.arange(len(labels)), chosen)), SomeRows(split, chosen)


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


def _find_parquet(place: Path, split: str) -> Split | None:
    files = parquet_files(place, split)
    return _open_parquet(*files) if files else None


def _open_parquet(*files: Path) -> Split:
    from catchment.data.parquet import open_parquet  # needs packages that not every install has

    return open_parquet(files, files[0].name.partition("-")[0])


_FINDERS: tuple[Callable[[Path, str], Split | None], ...] = (
    find_arrays, find_medmnist, _find_parquet, find_csv, find_class_folders,
)  # fmt: skip
_OPENERS: dict[str, Callable[[Path], Split]] = {".csv": open_csv, ".npz": open_arrays, ".parquet": _open_parquet}
