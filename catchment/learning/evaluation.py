"""Accuracy and loss of a model on a set of samples. Knows nothing of federation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from catchment.data import Batch, Normalisation, Samples, batches

EVALUATION_BATCH = 500


class Score(NamedTuple):
    """Result of one evaluation."""

    accuracy: float
    loss: float
    samples: int

    def as_dict(self) -> dict[str, float]:
        """For metrics."""
        return {"accuracy": self.accuracy, "loss": self.loss}


def evaluate(
    model: nn.Module | Callable[[Tensor], Tensor],
    samples: Samples,
    normalise: Normalisation,
    device: torch.device | None = None,
) -> Score:
    """Score a model in eval mode; its mode is restored."""
    training = isinstance(model, nn.Module) and model.training
    if isinstance(model, nn.Module):
        model.eval()
    correct, loss = 0, 0.0
    with torch.inference_mode():
        for batch in batches(samples, EVALUATION_BATCH, normalise=normalise, seed=None):
            logits = model(batch.images.to(device))
            labels = batch.labels.to(device)
            correct += int((logits.argmax(1) == labels).sum())
            loss += float(F.cross_entropy(logits, labels, reduction="sum"))
    if isinstance(model, nn.Module):
        model.train(training)
    count = max(len(samples), 1)
    return Score(correct / count, loss / count, len(samples))


def predict(model: nn.Module, batches: Iterable[Batch], classes: int) -> Tensor:
    """Logits `[n, classes]` of a model in eval mode, batch after batch; its mode is restored."""
    training = model.training
    model.eval()
    with torch.no_grad():
        parts = [model(batch.images).cpu() for batch in batches]
    model.train(training)
    return torch.cat(parts) if parts else torch.empty(0, classes)
