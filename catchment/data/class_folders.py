"""Images in one folder for each class: `train/CLASS/*.png` and `test/CLASS/*.png`, or just `CLASS/*.png`.

A class may have folders below its own. Hidden files, and files with other endings than those of images, are ignored.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from catchment.data.image_files import ImageFiles
from catchment.errors import DataError

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")


def find_class_folders(place: Path, split: str) -> ImageFiles | None:
    """The split in a folder of its name, if that has class folders."""
    folder = place / split
    found = open_class_folders(folder)
    if found is None and _folders(folder):
        raise DataError(f"the folders in {folder} have no images; files that end in {', '.join(ENDINGS)} are expected")
    return found


def open_class_folders(folder: Path, others: Collection[str] = ()) -> ImageFiles | None:
    """All images of class folders, in the order of their names; folders with the names of `others` are no classes."""
    found = [
        (file, inner.name) for inner in _folders(folder) if inner.name not in others for file in _images_below(inner)
    ]
    return ImageFiles(str(folder), [file for file, _ in found], [name for _, name in found]) if found else None


def _folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(inner for inner in folder.iterdir() if inner.is_dir() and not _hidden(inner.name))


def _images_below(folder: Path) -> Iterator[Path]:
    for place, inner, files in os.walk(folder):  # follows no links to other folders, so that it ends
        inner[:] = sorted(name for name in inner if not _hidden(name))
        yield from (Path(place, n) for n in sorted(files) if n.lower().endswith(ENDINGS) and not _hidden(n))


def _hidden(name: str) -> bool:
    return name.startswith((".", "__MACOSX"))
