"""Models for phones, in their forms for small images: ShuffleNetV2 and MobileNetV2 without early strides.

Trainable parameters for 3x32x32 and 10 classes:

| model             | parameters |
|-------------------|------------|
| shufflenetv2(0.5) |    352,042 |
| shufflenetv2(1.0) |  1,263,854 |
| mobilenetv2(0.6)  |    971,018 |
| mobilenetv2(0.8)  |  1,563,050 |
| mobilenetv2(1.0)  |  2,296,922 |
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from catchment.models.resnet import BatchNorm2d, head, normalised, stem
from catchment.models.split import SplitModel

SHUFFLE_CHANNELS = {0.5: (48, 96, 192), 1.0: (116, 232, 464), 1.5: (176, 352, 704)}  # Table 5 of Ma et al.
SHUFFLE_BLOCKS = (3, 7, 3)  # of each stage, after the one that halves the maps
SHUFFLE_STEM, SHUFFLE_LAST = 24, 1024

# Expansion, channels, blocks and stride of each stage: Table 2 of Sandler et al.; the first two strides are 1 here.
MOBILE_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
MOBILE_STEM, MOBILE_LAST = 32, 1280
MOBILE_WIDTHS = (0.35, 0.5, 0.6, 0.75, 0.8, 1.0, 1.4)  # of the paper, and of FedZKT


# ---- ShuffleNetV2 ------------------------------------------------------------------------------------------------


def shufflenetv2(size: float, shape: tuple[int, ...], classes: int) -> SplitModel:
    """Ma et al., ShuffleNet V2, 2018: half of the channels pass a block untouched, then all are shuffled."""
    extractor = stem(shape[0], SHUFFLE_STEM)
    body: list[nn.Module] = []
    channels = SHUFFLE_STEM
    for width, blocks in zip(SHUFFLE_CHANNELS[size], SHUFFLE_BLOCKS):
        body += [ShuffleDown(channels, width), *(ShuffleBlock(width) for _ in range(blocks))]
        channels = width
    body += [*normalised(channels, SHUFFLE_LAST, kernel=1), nn.ReLU()]
    return SplitModel(extractor, nn.Sequential(*body, *head(SHUFFLE_LAST, classes)))


class ShuffleBlock(nn.Module):
    """One half of the channels goes through three convolutions, the other stays."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.right = _separable(channels // 2, channels // 2, stride=1)

    def forward(self, maps: Tensor) -> Tensor:
        """Maps `[N, C, H, W]` to the same shape."""
        left, right = maps.chunk(2, dim=1)
        return shuffled(torch.cat([left, self.right(right)], 1))


class ShuffleDown(nn.Module):
    """Both branches see all channels and halve the maps."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.left = nn.Sequential(
            *_depthwise(channels_in, stride=2), *normalised(channels_in, channels_out // 2, kernel=1), nn.ReLU()
        )
        self.right = _separable(channels_in, channels_out // 2, stride=2)

    def forward(self, maps: Tensor) -> Tensor:
        """Maps `[N, C, H, W]` to `[N, C', H / 2, W / 2]`."""
        return shuffled(torch.cat([self.left(maps), self.right(maps)], 1))


def shuffled(maps: Tensor) -> Tensor:
    """The channels of the two halves in turn."""
    count, channels, height, width = maps.shape
    return maps.reshape(count, 2, channels // 2, height, width).transpose(1, 2).reshape(maps.shape)


def _separable(channels_in: int, channels_out: int, stride: int) -> nn.Sequential:
    """1x1, depthwise 3x3 and 1x1 convolutions."""
    return nn.Sequential(
        *normalised(channels_in, channels_out, kernel=1),
        nn.ReLU(),
        *_depthwise(channels_out, stride),
        *normalised(channels_out, channels_out, kernel=1),
        nn.ReLU(),
    )


# ---- MobileNetV2 -------------------------------------------------------------------------------------------------


def mobilenetv2(width: float, shape: tuple[int, ...], classes: int) -> SplitModel:
    """Sandler et al., MobileNetV2, 2018: bottlenecks that are wide in the middle; `width` scales their channels."""
    channels = _by_eights(width * MOBILE_STEM)
    extractor = stem(shape[0], channels)
    body: list[nn.Module] = []
    for expansion, planes, blocks, first_stride in MOBILE_STAGES:
        wide = _by_eights(width * planes)
        for block in range(blocks):
            body.append(InvertedResidual(channels, wide, expansion, first_stride if block == 0 else 1))
            channels = wide
    last = _by_eights(max(width, 1.0) * MOBILE_LAST)  # a narrow net keeps its last layer
    body += [*normalised(channels, last, kernel=1), nn.ReLU()]
    return SplitModel(extractor, nn.Sequential(*body, *head(last, classes)))


class InvertedResidual(nn.Module):
    """1x1 to more channels, depthwise 3x3, 1x1 back; where maps keep their size, a shortcut is added.

    The shortcut is a 1x1 convolution where the channels change, as in the usual CIFAR form of the net; the paper has
    none there.
    """

    def __init__(self, channels_in: int, channels_out: int, expansion: int, stride: int) -> None:
        super().__init__()
        inner = expansion * channels_in
        self.body = nn.Sequential(
            *normalised(channels_in, inner, kernel=1),
            nn.ReLU(),
            *_depthwise(inner, stride),
            nn.ReLU(),
            *normalised(inner, channels_out, kernel=1),
        )
        self.shortcut: nn.Module | None = None
        if stride == 1:
            same = channels_in == channels_out
            self.shortcut = nn.Identity() if same else nn.Sequential(*normalised(channels_in, channels_out, kernel=1))

    def forward(self, maps: Tensor) -> Tensor:
        """Maps `[N, C, H, W]` to `[N, C', H / stride, W / stride]`."""
        out: Tensor = self.body(maps)
        return out if self.shortcut is None else out + self.shortcut(maps)


def _depthwise(channels: int, stride: int) -> tuple[nn.Module, nn.Module]:
    """A 3x3 convolution of every channel by itself, and its batch normalisation."""
    convolution = nn.Conv2d(channels, channels, 3, stride=stride, padding=1, groups=channels, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return convolution, BatchNorm2d(channels)


def _by_eights(channels: float) -> int:
    """The nearest multiple of 8, as the MobileNets round, but never a tenth below what was asked for."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * channels else nearest + 8
