"""Images with boxes on disk as they were annotated, and COCO's JSON files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from catchment.errors import DataError


class Annotated(NamedTuple):
    """One image of a split."""

    place: str  # in words
    encoded: bytes | None
    boxes: list[list[float]]  # [left, top, width, height]
    categories: list[int]
    areas: list[float] | None
    crowds: list[int] | None


class BoxSplit(Protocol):
    """One split of a data set with boxes on disk."""

    @property
    def files(self) -> tuple[Path, ...]:
        """Where it is."""

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the categories, if they are there."""

    def __len__(self) -> int: ...

    def read(self, rows: NDArray[np.int64]) -> Iterator[Annotated]:
        """Some rows, ascending."""


@dataclass(frozen=True)
class JsonSplit:
    """One split in a JSON file of COCO's form, with a folder of images."""

    files: tuple[Path, ...]
    names: tuple[str, ...]
    images: list[tuple[Path, list[dict[str, Any]]]]  # file and annotations of each image
    numbers: dict[int, int]  # of categories, by their ids

    def __len__(self) -> int:
        return len(self.images)

    def read(self, rows: NDArray[np.int64]) -> Iterator[Annotated]:
        """Some rows, ascending."""
        for row in rows:
            file, objects = self.images[row]
            boxes = [list(map(float, one["bbox"])) for one in objects]
            sizes = [float(one.get("area", box[2] * box[3])) for one, box in zip(objects, boxes)]
            categories = [self.numbers[one["category_id"]] for one in objects]
            crowds = [int(one.get("iscrowd", 0)) for one in objects]
            encoded = file.read_bytes() if file.is_file() else None
            yield Annotated(str(file), encoded, boxes, categories, sizes, crowds)


def open_json(file: Path, images: Path) -> JsonSplit:
    """A split in a JSON file, with this folder of images."""
    try:
        table = json.loads(file.read_text(encoding="utf-8"))
        categories = sorted(table["categories"], key=lambda one: one["id"])
        numbers = {one["id"]: number for number, one in enumerate(categories)}
        of_image: dict[int, list[dict[str, Any]]] = {one["id"]: [] for one in table["images"]}
        for one in table["annotations"]:
            if one["category_id"] not in numbers or one["image_id"] not in of_image or len(one["bbox"]) != 4:
                raise ValueError(f"annotation {one.get('id')} has an unknown category or image, or no box")
            of_image[one["image_id"]].append(one)
        files = [(images / one["file_name"], of_image[one["id"]]) for one in table["images"]]
        return JsonSplit((file,), tuple(str(one["name"]) for one in categories), files, numbers)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{file} cannot be read as annotations of COCO's form ({type(error).__name__}: {error}); it needs images, "
            "annotations with bbox and category_id, and categories"
        ) from error
