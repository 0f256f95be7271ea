"""ResNets for small images: edge models, whole models, and the halves that a server holds.

Images first pass a stem, a 3x3 convolution to 16 channels, which is the extractor. A whole model is a stem
and a half: `resnet56` is a stem and `resnet55`. There is no max-pool. Every convolution draws its weights as
it is made, the stem first, so one seed gives all edge and whole models the same stem. The extractor of an edge model
may give fewer and smaller maps, or lie deeper; a half takes maps of any number, from 4x4 upward.
"""

from __future__ import annotations

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn, relu

from catchment.models.split import SplitModel

STEM_CHANNELS = 16
STAGE_PLANES = (16, 32, 64)  # the inner channels of the bottlenecks of each stage
EXPANSION = 4  # a bottleneck gives this many times its inner channels


class Residual(nn.Module):
    """ReLU(body(x) + shortcut(x))."""

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut

    def forward(self, maps: Tensor) -> Tensor:
        """Maps `[N, C, H, W]` to `[N, C', H / stride, W / stride]`."""
        return relu(self.body(maps) + self.shortcut(maps))


class GlobalAveragePool(nn.Module):
    """The mean of every channel; unlike PyTorch's adaptive pooling, its gradient is deterministic on GPUs."""

    def forward(self, maps: Tensor) -> Tensor:
        """Maps `[N, C, H, W]` to vectors `[N, C]`."""
        return maps.mean(dim=(2, 3))


def basic_edge(
    blocks: int,
    shape: tuple[int, ...],
    classes: int,
    channels: int = STEM_CHANNELS,
    stride: int = 1,
    depth: int = 0,
) -> SplitModel:
    """The stem, then basic blocks of as many channels; only the stem may shrink the maps before the last pooling.

    The extractor is the stem and the first `depth` blocks.
    """
    first = stem(shape[0], channels, stride)
    body = [basic_block(channels, channels) for _ in range(blocks)]
    return cut(first, body, depth, head(channels, classes))


def bottleneck_edge(
    shape: tuple[int, ...], classes: int, channels: int = STEM_CHANNELS, stride: int = 1, depth: int = 0
) -> SplitModel:
    """The stem, then two bottlenecks, 16 -> 64 -> 64 channels; this is the ResNet-8 of FedGKT.

    The extractor is the stem and the first `depth` bottlenecks, which keep the channels of the stem.
    """
    first = stem(shape[0], channels, stride)
    planes = STAGE_PLANES[0]
    widths = [channels] * (1 + depth) + [EXPANSION * planes] * (2 - depth)
    body = [bottleneck(before, planes, channels_out=after) for before, after in pairwise(widths)]
    return cut(first, body, depth, head(widths[-1], classes))


def cut(first: nn.Sequential, body: list[Residual], depth: int, last: tuple[nn.Module, nn.Module]) -> SplitModel:
    """A model whose extractor ends after `depth` blocks of its body."""
    return SplitModel(nn.Sequential(*first, *body[:depth]), nn.Sequential(*body[depth:], *last))


def whole(blocks: tuple[int, ...], shape: tuple[int, ...], classes: int) -> SplitModel:
    """The stem, then three stages with these numbers of bottlenecks."""
    extractor = stem(shape[0], STEM_CHANNELS)
    return SplitModel(extractor, half(blocks, (STEM_CHANNELS, *shape[1:]), classes))


def half(blocks: tuple[int, ...], shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """Three stages of bottlenecks for features of this shape, with no stem; the last two halve the maps."""
    channels = shape[0]
    body = []
    for stage, (planes, count) in enumerate(zip(STAGE_PLANES, blocks)):
        for block in range(count):
            stride = 2 if stage > 0 and block == 0 else 1
            body.append(bottleneck(channels, planes, stride))
            channels = EXPANSION * planes
    return nn.Sequential(*body, *head(channels, classes))


def stem(channels_in: int, channels_out: int, stride: int = 1) -> nn.Sequential:
    """The first layers: 3x3 convolution, batch normalisation, ReLU."""
    kernel = max(3, 2 * stride - 1)  # odd, and no pixel is passed over
    return nn.Sequential(*normalised(channels_in, channels_out, kernel, stride), nn.ReLU())


def basic_block(channels_in: int, channels_out: int, stride: int = 1) -> Residual:
    """Two 3x3 convolutions and a shortcut."""
    body = nn.Sequential(
        *normalised(channels_in, channels_out, kernel=3, stride=stride),
        nn.ReLU(),
        *normalised(channels_out, channels_out, kernel=3),
    )
    return Residual(body, shortcut(channels_in, channels_out, stride))


def bottleneck(channels_in: int, planes: int, stride: int = 1, channels_out: int = 0) -> Residual:
    """1x1, 3x3 and 1x1 convolutions, narrow in the middle, and a shortcut; by default four times as wide at the end."""
    channels_out = channels_out or EXPANSION * planes
    body = nn.Sequential(
        *normalised(channels_in, planes, kernel=1),
        nn.ReLU(),
        *normalised(planes, planes, kernel=3, stride=stride),
        nn.ReLU(),
        *normalised(planes, channels_out, kernel=1),
    )
    return Residual(body, shortcut(channels_in, channels_out, stride))


def shortcut(channels_in: int, channels_out: int, stride: int) -> nn.Module:
    """The input itself where its shape stays, else a 1x1 convolution of it."""
    if stride == 1 and channels_in == channels_out:
        return nn.Identity()
    return nn.Sequential(*normalised(channels_in, channels_out, kernel=1, stride=stride))


class BatchNorm2d(nn.BatchNorm2d):
    """PyTorch's, which refuses one value per channel: that has no variance, and running statistics normalise it."""

    def forward(self, input: Tensor) -> Tensor:
        """Maps `[N, C, H, W]`; 1x1 maps of a single sample leave the statistics as they are."""
        if self.training and input.numel() == input.size(1):
            return F.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(input)


def normalised(channels_in: int, channels_out: int, kernel: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    """A convolution without bias, initialised for the ReLU to come, and its batch normalisation."""
    convolution = nn.Conv2d(channels_in, channels_out, kernel, stride=stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return convolution, BatchNorm2d(channels_out)


def head(channels: int, classes: int) -> tuple[nn.Module, nn.Module]:
    """The last layers: global average pooling and a linear layer."""
    return GlobalAveragePool(), nn.Linear(channels, classes)
