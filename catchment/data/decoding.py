"""Pixels of encoded images, with Pillow."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray

from catchment.errors import DataError, needs

GREY = {"1", "L", "LA"}  # Pillow's modes
COLOUR = {"RGB", "RGBA", "P", "PA", "CMYK", "YCbCr"}


def decoded(encoded: bytes | None, place: str) -> NDArray[np.uint8]:
    """The pixels of an encoded image: `[1, H, W]` if it is grey, `[3, H, W]` if it is colour."""
    with needs("reading encoded images", "research"):
        from PIL import Image  # not every device has it
    if encoded is None:
        raise DataError(f"{place} has no image bytes; files that only name image paths cannot be used")
    try:
        with Image.open(io.BytesIO(encoded)) as image:
            mode = image.mode
            if mode in GREY:
                return np.asarray(image if mode == "L" else image.convert("L"))[None]
            if mode in COLOUR:
                return np.asarray(image if mode == "RGB" else image.convert("RGB")).transpose(2, 0, 1)
    except Exception as error:  # Pillow's decoders raise many kinds of errors on damaged images
        raise DataError(f"the image in {place} cannot be decoded: {error}") from error
    raise DataError(f'the image in {place} has pixels of kind "{mode}"; only 8-bit grey and colour can be used')
