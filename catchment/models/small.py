"""Small models for weak devices and quick experiments, as PyTorch initialises them.

Trainable parameters for 10 classes:

| model          | 1x8x8 | 1x28x28 | 3x32x32 |
|----------------|-------|---------|---------|
| mlp            | 4,810 |  50,890 | 197,322 |
| cnn            | 6,090 |  20,490 |  25,578 |
| lenet          |     - |  44,426 |  62,006 |
| lenet(12,32,3) |     - |  82,518 | 117,678 |
| lenet(8,16,2)  |     - |  35,474 |  53,154 |
"""

from __future__ import annotations

from math import prod

from torch import nn

from catchment.errors import ModelError
from catchment.models.split import SplitModel


def mlp(hidden: int, shape: tuple[int, ...], classes: int) -> SplitModel:
    """One hidden layer, whose activations are the features."""
    extractor = nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), hidden), nn.ReLU())
    return SplitModel(extractor, nn.Linear(hidden, classes))


def cnn(first: int, shape: tuple[int, ...], classes: int) -> SplitModel:
    """Two stages of 3x3 convolution, ReLU and pooling, then a linear layer; the first stage is the extractor.

    The second stage has twice the channels of the first. With 16 of them, as in ResNets, both can feed the same half.
    """
    channels, height, width = shape
    extractor = nn.Sequential(
        nn.Conv2d(channels, first, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),  # first x H/2 x W/2
    )
    classifier = nn.Sequential(
        nn.Conv2d(first, 2 * first, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),  # 2 first x H/4 x W/4
        nn.Flatten(),
        nn.Linear(2 * first * (height // 4) * (width // 4), classes),
    )
    return SplitModel(extractor, classifier)


LENET_HIDDEN = (120, 84)  # sizes of the linear layers before the last


def lenet(first: int, second: int, linear: int, shape: tuple[int, ...], classes: int) -> SplitModel:
    """After LeNet-5: two stages of 5x5 convolution, ReLU and pooling, then one to three linear layers.

    LeNet-5 itself has 6 and 16 channels and 3 linear layers. The first stage is the extractor. Images are 16x16 or
    larger, so that one pixel is left at the end.
    """
    if linear > len(LENET_HIDDEN) + 1:
        raise ModelError(f'model "lenet({first},{second},{linear})" has at most {len(LENET_HIDDEN) + 1} linear layers')
    channels, height, width = shape
    extractor = nn.Sequential(
        nn.Conv2d(channels, first, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),  # first x (H - 4)/2 x (W - 4)/2
    )
    classifier: list[nn.Module] = [
        nn.Conv2d(first, second, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),  # second x (H - 12)/4 x (W - 12)/4
        nn.Flatten(),
    ]
    features = second * ((height - 12) // 4) * ((width - 12) // 4)
    for hidden in LENET_HIDDEN[: linear - 1]:
        classifier += [nn.Linear(features, hidden), nn.ReLU()]
        features = hidden
    return SplitModel(extractor, nn.Sequential(*classifier, nn.Linear(features, classes)))
