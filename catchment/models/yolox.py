"""YOLOX: Ge et al., YOLOX: Exceeding YOLO Series in 2021.

CSPDarknet, a feature pyramid, and decoupled heads without anchors. Trainable parameters for 80 classes: nano 912,159,
tiny 5,055,855, s 8,968,255. Outputs are those of the task detection (`catchment.tasks.detection`): one row per place of
the three grids, decoded to pixels.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from catchment.errors import ModelError

STRIDES = (8, 16, 32)
SIZES = {"nano": (0.25, True), "tiny": (0.375, False), "s": (0.5, False)}  # width, and whether 3x3 are depthwise
PRIOR = 0.01  # first probability of an object, so that the many empty places do not drown the few others
LARGEST = 10.0  # logarithm of the largest box, in strides: a wild weight must not overflow


def yolox(size: str, shape: tuple[int, ...], classes: int) -> YOLOX:
    """YOLOX of one of the `SIZES` for square or other images whose sides are multiples of 32."""
    if any(side % STRIDES[-1] for side in shape[1:]):
        raise ModelError(f"YOLOX takes images whose sides are multiples of {STRIDES[-1]}, not {shape[1]} x {shape[2]}")
    return YOLOX(shape[0], classes, *SIZES[size])


class Conv(nn.Sequential):
    """A convolution, batch normalisation, SiLU."""

    def __init__(self, given: int, made: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> None:
        super().__init__(
            nn.Conv2d(given, made, kernel, stride, kernel // 2, groups=groups, bias=False),
            nn.BatchNorm2d(made, eps=1e-3, momentum=0.03),
            nn.SiLU(),
        )


def spatial(given: int, made: int, depthwise: bool, stride: int = 1) -> nn.Module:
    """A 3x3 convolution, or in its place a depthwise one and one of 1x1."""
    if not depthwise:
        return Conv(given, made, 3, stride)
    return nn.Sequential(Conv(given, given, 3, stride, groups=given), Conv(given, made))


class Bottleneck(nn.Module):
    """Two convolutions, around them a shortcut or none."""

    def __init__(self, channels: int, shortcut: bool, depthwise: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(Conv(channels, channels), spatial(channels, channels, depthwise))
        self.shortcut = shortcut

    def forward(self, maps: Tensor) -> Tensor:
        """Maps `[N, C, H, W]` to the same shape."""
        made: Tensor = self.layers(maps)
        return maps + made if self.shortcut else made


class CSP(nn.Module):
    """Half of the channels go through bottlenecks, half go by."""

    def __init__(self, given: int, made: int, depthwise: bool, depth: int = 1, shortcut: bool = True) -> None:
        super().__init__()
        half = made // 2
        self.through = nn.Sequential(Conv(given, half), *(Bottleneck(half, shortcut, depthwise) for _ in range(depth)))
        self.by = Conv(given, half)
        self.out = Conv(made, made)

    def forward(self, maps: Tensor) -> Tensor:
        """Maps `[N, C, H, W]` to `[N, C', H, W]`."""
        made: Tensor = self.out(torch.cat([self.through(maps), self.by(maps)], 1))
        return made


class SPP(nn.Module):
    """Pooling over three sizes."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.start = Conv(channels, channels // 2)
        self.pools = nn.ModuleList(nn.MaxPool2d(size, 1, size // 2) for size in (5, 9, 13))
        self.end = Conv(2 * channels, channels)

    def forward(self, maps: Tensor) -> Tensor:
        """Maps `[N, C, H, W]` to the same shape."""
        maps = self.start(maps)
        made: Tensor = self.end(torch.cat([maps, *(pool(maps) for pool in self.pools)], 1))
        return made


class Head(nn.Module):
    """Classes in one branch, boxes and objectness in another."""

    def __init__(self, channels: int, width: int, classes: int, depthwise: bool, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.stem = Conv(channels, width)
        self.classes = nn.Sequential(
            spatial(width, width, depthwise), spatial(width, width, depthwise), nn.Conv2d(width, classes, 1)
        )
        self.regions = nn.Sequential(spatial(width, width, depthwise), spatial(width, width, depthwise))
        self.boxes = nn.Conv2d(width, 4, 1)
        self.objectness = nn.Conv2d(width, 1, 1)
        for last in (self.classes[-1], self.objectness):
            nn.init.constant_(last.bias, -math.log((1 - PRIOR) / PRIOR))  # type: ignore[arg-type]

    def forward(self, maps: Tensor) -> Tensor:
        """Maps `[N, C, H, W]` to rows `[N, H W, 8 + classes]`: place, stride, box, objectness, classes."""
        maps = self.stem(maps)
        regions = self.regions(maps)
        boxes, objects, classes = self.boxes(regions).float(), self.objectness(regions), self.classes(maps)
        count, _, height, width = boxes.shape
        down, right = torch.arange(height, device=maps.device), torch.arange(width, device=maps.device)
        grid = torch.stack([right.expand(height, width), down[:, None].expand(height, width)]).float()  # [2, H, W]
        middle = (boxes[:, :2] + grid) * self.stride
        size = boxes[:, 2:].clamp(max=LARGEST).exp() * self.stride
        place = torch.cat([(grid + 0.5) * self.stride, torch.full_like(grid[:1], self.stride)])
        rows = [place.expand(count, 3, height, width), middle - size / 2, middle + size / 2, objects, classes]
        return torch.cat(rows, 1).flatten(2).transpose(1, 2).contiguous()


class YOLOX(nn.Module):
    """CSPDarknet of a third of the depth, a path-aggregating feature pyramid, three heads."""

    def __init__(self, channels: int, classes: int, width: float, depthwise: bool) -> None:
        super().__init__()
        c1, c2, c3, c4, c5 = (int(width * full) for full in (64, 128, 256, 512, 1024))
        d = depthwise
        self.stem = Conv(4 * channels, c1, 3)
        self.dark3 = nn.Sequential(spatial(c1, c2, d, 2), CSP(c2, c2, d), spatial(c2, c3, d, 2), CSP(c3, c3, d, 3))
        self.dark4 = nn.Sequential(spatial(c3, c4, d, 2), CSP(c4, c4, d, 3))
        self.dark5 = nn.Sequential(spatial(c4, c5, d, 2), SPP(c5), CSP(c5, c5, d, shortcut=False))
        self.lateral5, self.down4 = Conv(c5, c4), CSP(2 * c4, c4, d, shortcut=False)
        self.lateral4, self.down3 = Conv(c4, c3), CSP(2 * c3, c3, d, shortcut=False)
        self.shrink3, self.up4 = spatial(c3, c3, d, 2), CSP(2 * c3, c4, d, shortcut=False)
        self.shrink4, self.up5 = spatial(c4, c4, d, 2), CSP(2 * c4, c5, d, shortcut=False)
        self.heads = nn.ModuleList(
            Head(given, c3, classes, d, stride) for given, stride in zip((c3, c4, c5), STRIDES)
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        """Images `[N, C, H, W]` to rows `[N, H W / 64 + H W / 256 + H W / 1024, 8 + classes]`."""
        maps3 = self.dark3(self.stem(F.pixel_unshuffle(images, 2)))
        maps4 = self.dark4(maps3)
        top5 = self.lateral5(self.dark5(maps4))
        top4 = self.lateral4(self.down4(torch.cat([_doubled(top5), maps4], 1)))
        level3 = self.down3(torch.cat([_doubled(top4), maps3], 1))
        level4 = self.up4(torch.cat([self.shrink3(level3), top4], 1))
        level5 = self.up5(torch.cat([self.shrink4(level4), top5], 1))
        return torch.cat([head(level) for head, level in zip(self.heads, (level3, level4, level5))], 1)


def _doubled(maps: Tensor) -> Tensor:
    return F.interpolate(maps, scale_factor=2)
