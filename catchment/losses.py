"""Losses shared by several methods. Knows nothing of federation."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def squared_distance(model: nn.Module, anchor: Mapping[str, Tensor]) -> Tensor:
    """Squared l2 distance of a model's parameters from given ones: sum over parameters of |w - anchor|^2."""
    parts = [(w - anchor[name]).square().sum() for name, w in model.named_parameters() if w.requires_grad]
    return torch.stack(parts).sum()
