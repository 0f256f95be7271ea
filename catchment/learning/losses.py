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


def cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Mean over the batch, each sample times its weight `[B]`, if there are weights."""
    if weights is None:
        return F.cross_entropy(logits, labels)
    return (F.cross_entropy(logits, labels, reduction="none") * weights).mean()


def distillation(student: Tensor, teacher: Tensor, temperature: float, weights: Tensor | None = None) -> Tensor:
    """T^2 KL(softmax(teacher / T) || softmax(student / T)), mean over the batch; both are logits `[B, C]`.

    With weights `[B]`, each sample counts times its weight.
    """
    log_p, log_q = F.log_softmax(student / temperature, 1), F.log_softmax(teacher / temperature, 1)
    if weights is None:
        divergence = F.kl_div(log_p, log_q, reduction="batchmean", log_target=True)
    else:
        divergence = (F.kl_div(log_p, log_q, reduction="none", log_target=True).sum(1) * weights).mean()
    return temperature**2 * divergence
