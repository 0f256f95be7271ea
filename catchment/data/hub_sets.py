"""Data sets of Hugging Face's package `datasets`, given in Python."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from catchment.data.decoding import Pixels, gathered
from catchment.data.fitting import Fit
from catchment.data.hub_columns import IMAGES, label_column
from catchment.errors import DataError


@dataclass(frozen=True)
class HubSplit:
    """A `datasets.Dataset`."""

    place: str
    table: Any
    image: str  # column
    label: str  # column
    names: tuple[str, ...] | None  # of the classes, if the features have them

    def labels(self) -> NDArray[Any]:
        """The labels of all rows, numbers or text."""
        values = list(self.table.select_columns([self.label])[:][self.label])
        if None in values:
            raise DataError(f"{self.place} has {values.count(None)} rows without a {self.label}")
        labels = np.array(values)
        return labels if labels.dtype.kind in "iu" else labels.astype(str)

    def images(self, rows: NDArray[np.int64], fit: Fit) -> Pixels:
        """The images of some rows, ascending; only these are decoded."""
        return gathered(self._images(rows), len(rows), self.place, fit)

    def _images(self, rows: NDArray[np.int64]) -> Iterator[tuple[str, Any]]:
        for row in rows.tolist():
            cell = self.table[row][self.image]
            if isinstance(cell, Mapping):
                cell = cell.get("bytes") or (Path(cell["path"]) if cell.get("path") else None)
            elif isinstance(cell, list):
                pixels = np.array(cell)
                cell = pixels.astype(np.uint8) if pixels.dtype.kind in "iu" and _are_bytes(pixels) else pixels
            yield f"row {row} of {self.place}", cell


def is_hub_set(thing: Any) -> bool:
    """Whether it is a data set of `datasets`, which is loaded already if it is."""
    hub = sys.modules.get("datasets")
    return hub is not None and isinstance(
        thing, hub.Dataset | hub.DatasetDict | hub.IterableDataset | hub.IterableDatasetDict
    )


def open_hub_set(thing: Any, place: str) -> HubSplit:
    """The images and labels of a `datasets.Dataset`, by the types of its columns, or else by their names."""
    hub: Any = sys.modules["datasets"]
    if not isinstance(thing, hub.Dataset):
        raise DataError(
            f"{place} is of type {type(thing).__name__}, which has no rows to draw from; load it without streaming"
        )
    features, columns = thing.features, thing.column_names
    of_type = {kind: [name for name in columns if type(features[name]).__name__ == kind] for kind in _KINDS}
    image = next((name for name in IMAGES if name in columns), None)
    if len(of_type["Image"]) == 1:
        image = of_type["Image"][0]
    label = label_column(columns, of_type["ClassLabel"])
    if image is None or label is None:
        raise DataError(
            f"{place} has no column that is known for its {'labels' if image else 'images'}; its columns are "
            f'{", ".join(columns)}: rename_column gives them the names "image" and "label", and catchment.Dataset.of '
            "makes a data set from arrays"
        )
    table = thing.with_format(None)
    if image in of_type["Image"]:
        table = table.cast_column(image, hub.Image(decode=False))
    return HubSplit(place, table, image, label, tuple(getattr(features[label], "names", ())) or None)


_KINDS = ("Image", "ClassLabel")


def _are_bytes(pixels: NDArray[Any]) -> bool:
    return bool(pixels.size) and int(pixels.min()) >= 0 and int(pixels.max()) < 256
