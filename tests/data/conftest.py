"""Small data sets on disk, written the way the hub writes them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image


def encode(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    """An encoded image of `[H, W]` or `[H, W, 3]` pixels."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


@pytest.fixture
def encoded() -> Callable[..., bytes]:
    return encode


@pytest.fixture
def write_split() -> Callable[..., None]:
    def write(
        path: Path,
        images: Sequence[np.ndarray | bytes | None],
        labels: Sequence[Any],
        *,
        names: Sequence[str] | None = None,
        image: str = "image",
        label: str = "label",
        extra: dict[str, Sequence[Any]] | None = None,
        row_group_size: int = 7,
    ) -> None:
        """One Parquet file; images are pixels, or bytes to be stored as they are."""
        cells = [
            {"bytes": encode(own) if isinstance(own, np.ndarray) else own, "path": f"{row}.png"}
            for row, own in enumerate(images)
        ]
        kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
        columns: dict[str, Any] = {image: pa.array(cells, kind), label: pa.array(labels), **(extra or {})}
        table = pa.table(columns)
        if names is not None:
            features = {image: {"_type": "Image"}, label: {"names": list(names), "_type": "ClassLabel"}}
            table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, row_group_size=row_group_size)

    return write


@pytest.fixture
def random_images() -> Callable[..., list[np.ndarray]]:
    def draw(count: int, shape: tuple[int, ...] = (6, 5), seed: int = 0) -> list[np.ndarray]:
        """Different pixels in every image, `[H, W]` or `[H, W, 3]`."""
        return list(np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8))

    return draw
