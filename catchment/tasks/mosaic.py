"""Random mosaics, flips and colours of images with boxes, drawn sample by sample.

"mosaic" puts half of the images with three others into a square of four, and cuts a window out of it that is between
one and two images wide. "flip" mirrors half of the images. "colour" multiplies brightness, contrast and saturation of
each by numbers from 0.6 to 1.4. What happens to an image depends on (seed, id), and in a mosaic on which images there
are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from catchment.errors import ExperimentError
from catchment.randomness import per_sample
from catchment.tasks.boxes import areas
from catchment.tasks.task import Rows

AUGMENTATIONS = ("flip", "colour", "mosaic")
CHANGE = 0.4  # of colours
LEFT = 0.2  # share of a box that must be left when a window cuts it
LEAST = 2.0  # pixels of a box that is left
KIND, BOX = 0, slice(1, 5)  # columns of a label


def augmented(batch: Rows, everything: Rows, names: Sequence[str], seed: int) -> tuple[Tensor, Tensor]:
    """Images and labels of a batch, changed."""
    if batch.images.dtype != torch.uint8:
        raise ExperimentError("images with boxes are augmented as pixels, and these are normalised already")
    draws = per_sample(seed, batch.ids, 12).float()
    images, labels = batch.images.clone(), batch.labels.clone()
    if "mosaic" in names:
        for number in (draws[:, 0] < 0.5).nonzero()[:, 0].tolist():
            others = everything.ids[(draws[number, 1:4] * len(everything.ids)).long()]
            pictures = torch.cat([images[number][None], everything.images[others]])
            tables = torch.cat([labels[number][None], everything.labels[others]])
            images[number], labels[number] = window(pictures, tables, *draws[number, 4:7].tolist())
    if "flip" in names:
        flips = draws[:, 7] < 0.5
        images[flips], labels[flips] = mirrored(images[flips], labels[flips])
    if "colour" in names:
        images = coloured(images, 1 + CHANGE * (2 * draws[:, 8:11] - 1))
    return images, labels


def mirrored(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Left is right."""
    width = images.shape[3]
    labels = labels.clone()
    there = labels[..., KIND] >= 0
    left, right = width - labels[..., 3], width - labels[..., 1]
    labels[..., 1], labels[..., 3] = torch.where(there, left, 0), torch.where(there, right, 0)
    return images.flip(3), labels


def coloured(images: Tensor, factors: Tensor) -> Tensor:
    """Brightness, contrast and saturation times their factors, `[B, 3]`; for pixels from 0 to 255."""
    brightness, contrast, saturation = factors.view(-1, 3, 1, 1, 1).unbind(1)
    pixels = images.float() * brightness
    pixels = contrast * (pixels - (mean := pixels.mean((1, 2, 3), keepdim=True))) + mean
    pixels = saturation * (pixels - (grey := pixels.mean(1, keepdim=True))) + grey
    return pixels.clamp(0, 255).round().to(images.dtype)


def window(images: Tensor, labels: Tensor, size: float, down: float, right: float) -> tuple[Tensor, Tensor]:
    """A window of four images `[4, C, H, W]` put in a square, as large as one: its size and its place, each 0 to 1."""
    height, width = images.shape[2:]
    square = torch.cat([torch.cat([*images[:2]], 2), torch.cat([*images[2:]], 2)], 1)  # [C, 2 H, 2 W]
    tall, wide = round(height * (1 + size)), round(width * (1 + size))
    top, left = int(down * (2 * height - tall + 1)), int(right * (2 * width - wide + 1))
    cut = square[:, top : top + tall, left : left + wide]
    shrunk = F.interpolate(cut[None].float(), (height, width), mode="bilinear", antialias=True)[0]
    picture = shrunk.round().clamp(0, 255).to(images.dtype)

    moved = labels.clone()
    moved[..., BOX] += torch.tensor([[0, 0], [width, 0], [0, height], [width, height]]).repeat(1, 2)[:, None]
    moved = moved.flatten(0, 1)
    moved = moved[moved[:, KIND] >= 0]
    moved[:, BOX] -= torch.tensor([left, top, left, top])
    whole = areas(moved[:, BOX])
    moved[:, BOX] = torch.minimum(moved[:, BOX].clamp(min=0), torch.tensor([wide, tall, wide, tall]))
    stays = areas(moved[:, BOX]) > LEFT * whole
    moved[:, BOX] *= torch.tensor([width / wide, height / tall]).repeat(2)
    stays &= (moved[:, 3:5] - moved[:, 1:3] >= LEAST).all(1)
    moved = moved[stays][: labels.shape[1]]
    table = torch.zeros_like(labels[0])
    table[:, KIND], table[:, -1] = -1, labels[0, 0, -1]
    table[: len(moved)] = moved
    return picture, table
