"""What a model reaches on a set of samples. Knows nothing of federation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from catchment.data import Batch, Normalisation, Samples, batches
from catchment.data.pictures import pixels
from catchment.tasks import CLASSIFICATION, Score, Task

SHOWN = 6  # samples that are drawn


def evaluate(
    model: nn.Module | Callable[[Tensor], Tensor],
    samples: Samples,
    normalise: Normalisation,
    device: torch.device | None = None,
    task: Task = CLASSIFICATION,
    classes: Sequence[str] = (),
) -> Score:
    """Score a model in eval mode; its mode is restored."""

    def results() -> Iterator[tuple[Tensor, Tensor]]:
        for batch in batches(samples, task.evaluation_batch, normalise=normalise, seed=None):
            yield model(batch.images.to(device)), batch.labels.to(device)

    training = isinstance(model, nn.Module) and model.training
    if isinstance(model, nn.Module):
        model.eval()
    with torch.inference_mode():
        score = task.score(results(), classes)
    if isinstance(model, nn.Module):
        model.train(training)
    return score


def predict(model: nn.Module, batches: Iterable[Batch], classes: int) -> Tensor:
    """Logits `[n, classes]` of a model in eval mode, batch after batch; its mode is restored."""
    training = model.training
    model.eval()
    with torch.no_grad():
        parts = [model(batch.images).cpu() for batch in batches]
    model.train(training)
    return torch.cat(parts) if parts else torch.empty(0, classes)


@torch.no_grad()
def drawn(
    model: nn.Module, samples: Samples, normalise: Normalisation, device: torch.device, task: Task
) -> Tensor | None:
    """The first samples as the task draws them, normalised, with a model in eval mode; None if it draws nothing."""
    training = model.training
    model.eval()
    batch = next(batches(samples.select(torch.arange(min(len(samples), SHOWN))), SHOWN, normalise=normalise, seed=None))
    shown = task.drawn(pixels(batch.images, normalise), model(batch.images.to(device)), batch.labels)
    model.train(training)
    if shown is None:
        return None
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (normalise.mean, normalise.std))
    return (shown - mean) / std
