"""Generators: from noise to images that look normalised. They have no labels and no classes.

Trainable parameters, noise of 100 numbers and a width of 64:

| images  | parameters |
|---------|------------|
| 1x8x8   |    274,113 |
| 1x28x28 |    855,873 |
| 3x32x32 |  1,050,947 |
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

from torch import nn

from catchment.errors import ModelError
from catchment.models.initial import glorot
from catchment.models.split import written
from catchment.names import call_with_known, resolve
from catchment.randomness import seeded_globals


def generator(shape: tuple[int, ...], noise: int, width: int) -> nn.Sequential:
    """A linear layer makes maps of a quarter of the size, two stages double them, a convolution makes the image.

    The last normalisation has no weights of its own: every channel leaves with mean 0 and variance 1, as the pixels
    of normalised data have.
    """
    channels, height, width_of_image = shape
    quarter, half = ((ceil(height / part), ceil(width_of_image / part)) for part in (4, 2))
    return nn.Sequential(
        nn.Linear(noise, 2 * width * quarter[0] * quarter[1]),
        nn.Unflatten(1, (2 * width, *quarter)),
        nn.BatchNorm2d(2 * width),
        *_stage(half, 2 * width, 2 * width),
        *_stage((height, width_of_image), 2 * width, width),
        nn.Conv2d(width, channels, kernel_size=3, padding=1),
        nn.Tanh(),
        nn.BatchNorm2d(channels, affine=False),
    )


def _stage(size: tuple[int, int], channels_in: int, channels_out: int) -> tuple[nn.Module, ...]:
    return (
        nn.Upsample(size),
        nn.Conv2d(channels_in, channels_out, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.LeakyReLU(0.2),
    )


GENERATORS: dict[str, Callable[..., nn.Module]] = {"generator": generator}


def build_generator(
    name: str, shape: tuple[int, ...], noise: int, width: int, seed: int, initial: str = "own"
) -> nn.Module:
    """A fresh generator of images of this shape; the same seed gives the same weights.

    The name is `generator`, or the user's own `module:function`, which is called with those of `shape`, `channels`,
    `size` (the width of an image), `noise` and `width` that it names.
    """
    function: Any = resolve("generator", name, GENERATORS)
    with seeded_globals(seed):
        try:
            model = call_with_known(function, shape=shape, channels=shape[0], size=shape[-1], noise=noise, width=width)
        except Exception as error:
            raise ModelError(
                f'generator "{name}" could not be built for images of {written(shape)}: {type(error).__name__}: {error}'
            ) from error
        if not isinstance(model, nn.Module):
            raise ModelError(f'generator "{name}" should return a torch.nn.Module, not a {type(model).__name__}')
        if initial == "glorot":
            glorot(model)
    return model
