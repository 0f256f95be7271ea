"""Samples to batches of normalised images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from catchment.data.samples import Samples
from catchment.errors import ExperimentError
from catchment.randomness import torch_generator
from catchment.tasks import CLASSIFICATION, Rows, Task


class Batch(NamedTuple):
    """A few samples, ready for a model."""

    images: Tensor  # float32 [B, C, H, W], normalised
    labels: Tensor  # [B, ...]: of the task, in classification int64 [B]
    ids: Tensor  # int64 [B]

    def to(self, device: torch.device) -> Batch:
        """The batch on a compute device."""
        return self if device.type == "cpu" else Batch(*(tensor.to(device) for tensor in self))


def batches(
    samples: Samples,
    size: int,
    *,
    normalise: Callable[[Tensor], Tensor],
    seed: int | None,
    augment: Sequence[str] = (),
    augment_seed: int = 0,
    channels_last: bool = False,
    start: int = 0,
    task: Task = CLASSIFICATION,
) -> Iterator[Batch]:
    """One epoch, shuffled by `seed`, or in order if it is None; from batch number `start` on.

    A last batch of one sample joins the batch before it, because batch normalisation needs two. How a sample
    is augmented depends on `augment_seed` and its id, not on the batch it is in. Images and labels of a batch
    are copies: changing them in place does not reach the data set.
    """
    if size < 1:
        raise ExperimentError(f"batch size {size} must be at least 1")
    task.check_augmentations(augment)
    return _epoch(samples, size, normalise, seed, augment, augment_seed, channels_last, start, task)


def _epoch(
    samples: Samples,
    size: int,
    normalise: Callable[[Tensor], Tensor],
    seed: int | None,
    augment: Sequence[str],
    augment_seed: int,
    channels_last: bool,
    start: int,
    task: Task,
) -> Iterator[Batch]:
    order = samples.index
    if seed is not None:
        order = order.index_select(0, torch.randperm(len(order), generator=torch_generator(seed, "shuffle")))
    sizes = batch_sizes(len(order), size)
    if start:
        order, sizes = order[sum(sizes[:start]) :], sizes[start:]
    ids_of_batches = order.split_with_sizes(sizes)
    for images, ids in zip(_images(samples, order, ids_of_batches), ids_of_batches):
        labels = samples.labels.index_select(0, ids)
        if augment:
            batch, everything = Rows(images, labels, ids), Rows(samples.images, samples.labels, samples.index)
            images, labels = task.augment(batch, everything, augment, augment_seed)
        images = normalise(images)
        if channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        yield Batch(images, labels, ids)


def batch_sizes(count: int, size: int) -> list[int]:
    """The sizes of an epoch's batches."""
    whole, rest = divmod(count, size)
    sizes = [size] * whole
    if rest == 1 and whole:
        sizes[-1] += 1
    elif rest:
        sizes.append(rest)
    return sizes


def _images(samples: Samples, order: Tensor, ids_of_batches: Sequence[Tensor]) -> Iterable[Tensor]:
    """The images of each batch; neighbouring uint8 rows are only sliced, as normalising copies them."""
    if samples.images.dtype == torch.uint8 and len(order) and bool((order.diff() == 1).all()):
        first = int(order[0])
        return samples.images[first : first + len(order)].split_with_sizes([len(ids) for ids in ids_of_batches])
    return (samples.images.index_select(0, ids) for ids in ids_of_batches)
