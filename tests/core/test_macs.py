"""Multiply-accumulates, counted by hand."""

import pytest
from torch import nn

from catchment.core.architecture import macs


@pytest.mark.parametrize(
    ("module", "shape", "expected"),
    [
        (nn.Linear(3, 2), (3,), 3 * 2),
        (nn.Linear(3, 2, bias=False), (3,), 3 * 2),
        (nn.Conv2d(2, 3, 3, padding=1), (2, 5, 5), 3 * 5 * 5 * 2 * 3 * 3),
        (nn.Conv2d(2, 4, 3, stride=2), (2, 7, 7), 4 * 3 * 3 * 2 * 3 * 3),
        (nn.Conv2d(4, 4, 3, padding=1, groups=4), (4, 5, 5), 4 * 5 * 5 * 1 * 3 * 3),
        (nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 2)), (3, 2, 2), 12 * 5 + 5 * 2),
        (nn.Sequential(nn.ReLU(), nn.Flatten()), (3, 2, 2), 0),
    ],
    ids=["linear", "without bias", "convolution", "stride", "groups", "two layers", "no weights"],
)
def test_multiply_accumulates_by_hand(module, shape, expected):
    assert macs(module, shape) == expected


def test_a_layer_called_twice_counts_twice():
    layer = nn.Linear(4, 4)
    assert macs(nn.Sequential(layer, layer), (4,)) == 2 * 16


@pytest.mark.parametrize("training", [True, False])
def test_counting_leaves_the_module_as_it_was(training):
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).train(training)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    assert macs(module, (3,)) == 12  # and one sample is enough for batch normalisation
    assert module.training is training
    assert module[1].training is training
    assert all(tensor.equal(before[name]) for name, tensor in module.state_dict().items())
