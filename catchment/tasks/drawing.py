"""Boxes drawn into images, for people to look at."""

from __future__ import annotations

import torch
from torch import Tensor

WIDTH = 2  # pixels of a line
COLOURS = torch.tensor(
    [[0.90, 0.10, 0.29], [0.00, 0.51, 0.78], [1.00, 0.88, 0.10], [0.24, 0.71, 0.29], [0.96, 0.51, 0.19],
     [0.57, 0.12, 0.71], [0.27, 0.94, 0.94], [0.94, 0.20, 0.90]]
)  # fmt: skip
"""Of classes, in turn."""


def with_boxes(image: Tensor, boxes: Tensor, classes: Tensor) -> Tensor:
    """An image `[3, H, W]` of pixels from 0 to 1 with boxes `[n, 4]` in the colours of their classes `[n]`."""
    image = image.clone()
    height, width = image.shape[1:]
    most = torch.tensor([width, height, width, height])
    for corners, kind in zip(torch.minimum(boxes.cpu().round().clamp(min=0), most).int().tolist(), classes.tolist()):
        left, top, right, bottom = corners
        colour = COLOURS[int(kind) % len(COLOURS)][:, None, None]
        for lines, columns in (
            (slice(top, top + WIDTH), slice(left, right)),
            (slice(max(bottom - WIDTH, 0), bottom), slice(left, right)),
            (slice(top, bottom), slice(left, left + WIDTH)),
            (slice(top, bottom), slice(max(right - WIDTH, 0), right)),
        ):
            image[:, lines, columns] = colour
    return image
