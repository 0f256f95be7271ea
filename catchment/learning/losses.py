"""Losses shared by several methods. Knows nothing of federation."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from catchment.learning.steps import loss_function


@loss_function
def task_loss(outputs: Tensor, labels: Tensor, criterion: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The loss of the task: in classification, cross-entropy."""
    return criterion(outputs, labels)


@loss_function
def soft_labels(outputs: Tensor, teacher: Tensor) -> Tensor:
    """Cross-entropy of logits with probabilities, both `[B, C]`."""
    return F.cross_entropy(outputs, teacher)


@loss_function
def teachers_logits(outputs: Tensor, teacher: Tensor) -> Tensor:
    """KL(softmax(teacher) || softmax(outputs)), both logits `[B, C]`."""
    return distillation(outputs, teacher, 1.0)


@loss_function
def proximal(
    outputs: Tensor,
    labels: Tensor,
    weights: Mapping[str, Tensor],
    criterion: Callable[[Tensor, Tensor], Tensor],
    anchor: Mapping[str, Tensor] | None = None,
    *,
    mu: float,
) -> Tensor:
    """The loss of the task + mu/2 |w - anchor|^2, if there is an anchor."""
    loss = criterion(outputs, labels)
    return loss if anchor is None else loss + mu / 2 * squared_distance(weights, anchor)


def squared_distance(weights: nn.Module | Mapping[str, Tensor], anchor: Mapping[str, Tensor]) -> Tensor:
    """Squared l2 distance of trained parameters from given ones: sum over parameters of |w - anchor|^2."""
    if isinstance(weights, nn.Module):
        weights = {name: w for name, w in weights.named_parameters() if w.requires_grad}
    return torch.stack([(w - anchor[name]).square().sum() for name, w in weights.items()]).sum()


def distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T^2 KL(softmax(teacher / T) || softmax(student / T)), mean over the batch; both are logits `[B, C]`."""
    log_p, log_q = F.log_softmax(student / temperature, 1), F.log_softmax(teacher / temperature, 1)
    return temperature**2 * F.kl_div(log_p, log_q, reduction="batchmean", log_target=True)
