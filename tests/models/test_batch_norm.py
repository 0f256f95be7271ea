"""Batch normalisation of a single value per channel."""

import pytest
import torch
from torch import nn

from catchment.models.resnet import BatchNorm2d


def layer(kind: type[nn.BatchNorm2d]) -> nn.BatchNorm2d:
    made = kind(2)
    made.running_mean, made.running_var = torch.tensor([1.0, 2.0]), torch.tensor([4.0, 9.0])
    return made


def test_one_value_per_channel_is_normalised_by_the_running_statistics():
    one = torch.tensor([5.0, 8.0]).reshape(1, 2, 1, 1)
    with pytest.raises(ValueError, match="more than 1 value"):
        layer(nn.BatchNorm2d)(one)
    ours = layer(BatchNorm2d)
    out = ours(one)
    torch.testing.assert_close(out.flatten(), torch.tensor([2.0, 2.0]))
    assert ours.running_mean.tolist() == [1.0, 2.0]
    out.sum().backward()
    torch.testing.assert_close(ours.weight.grad, torch.tensor([2.0, 2.0]))


@pytest.mark.parametrize("shape", [(2, 2, 1, 1), (1, 2, 2, 2)])
def test_more_values_are_normalised_as_pytorch_does(shape):
    maps = torch.arange(2.0 * shape[0] * shape[2] * shape[3]).reshape(shape)
    ours, theirs = layer(BatchNorm2d), layer(nn.BatchNorm2d)
    assert torch.equal(ours(maps), theirs(maps))
    assert torch.equal(ours.running_var, theirs.running_var)
