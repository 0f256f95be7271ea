"""Boxes as corners `[..., 4]`: left, top, right, bottom, in pixels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Found(NamedTuple):
    """What a detector found in one image, best first."""

    boxes: Tensor  # [n, 4]
    scores: Tensor  # [n]
    classes: Tensor  # int64 [n]


def areas(boxes: Tensor) -> Tensor:
    """The area of each box, 0 where it is turned inside out."""
    sides = (boxes[..., 2:] - boxes[..., :2]).clamp(min=0)
    return sides[..., 0] * sides[..., 1]


def overlaps(ones: Tensor, others: Tensor) -> Tensor:
    """Intersection over union of boxes `[..., 4]` that stand at the same places, or are broadcast to them."""
    inner = torch.cat(
        [torch.maximum(ones[..., :2], others[..., :2]), torch.minimum(ones[..., 2:], others[..., 2:])], -1
    )
    shared = areas(inner)
    return shared / (areas(ones) + areas(others) - shared).clamp(min=1e-9)


def all_overlaps(ones: Tensor, others: Tensor) -> Tensor:
    """Intersection over union of every one with every other, `[n, m]`."""
    return overlaps(ones[:, None], others[None])


def suppressed(boxes: Tensor, scores: Tensor, classes: Tensor, most_overlap: float) -> Tensor:
    """Non-maximum suppression: the positions of boxes that stay, best score first.

    A box goes if a better one of its class overlaps it by more than `most_overlap`; of equal scores the first wins.
    """
    order = scores.argsort(descending=True, stable=True)
    boxes, classes = boxes[order], classes[order]
    beats = ((all_overlaps(boxes, boxes) > most_overlap) & (classes[:, None] == classes)).cpu().numpy()
    stays = np.ones(len(order), dtype=bool)
    for place in range(len(order)):
        if stays[place]:
            stays[place + 1 :] &= ~beats[place, place + 1 :]
    return order[torch.from_numpy(stays).to(order.device)]
