"""YOLOX-S (Ge et al., 2021), the detector of Fed-KGF's Table 4, to count what it sends.

Catchment has no task of detection. What travels does not depend on the task, so `s` ends in class scores that all parts
of the detector have a share in: every weight is trained, on images of any class, and no box is found.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

CATEGORIES = 80  # of COCO


class Conv(nn.Sequential):
    """A convolution, batch normalisation, SiLU."""

    def __init__(self, given: int, made: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(given, made, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(made), nn.SiLU()
        )


class Bottleneck(nn.Module):
    """Two convolutions, around them a shortcut or none."""

    def __init__(self, channels: int, shortcut: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(Conv(channels, channels), Conv(channels, channels, 3))
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return x + y if self.shortcut else y


class CSP(nn.Module):
    """Half the channels go through bottlenecks, half go by."""

    def __init__(self, given: int, made: int, depth: int = 1, shortcut: bool = True) -> None:
        super().__init__()
        self.through = nn.Sequential(Conv(given, made // 2), *(Bottleneck(made // 2, shortcut) for _ in range(depth)))
        self.by = Conv(given, made // 2)
        self.out = Conv(made, made)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(torch.cat([self.through(x), self.by(x)], 1))
        return y


class SPP(nn.Module):
    """Pooling over three sizes."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.start = Conv(channels, channels // 2)
        self.pools = nn.ModuleList(nn.MaxPool2d(size, 1, size // 2) for size in (5, 9, 13))
        self.end = Conv(2 * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        x = self.start(x)
        y: Tensor = self.end(torch.cat([x, *(pool(x) for pool in self.pools)], 1))
        return y


class Head(nn.Module):
    """Classes, boxes and objectness of one level."""

    def __init__(self, channels: int, width: int = 128) -> None:
        super().__init__()
        self.stem = Conv(channels, width)
        self.classes = nn.Sequential(Conv(width, width, 3), Conv(width, width, 3), nn.Conv2d(width, CATEGORIES, 1))
        self.regions = nn.Sequential(Conv(width, width, 3), Conv(width, width, 3))
        self.boxes = nn.Conv2d(width, 4, 1)
        self.objectness = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        regions = self.regions(x)
        scores = self.classes(x) * self.objectness(regions).sigmoid() + self.boxes(regions).mean(1, keepdim=True)
        return scores.mean((2, 3))


class YOLOX(nn.Module):
    """The small one: CSPDarknet of a third of the depth and half the width, a feature pyramid, three heads."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = Conv(12, 32, 3)
        self.dark3 = nn.Sequential(Conv(32, 64, 3, 2), CSP(64, 64), Conv(64, 128, 3, 2), CSP(128, 128, 3))
        self.dark4 = nn.Sequential(Conv(128, 256, 3, 2), CSP(256, 256, 3))
        self.dark5 = nn.Sequential(Conv(256, 512, 3, 2), SPP(512), CSP(512, 512, shortcut=False))
        self.lateral0, self.p4 = Conv(512, 256), CSP(512, 256, shortcut=False)
        self.lateral1, self.p3 = Conv(256, 128), CSP(256, 128, shortcut=False)
        self.down3, self.n3 = Conv(128, 128, 3, 2), CSP(256, 256, shortcut=False)
        self.down4, self.n4 = Conv(256, 256, 3, 2), CSP(512, 512, shortcut=False)
        self.heads = nn.ModuleList(Head(channels) for channels in (128, 256, 512))
        self.up = nn.Upsample(scale_factor=2)
        self.shown = classes

    def forward(self, x: Tensor) -> Tensor:
        c3 = self.dark3(self.stem(nn.functional.pixel_unshuffle(x, 2)))
        c4 = self.dark4(c3)
        f5 = self.lateral0(self.dark5(c4))
        f4 = self.lateral1(self.p4(torch.cat([self.up(f5), c4], 1)))
        o3 = self.p3(torch.cat([self.up(f4), c3], 1))
        o4 = self.n3(torch.cat([self.down3(o3), f4], 1))
        o5 = self.n4(torch.cat([self.down4(o4), f5], 1))
        scores = torch.stack([head(level) for head, level in zip(self.heads, (o3, o4, o5), strict=True)]).sum(0)
        return scores.unflatten(1, (self.shown, -1)).sum(2)


def s(classes: int) -> nn.Module:
    """YOLOX-S, its 80 categories summed to so many."""
    return YOLOX(classes)
