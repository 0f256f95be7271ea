"""A tiny set for detection, squares of two colours, and a tiny detector."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from catchment import Dataset, Normalisation, Samples
from catchment.models.yolox import Conv, Head
from catchment.tasks import DETECTION
from catchment.tasks.detection import COLUMNS, MOST

SIDE = 32


def images() -> Dataset:
    """100 images to train on and 40 to test on, with no to three squares each."""
    generator = torch.Generator().manual_seed(0)

    def drawn(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    pixels = torch.full((140, 3, SIDE, SIDE), 114, dtype=torch.uint8)
    labels = torch.zeros(140, MOST, COLUMNS)
    labels[..., 0], labels[..., 7] = -1, 1
    for image, label in zip(pixels, labels):
        for place in range(drawn(0, 4)):
            kind, size = drawn(0, 2), drawn(8, 16)
            left, top = drawn(0, SIDE - size), drawn(0, SIDE - size)
            image[:, top : top + size, left : left + size] = torch.tensor([[255, 0, 0], [0, 0, 255]])[kind][
                :, None, None
            ]
            label[place] = torch.tensor([kind, left, top, left + size, top + size, size**2, 0, 1])
    parts = [Samples(pixels, labels, rows) for rows in torch.arange(140).split([100, 40])]
    return Dataset(*parts, ("red", "blue"), Normalisation(255, (0.5,), (0.5,)), task=DETECTION)


class Detector(nn.Module):
    """Three convolutions and one head."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(Conv(channels, 8, 3, 2), Conv(8, 8, 3, 2), Conv(8, 8, 3, 2))
        self.head = Head(8, 8, classes, depthwise=False, stride=8)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images))


def model(channels: int, classes: int) -> nn.Module:
    return Detector(channels, classes)


def grey() -> Dataset:
    """Images of ten classes that YOLOX could take."""
    samples = Samples(torch.zeros(20, 3, 64, 64, dtype=torch.uint8), torch.arange(20) % 10, torch.arange(20))
    return Dataset(samples, samples, tuple("0123456789"), Normalisation(255, (0.5,), (0.5,)))
