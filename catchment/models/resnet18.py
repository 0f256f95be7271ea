"""ResNet-18 in its form for small images, a 3x3 stem and no max-pool, and narrower or shallower ones of that form."""

from __future__ import annotations

from torch import nn

from catchment.models.resnet import basic_block, head, stem
from catchment.models.split import SplitModel

STAGES = 4


def basic(channels: int, blocks: int, shape: tuple[int, ...], classes: int) -> SplitModel:
    """The stem, which is the extractor, and four stages of basic blocks; stages 2 to 4 halve the maps.

    Each stage has twice the channels of the one before. ResNet-18 has 64 channels and 2 blocks per stage.
    """
    extractor = stem(shape[0], channels)
    body = []
    before = channels
    for stage in range(STAGES):
        width = channels * 2**stage
        for block in range(blocks):
            body.append(basic_block(before, width, stride=2 if stage > 0 and block == 0 else 1))
            before = width
    return SplitModel(extractor, nn.Sequential(*body, *head(before, classes)))
