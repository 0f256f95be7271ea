"""Images for people to look at. Knows nothing of federation."""

from __future__ import annotations

import io
from math import ceil, sqrt

import torch
from torch import Tensor

from catchment.data import Normalisation
from catchment.errors import needs

GAP = 2  # pixels between two images
LEAST = 56  # pixels of an image's side; smaller ones are enlarged


def pixels(images: Tensor, normalise: Normalisation) -> Tensor:
    """Normalised images as pixels from 0 to 1, cut there."""
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (normalise.mean, normalise.std))
    return (images.detach().cpu() * std + mean).clamp(0, 1)


def sheet(images: Tensor, normalise: Normalisation, columns: int | None = None) -> bytes:
    """A PNG file of normalised images `[N, C, H, W]`, grey or in colour, `columns` per row, or in a square."""
    with needs("a picture of what a method shows", "research"):
        from PIL import Image  # devices have no use for it
    times = max(1, LEAST // min(images.shape[2:]))
    tiles = (pixels(images, normalise) * 255).round().byte()
    tiles = tiles.repeat_interleave(times, 2).repeat_interleave(times, 3)
    count, channels, height, width = tiles.shape
    columns = columns or ceil(sqrt(count))
    rows = ceil(count / columns)
    page = torch.full((channels, rows * (height + GAP) - GAP, columns * (width + GAP) - GAP), 255, dtype=torch.uint8)
    for number, image in enumerate(tiles):
        top, left = (number // columns) * (height + GAP), (number % columns) * (width + GAP)
        page[:, top : top + height, left : left + width] = image
    array = page[0].numpy() if channels == 1 else page.permute(1, 2, 0).contiguous().numpy()
    file = io.BytesIO()
    Image.fromarray(array).save(file, format="PNG")
    return file.getvalue()
