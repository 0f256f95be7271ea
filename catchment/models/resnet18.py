"""ResNet-18 in its form for small images: a 3x3 stem and no max-pool."""

from __future__ import annotations

from torch import nn

from catchment.models.resnet import basic_block, head, stem
from catchment.models.split import SplitModel

STAGE_CHANNELS = (64, 128, 256, 512)


def resnet18(shape: tuple[int, ...], classes: int) -> SplitModel:
    """The stem, which is the extractor, and four stages of two basic blocks; stages 2 to 4 halve the maps."""
    channels = STAGE_CHANNELS[0]
    extractor = stem(shape[0], channels)
    body = []
    for stage, width in enumerate(STAGE_CHANNELS):
        body.append(basic_block(channels, width, stride=1 if stage == 0 else 2))
        body.append(basic_block(width, width))
        channels = width
    return SplitModel(extractor, nn.Sequential(*body, *head(channels, classes)))
