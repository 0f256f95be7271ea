"""MedMNIST's own files: one `.npz` with the arrays `train_images`, `train_labels`, and the same for val and test."""

from __future__ import annotations

from pathlib import Path

from catchment.data.arrays import ArraySplit, arrays_of
from catchment.errors import DataError

PARTS = {"train": "train", "validation": "val", "test": "test"}


def find_medmnist(place: Path, split: str) -> ArraySplit | None:
    """The split in a file, or in the one such file of a folder."""
    files = [place] if place.is_file() else sorted(place.glob("*mnist*.npz"))
    files = [file for file in files if split in PARTS and f"{PARTS[split]}_images" in arrays_of(file)]
    if len(files) > 1:
        raise DataError(f"{place} has {', '.join(file.name for file in files)}; name the file that is to be used")
    return ArraySplit(files[0], None, *(f"{PARTS[split]}_{what}" for what in ("labels", "images"))) if files else None
