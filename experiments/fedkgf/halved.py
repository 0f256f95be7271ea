"""CIFAR-10 and CIFAR-100 with 16 pixels a side: each is the mean of four, so that a run costs about a quarter."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import torch.nn.functional as F

from catchment import Dataset
from catchment.data import Samples, load


def cifar10(root: Path | None) -> Dataset:
    """CIFAR-10, halved."""
    return _halved("cifar10", root)


def cifar100(root: Path | None) -> Dataset:
    """CIFAR-100, halved."""
    return _halved("cifar100", root)


@cache  # studies do many runs in a process
def _halved(name: str, root: Path | None) -> Dataset:
    whole = load(name, root, train=None, test=None, seed=0)
    return replace(whole, train=_half(whole.train), test=_half(whole.test))


def _half(samples: Samples) -> Samples:
    means = F.avg_pool2d(samples.images.float(), 2).round()
    return replace(samples, images=means.to(samples.images.dtype))
