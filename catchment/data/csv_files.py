"""Lists of images in CSV files: a first line that names the columns, then one line per image, with path and label.

Paths are relative to the file, or to the folder of its name: `train.csv` may list what is in `train/`.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Collection, Sequence
from pathlib import Path

from catchment.data.image_files import ImageFiles
from catchment.errors import DataError

PATHS = ("path", "file", "file_name", "filename", "filepath", "image", "image_path", "img")
LABELS = ("label", "labels", "class", "target", "category")
SEPARATORS = ",;\t"


def find_csv(place: Path, split: str) -> ImageFiles | None:
    """The split in a file of its name, if it is there."""
    file = place / f"{split}.csv"
    return open_csv(file) if file.is_file() else None


def find_other_csv(place: Path, others: Collection[str]) -> ImageFiles | None:
    """The one list of a folder, whose name is none of the `others`."""
    files = sorted(file for file in place.glob("*.csv") if file.stem not in others and not file.name.startswith("."))
    if len(files) > 1:
        raise DataError(f"{place} has {', '.join(file.name for file in files)}; name the file that is to be used")
    return open_csv(files[0]) if files else None


def open_csv(file: Path) -> ImageFiles:
    """The images that a file lists, in its order."""
    try:
        text = file.read_text(encoding="utf-8-sig")
        separator = max(SEPARATORS, key=text.partition("\n")[0].count)
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
        header, *rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row] or [(1, [])]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file} cannot be read as a CSV file ({error}); write it again, in UTF-8") from error
    path, label = _column(file, header[1], PATHS), _column(file, header[1], LABELS)
    listed = []
    for number, row in rows:
        if len(row) <= max(path, label) or not row[path] or not row[label]:
            raise DataError(f"line {number} of {file} has no path or no label")
        listed.append((row[path], row[label]))
    if not listed:
        raise DataError(f"{file} has no rows")
    beside = (file.parent, file.with_suffix(""))
    base = next((folder for folder in beside if os.path.exists(folder / listed[0][0])), file.parent)
    return ImageFiles(str(file), [base / name for name, _ in listed], [value for _, value in listed])


def _column(file: Path, header: Sequence[str], known: Sequence[str]) -> int:
    names = [name.lower() for name in header]
    for name in known:
        if name in names:
            return names.index(name)
    raise DataError(
        f'{file} has no column "{known[0]}"; its first line must name the columns, such as path,label, and is: '
        f"{', '.join(header)[:100] or 'empty'}"
    )
