"""Images with boxes from Parquet files in the column layout of the Hugging Face hub."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from catchment.data.annotations import Annotated
from catchment.data.parquet import is_image, reading
from catchment.errors import DataError, needs

with needs("reading Parquet files", "research"):
    import pyarrow.parquet as pq

OBJECTS = "objects"


@dataclass(frozen=True)
class ParquetBoxes:
    """One split of a data set with boxes in Parquet files."""

    files: tuple[Path, ...]
    image: str  # column
    names: tuple[str, ...] | None  # of the categories, if the schema has them

    def __len__(self) -> int:
        count = 0
        for file in self.files:
            with reading(file):
                count += pq.read_metadata(file).num_rows
        return count

    def read(self, rows: NDArray[np.int64]) -> Iterator[Annotated]:
        """Some rows, ascending."""
        first, wanted = 0, set(rows.tolist())
        for file in self.files:
            start = first
            with reading(file), pq.ParquetFile(file) as parquet:
                for batch in parquet.iter_batches(256, columns=[f"{self.image}.bytes", OBJECTS]):
                    for row in batch.to_pylist():
                        if first in wanted:
                            yield self._annotated(f"row {first - start} of {file}", row[self.image], row[OBJECTS])
                        first += 1

    def _annotated(self, place: str, image: dict[str, bytes] | None, objects: dict[str, Any]) -> Annotated:
        boxes, categories = objects.get("bbox"), objects.get("category")
        if boxes is None or categories is None or len(boxes) != len(categories):
            raise DataError(f"{OBJECTS} in {place} need lists bbox and category of one length")
        if self.names is not None and not all(0 <= number < len(self.names) for number in categories):
            raise DataError(f"{place} has a category beyond the {len(self.names)} that there are")
        encoded = None if image is None else image["bytes"]
        return Annotated(place, encoded, boxes, categories, objects.get("area"), objects.get("iscrowd"))


def open_box_parquet(files: Sequence[Path]) -> ParquetBoxes | None:
    """A split in these files, if they have a column of objects."""
    with reading(files[0]):
        schema = pq.read_schema(files[0])
    if OBJECTS not in schema.names:
        return None
    images = [field.name for field in schema if is_image(field.type)]
    if len(images) != 1:
        raise DataError(
            f"{files[0]} has {len(images)} image columns, expected one (a struct with a binary field bytes)"
        )
    features = json.loads((schema.metadata or {}).get(b"huggingface", "{}")).get("info", {}).get("features", {})
    objects = features.get(OBJECTS, {})
    objects = objects.get("feature", objects)
    category = objects.get("category", {})
    names = category.get("feature", category).get("names")
    return ParquetBoxes(tuple(files), images[0], tuple(names) if names else None)
