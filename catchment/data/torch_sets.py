"""Data sets of PyTorch, given in Python: `torch.utils.data.Dataset` whose items are pairs of an image and a label."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset, IterableDataset, Subset

from catchment.data.decoding import Pixels, gathered
from catchment.data.fitting import Fit
from catchment.data.hub_columns import IMAGES, LABELS
from catchment.errors import DataError, printable
from catchment.randomness import seeded_globals


@dataclass(frozen=True)
class TorchSplit:
    """A data set with a length; each item is read once."""

    place: str
    items: Dataset[Any]
    label: str = "label"

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the classes, if the set has them, or the one that it is a part of."""
        whole: Any = self.items
        while isinstance(whole, Subset):
            whole = whole.dataset
        names = getattr(whole, "classes", None)
        text = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
        return tuple(names) if text and names else None

    def labels(self) -> NDArray[Any]:
        """The labels of all items, numbers or text."""
        labels = np.array([label for _, label in self._pairs])
        return labels if labels.dtype.kind == "i" else labels.astype(str)

    def images(self, rows: NDArray[np.int64], fit: Fit) -> Pixels:
        """The images of some items, ascending."""
        return gathered(
            ((f"item {row} of {self.place}", self._pairs[row][0]) for row in rows), len(rows), self.place, fit
        )

    @cached_property
    def _pairs(self) -> list[tuple[Any, int | str]]:
        """All images and labels; a transform that draws at random draws the same every time."""
        with seeded_globals(0):
            assert isinstance(self.items, Sized)
            return [_pair(self._item(row), f"item {row} of {self.place}") for row in range(len(self.items))]

    def _item(self, row: int) -> Any:
        try:
            return self.items[row]
        except Exception as error:  # whatever a user's class raises
            raise DataError(
                f"item {row} of {self.place} cannot be read ({type(error).__name__}: {printable(error)}); "
                "torch.utils.data.Subset leaves items out"
            ) from error


def open_torch_set(thing: Dataset[Any], place: str) -> TorchSplit:
    """The images and labels of a data set of PyTorch."""
    if isinstance(thing, IterableDataset) or not isinstance(thing, Sized):
        raise DataError(
            f"{place} is of type {type(thing).__name__}, which has no length; catchment.Dataset.of makes a data set "
            "from arrays"
        )
    return TorchSplit(place, thing)


def _pair(item: Any, place: str) -> tuple[Any, int | str]:
    if isinstance(item, Mapping):
        keys = [next((name for name in known if name in item), None) for known in (IMAGES, LABELS)]
        item = [item[key] for key in keys if key is not None]
    if isinstance(item, tuple | list) and len(item) >= 2:
        label = np.asarray(item[1])
        if label.size == 1 and label.dtype.kind in "iuU":
            value = label.reshape(-1)[0]
            return item[0], str(value) if label.dtype.kind == "U" else int(value)
    raise DataError(
        f"{place} is no pair of an image and a label (a whole number or text); catchment.Dataset.of makes a data set "
        "from arrays"
    )
