"""Pixels of images in files or in memory; Pillow decodes them. What cannot be decoded is left out, and named."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from catchment.data.fitting import AS_THEY_COME, Fit, channels_first
from catchment.errors import DataError, needs, printable

GREY = {"1", "L", "LA"}  # Pillow's modes
COLOUR = {"RGB", "RGBA", "P", "PA", "CMYK", "YCbCr"}


class Pixels(NamedTuple):
    """The images of some rows."""

    images: NDArray[Any]  # uint8 or float32 [n, C, H, W]
    kept: NDArray[np.int64]  # which of the rows these are, ascending
    left_out: tuple[str, ...] = ()  # why each of the others is not there


def gathered(images: Iterable[tuple[str, Any]], count: int, whole: str, fit: Fit) -> Pixels:
    """Some images as one array: for each, where it is, in words, and what `pixels_of` takes.

    A set is colour if one of its images is. All have one size, if `fit` does not say which. `whole` is where they are.
    """
    array: NDArray[Any] | None = None
    kept: list[int] = []
    left_out: list[str] = []
    for row, (place, value) in enumerate(images):
        try:
            pixels = pixels_of(value, place)
        except DataError as error:
            left_out.append(printable(error))
            continue
        if fit != AS_THEY_COME:
            pixels = fit(torch.tensor(pixels[None]))[0].numpy()
        if array is None:
            array = np.empty((count, *pixels.shape), dtype=pixels.dtype)
        if pixels.shape[1:] != array.shape[2:]:
            raise DataError(
                f"the image in {place} is {pixels.shape[2]} x {pixels.shape[1]} pixels, those before it "
                f"{array.shape[3]} x {array.shape[2]}; all images of a set must have one size: set data.size, such as "
                "64, to scale them into squares"
            )
        if pixels.dtype != array.dtype:
            raise DataError(f"the image in {place} is {pixels.dtype}, those before it {array.dtype}; use one of them")
        if len(pixels) > array.shape[1]:
            array = np.repeat(array, 3, axis=1)
        array[len(kept)] = pixels
        kept.append(row)
    if array is None:
        raise DataError(f"{whole} has no image that can be read: {left_out[0]}" if left_out else f"{whole} has no rows")
    return Pixels(array[: len(kept)], np.array(kept), tuple(left_out))


def pixels_of(image: Any, place: str) -> NDArray[Any]:
    """The pixels of an image: `[1, H, W]` if it is grey, `[3, H, W]` if it is colour.

    It is encoded (bytes, or a file), an image of Pillow's, or an array or a tensor.
    """
    if isinstance(image, Path):
        image = _bytes(image)
    if image is None or isinstance(image, bytes):
        return decoded(image, place)
    if hasattr(image, "mode") and hasattr(image, "convert"):
        return _of_pillow(image, place)
    return _of_array(image, place)


def decoded(encoded: bytes | None, place: str) -> NDArray[np.uint8]:
    """The pixels of an encoded image: `[1, H, W]` if it is grey, `[3, H, W]` if it is colour."""
    with needs("reading encoded images", "images"):
        from PIL import Image  # not every device has it
    if encoded is None:
        raise DataError(f"{place} has no image bytes; files that only name image paths cannot be used")
    try:
        with Image.open(io.BytesIO(encoded)) as image:
            return _of_pillow(image, place)
    except DataError:
        raise
    except Exception as error:  # Pillow's decoders raise many kinds of errors on damaged images
        why = re.sub(r" <_io.*?>", "", printable(error))  # it differs from run to run
        raise DataError(f"the image in {place} cannot be decoded: {why}") from error


def _bytes(file: Path) -> bytes:
    if not os.path.isfile(file):  # a device or a pipe would be read for ever
        raise DataError(f"there is no file {file}")
    try:
        return file.read_bytes()
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}") from error


def _of_pillow(image: Any, place: str) -> NDArray[np.uint8]:
    mode = image.mode
    if mode in GREY:
        return np.asarray(image if mode == "L" else image.convert("L"))[None]
    if mode in COLOUR:
        return np.asarray(image if mode == "RGB" else image.convert("RGB")).transpose(2, 0, 1)
    raise DataError(f'the image in {place} has pixels of kind "{mode}"; only 8-bit grey and colour can be used')


def _of_array(image: Any, place: str) -> NDArray[Any]:
    try:
        tensor = image.detach().cpu() if isinstance(image, Tensor) else torch.tensor(np.asarray(image))
        pixels = channels_first(tensor[None])[0]
    except (TypeError, ValueError) as error:
        raise DataError(f"the image in {place} cannot be used: {printable(error)}") from None
    if pixels.ndim != 3 or not (pixels.dtype == torch.uint8 or pixels.is_floating_point()):
        raise DataError(
            f"the image in {place} is {str(tensor.dtype).removeprefix('torch.')} of shape {list(tensor.shape)}; uint8 "
            "or float of shape [H, W], [C, H, W] or [H, W, C] is expected"
        )
    return (pixels if pixels.dtype == torch.uint8 else pixels.float()).numpy()
