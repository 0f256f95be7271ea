"""How similar images are: correlation and structural similarity."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

WINDOW = 7  # pixels, of structural similarity


def correlation(images: Tensor, others: Tensor) -> Tensor:
    """Pearson's correlation of each image with the one in the same row of `others`."""
    return (_unit(images) * _unit(others)).sum(1)


def correlations(images: Tensor, others: Tensor) -> Tensor:
    """Pearson's correlation of each image with each of the others."""
    return _unit(images) @ _unit(others).T


def _unit(images: Tensor) -> Tensor:
    flat = images.flatten(1)
    return F.normalize(flat - flat.mean(1, keepdim=True), dim=1)


def structural_similarity(images: Tensor, others: Tensor) -> Tensor:
    """SSIM after Wang et al. 2004 of images with pixels in 0..1, over square windows; the mean of each image."""
    window = min(WINDOW, *images.shape[2:])

    def mean(values: Tensor) -> Tensor:
        return F.avg_pool2d(values, window, stride=1)

    x, y = mean(images), mean(others)
    xx, yy = mean(images * images) - x * x, mean(others * others) - y * y
    xy = mean(images * others) - x * y
    c1, c2 = 0.01**2, 0.03**2
    index = (2 * x * y + c1) * (2 * xy + c2) / ((x * x + y * y + c1) * (xx + yy + c2))
    return index.flatten(1).mean(1)
