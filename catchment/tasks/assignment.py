"""SimOTA: which places of a detector learn which object. Ge et al., YOLOX, section 2.1, and OTA, CVPR 2021."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from catchment.tasks.boxes import all_overlaps

RADIUS = 2.5  # strides around the middle of an object, in which a place is a candidate wherever the object ends
CANDIDATES = 10  # the best overlaps, whose sum says how many places an object gets
OVERLAP_WEIGHT = 3.0  # of the overlap in the cost, beside the classes
FAR = 1e5  # added to the cost of a place that is not both inside the object and near its middle


class Places(NamedTuple):
    """Where and what a detector looks for in one image."""

    middles: Tensor  # [A, 2], pixels
    strides: Tensor  # [A]
    boxes: Tensor  # [A, 4], predicted
    objectness: Tensor  # [A], logits
    classes: Tensor  # [A, C], logits


class Assigned(NamedTuple):
    """The places that learn an object."""

    places: Tensor  # int64 [n], numbers of places
    objects: Tensor  # int64 [n], of the object that each learns
    overlaps: Tensor  # [n], of its predicted box with it


@torch.no_grad()
def assign(places: Places, boxes: Tensor, classes: Tensor) -> Assigned:
    """Give every object `[m, 4]`, of class `[m]`, the places with the least cost; a place has at most one object."""
    inside, near = _inside(places.middles, boxes), _near(places, boxes)  # each [A, m]
    candidates = (inside | near).any(1).nonzero()[:, 0]
    if not len(candidates):
        return Assigned(candidates, candidates, candidates.float())
    overlap = all_overlaps(places.boxes[candidates], boxes)  # [a, m]
    probability = (places.classes[candidates].sigmoid() * places.objectness[candidates, None].sigmoid()).sqrt()
    cost = (
        _class_cost(probability, classes) - OVERLAP_WEIGHT * (overlap + 1e-8).log() + FAR * ~(inside & near)[candidates]
    )
    wanted = overlap.topk(min(CANDIDATES, len(candidates)), dim=0).values.sum(0).int().clamp(min=1)  # [m]
    rank = cost.argsort(dim=0, stable=True).argsort(dim=0)
    chosen = rank < wanted  # [a, m]
    several = chosen.sum(1) > 1
    chosen[several] = F.one_hot(cost[several].argmin(1), len(boxes)).bool()
    taken, objects = chosen.nonzero().unbind(1)
    return Assigned(candidates[taken], objects, overlap[taken, objects])


def _inside(middles: Tensor, boxes: Tensor) -> Tensor:
    return ((middles[:, None] > boxes[:, :2]) & (middles[:, None] < boxes[:, 2:])).all(2)


def _near(places: Places, boxes: Tensor) -> Tensor:
    distance = (places.middles[:, None] - (boxes[:, :2] + boxes[:, 2:]) / 2).abs().amax(2)
    return distance < RADIUS * places.strides[:, None]


def _class_cost(probability: Tensor, classes: Tensor) -> Tensor:
    """Binary cross-entropy of probabilities `[a, C]` with each object's class, `[a, m]`, summed over classes."""
    wrong = -(1 - probability).clamp(min=1e-12).log()  # [a, C], of a class that is not there
    right = -probability.clamp(min=1e-12).log()
    return wrong.sum(1, keepdim=True) + (right - wrong)[:, classes]
