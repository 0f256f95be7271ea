"""Losses shared by several methods. Knows nothing of federation."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def squared_distance(model: nn.Module, anchor: Mapping[str, Tensor]) -> Tensor:
    """Squared l2 distance of a model's parameters from given ones: sum over parameters of |w - anchor|^2."""
    parts = [(w - anchor[name]).square().sum() for name, w in model.named_parameters() if w.requires_grad]
    return torch.stack(parts).sum()


def distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T^2 KL(softmax(teacher / T) || softmax(student / T)), mean over the batch; both are logits `[B, C]`."""
    divergence = F.kl_div(
        F.log_softmax(student / temperature, 1),
        F.log_softmax(teacher / temperature, 1),
        reduction="batchmean",
        log_target=True,
    )
    return temperature**2 * divergence
