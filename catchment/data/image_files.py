"""Images in files of their own, with a label each: what folders of classes and lists in CSV files come to."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from catchment.data.decoding import Pixels, gathered
from catchment.data.fitting import Fit
from catchment.errors import DataError


@dataclass(frozen=True)
class ImageFiles:
    """Some image files and their labels."""

    place: str
    paths: Sequence[Path]
    values: Sequence[str]  # the label of each
    names: tuple[str, ...] | None = None  # labels name their classes themselves
    label: str = "label"

    def labels(self) -> NDArray[Any]:
        """The labels as text, or as numbers if all are."""
        check_names(self.values, self.place)
        plain = all(len(value) < 19 and value.isdecimal() and value == str(int(value)) for value in set(self.values))
        return np.array(self.values, dtype=np.int64 if plain else np.str_)

    def images(self, rows: NDArray[np.int64], fit: Fit) -> Pixels:
        """The images of some rows, ascending; only these are read."""
        return gathered(((str(self.paths[row]), self.paths[row]) for row in rows), len(rows), self.place, fit)

    def check_inside(self, folder: Path) -> None:
        """Refuse files outside of a folder, also those that a link leads to."""
        root = os.path.realpath(folder)
        for path in self.paths:
            if os.path.isfile(path) and not Path(os.path.realpath(path)).is_relative_to(root):
                raise DataError(f"{path}, of {self.place}, lies outside of {folder}, and nothing else is read; copy it")


def check_names(names: Iterable[str], place: str) -> None:
    """Refuse names of classes that cannot be written, or that do more to a terminal than be shown."""
    if odd := sorted({name for name in names if not name.isprintable()}):
        raise DataError(f"{place} has a class called {ascii(odd[0])[:100]}; rename it in printable characters")
