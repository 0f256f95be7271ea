"""Random crops and flips of a whole batch, drawn sample by sample."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from catchment.randomness import per_sample

AUGMENTATIONS = ("crop", "flip")


def augmented(images: Tensor, ids: Tensor, names: Sequence[str], seed: int) -> Tensor:
    """Images `[B, C, H, W]` cropped and flipped; what happens to one depends on (seed, id) only.

    "crop" pads an eighth of the size on each side (4 for 32 x 32) with pixel 0, which is black before
    normalisation, and cuts a window of the old size at a random place. "flip" mirrors half of the images.
    """
    count, _, height, width = images.shape
    top_draw, left_draw, flip_draw = per_sample(seed, ids, 3).unbind(1)  # each [B], in [0, 1)
    rows = torch.arange(height).expand(count, height)
    columns = torch.arange(width).expand(count, width)
    if "flip" in names:
        columns = torch.where(flip_draw[:, None] < 0.5, columns.flip(1), columns)
    if "crop" in names:
        above, beside = height // 8, width // 8
        images = pad(images, (beside, beside, above, above))
        rows = rows + (top_draw * (2 * above + 1)).long()[:, None]
        columns = columns + (left_draw * (2 * beside + 1)).long()[:, None]
    return _picked(images, rows, columns)


def shifted(maps: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """Maps `[B, C, H, W]`, each moved by its own numbers of rows and columns, `[B]`; zeros come in."""
    height, width = maps.shape[2:]
    most = int(torch.cat([down, right]).abs().max())
    rows = torch.arange(height) + (most - down)[:, None]
    columns = torch.arange(width) + (most - right)[:, None]
    return _picked(pad(maps, (most, most, most, most)), rows, columns)


def _picked(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Of each image `[C, H, W]` the pixels in its own rows and columns, `[B, H']` and `[B, W']`."""
    count, channels = images.shape[:2]
    height, width = rows.shape[1], columns.shape[1]
    places = rows[:, :, None] * images.shape[3] + columns[:, None, :]  # [B, H', W'], into a flattened source image
    places = places.view(count, 1, height * width).expand(count, channels, height * width)
    return images.flatten(2).gather(2, places).view(count, channels, height, width)
