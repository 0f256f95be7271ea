"""Images and labels from Parquet files in the column layout of the Hugging Face hub.

Images are a struct column with the encoded image in its field `bytes`; labels are whole numbers or text. The
schema may carry the class names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from catchment.data.decoding import Pixels, gathered
from catchment.data.fitting import Fit
from catchment.data.hub_columns import label_column
from catchment.errors import DataError, needs, printable

with needs("reading Parquet files", "research"):
    import pyarrow as pa
    import pyarrow.parquet as pq


@dataclass(frozen=True)
class ParquetSplit:
    """One split of a data set in Parquet files."""

    files: tuple[Path, ...]
    image: str  # column
    label: str  # column
    names: tuple[str, ...] | None  # of the classes, if the schema has them

    @property
    def place(self) -> str:
        """Where it is, or its first file."""
        return str(self.files[0])

    def labels(self) -> NDArray[Any]:
        """The labels of all rows as they are stored, numbers or text."""
        parts = []
        for file in self.files:
            with reading(file):
                column = pq.read_table(file, columns=[self.label]).column(0)
            if column.null_count:
                raise DataError(f"{file} has {column.null_count} rows without a {self.label}")
            parts.append(column.to_numpy())
        labels = np.concatenate(parts)
        return labels if labels.dtype.kind in "iu" else labels.astype(str)

    def images(self, rows: NDArray[np.int64], fit: Fit) -> Pixels:
        """The images of some rows, ascending; only these are decoded."""
        return gathered(self._encoded(rows), len(rows), self.place, fit)

    def _encoded(self, rows: NDArray[np.int64]) -> Iterator[tuple[str, bytes | None]]:
        """Some rows of all files together: where each is, in words, and its encoded image."""
        first = 0
        for file in self.files:
            start = first
            with reading(file), pq.ParquetFile(file) as parquet:
                for batch in parquet.iter_batches(1024, columns=[f"{self.image}.bytes"]):
                    last = first + batch.num_rows
                    wanted = rows[np.searchsorted(rows, first) : np.searchsorted(rows, last)]
                    encoded = batch.column(0).field("bytes").take(pa.array(wanted - first))
                    for row, value in zip(wanted, encoded.to_pylist()):
                        yield f"row {row - start} of {file}", value
                    first = last


def open_parquet(files: Sequence[Path], split: str) -> ParquetSplit:
    """A split in these files; their columns are checked, and images are read later."""
    columns = {_columns(file) for file in files}
    if len(columns) > 1:
        raise DataError(f"the files of the {split} split in {files[0].parent} have different columns or class names")
    return ParquetSplit(tuple(files), *columns.pop())


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Errors of a Parquet file as one sentence."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{file} is damaged or is not a Parquet file ({reason}); copy or download it again") from error


def _columns(file: Path) -> tuple[str, str, tuple[str, ...] | None]:
    """The image column, the label column, and the class names if the schema has them."""
    with reading(file):
        schema = pq.read_schema(file)
        images = [field.name for field in schema if is_image(field.type)]
        labels = [field.name for field in schema if _is_label(field.type)]
    if len(images) != 1:
        found = f"{len(images)} image columns" if images else "no image column"
        raise DataError(
            f"{file} has {found}, expected one (a struct with a binary field bytes); "
            f"its columns are {', '.join(schema.names)}"
        )
    named = _class_names(file, (schema.metadata or {}).get(b"huggingface", b"{}"))
    classes = [name for name in labels if name in named]
    known = label_column(labels, classes)
    if known is None:
        raise DataError(
            f'{file} has no label column: name a column of whole numbers or text "label"; '
            f"its columns are {', '.join(schema.names)}"
        )
    return images[0], known, named.get(known)


def _class_names(file: Path, metadata: bytes) -> dict[str, tuple[str, ...] | None]:
    """By column of classes: their names, if they have any."""
    try:
        features = json.loads(metadata).get("info", {}).get("features", {})
        kinds = {name: kind for name, kind in features.items() if isinstance(kind, dict)}
        classes = {name: kind.get("names") for name, kind in kinds.items() if kind.get("_type") == "ClassLabel"}
        return {name: tuple(map(str, names)) if names else None for name, names in classes.items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise DataError(
            f"{file} describes its columns in a way that cannot be read ({printable(error)}); save it again"
        ) from error


def is_image(kind: Any) -> bool:
    """Whether a column has encoded images."""
    if not pa.types.is_struct(kind):
        return False
    fields = {field.name: field.type for field in kind}
    return "bytes" in fields and (pa.types.is_binary(fields["bytes"]) or pa.types.is_large_binary(fields["bytes"]))


def _is_label(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind))
