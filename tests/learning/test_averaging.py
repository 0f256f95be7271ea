"""Weighted means, with numbers worked by hand."""

import pytest
import torch
from torch import nn

from catchment.errors import ModelError
from catchment.learning.averaging import WeightedMean
from catchment.learning.training import copy_weights


def mean_of(*parties):
    mean = WeightedMean()
    for tensors, weight in parties:
        mean.add(tensors, weight)
    return mean.value()


def w(*values, dtype=torch.float32):
    return {"w": torch.tensor(values, dtype=dtype)}


def test_two_clients_by_hand():
    """(1 * [1, 2] + 3 * [5, -2]) / 4 = [4, -1]."""
    assert mean_of((w(1.0, 2.0), 1), (w(5.0, -2.0), 3))["w"].tolist() == [4.0, -1.0]


def test_one_client_is_its_own_mean():
    assert mean_of((w(0.25, -3.0), 7))["w"].tolist() == [0.25, -3.0]


def test_a_client_of_weight_zero_does_not_count_wherever_it_comes():
    assert mean_of((w(9.0), 0), (w(1.0), 2))["w"].tolist() == [1.0]
    assert mean_of((w(1.0), 2), (w(9.0), 0))["w"].tolist() == [1.0]


def test_batch_normalisation_averages_statistics_and_keeps_the_largest_count():
    """Weights 1 and 3: mean (1 * 2 + 3 * 6) / 4 = 5, variance (1 * 1 + 3 * 5) / 4 = 4, scale (0 + 3 * 4) / 4 = 3."""
    one, other = nn.BatchNorm1d(1), nn.BatchNorm1d(1)
    for module, mean, variance, scale, count in ((one, 2.0, 1.0, 0.0, 11), (other, 6.0, 5.0, 4.0, 10)):
        module.running_mean.fill_(mean)
        module.running_var.fill_(variance)
        module.weight.data.fill_(scale)
        module.num_batches_tracked.fill_(count)
    value = mean_of((copy_weights(one), 1), (copy_weights(other), 3))
    assert value["running_mean"].item() == 5.0
    assert value["running_var"].item() == 4.0
    assert value["weight"].item() == 3.0
    assert value["num_batches_tracked"].item() == 11
    assert value["num_batches_tracked"].dtype == torch.int64
    nn.BatchNorm1d(1).load_state_dict(value)


def test_the_parties_tensors_stay_untouched():
    first, second = {**w(1.0), "n": torch.tensor(1)}, {**w(2.0), "n": torch.tensor(2)}
    mean_of((first, 1), (second, 1))
    assert (first["w"].item(), first["n"].item()) == (1.0, 1)
    assert (second["w"].item(), second["n"].item()) == (2.0, 2)


@pytest.mark.parametrize("parties", [[], [(w(1.0), 0)], [(w(1.0), 0), (w(2.0), 0)], [(w(1.0), float("nan"))]])
def test_a_mean_over_no_weight_does_not_exist(parties):
    with pytest.raises(ValueError, match=r"a mean over weights that sum to (0|nan).* does not exist"):
        mean_of(*parties)


def test_the_sum_is_taken_in_the_order_of_adding():
    """Floating-point sums depend on their order: 1e8 swallows a 1. So the caller's order decides, and nothing else."""
    assert mean_of((w(1e8), 1), (w(-1e8), 1), (w(1.0), 1))["w"].item() == pytest.approx(1 / 3)
    assert mean_of((w(1e8), 1), (w(1.0), 1), (w(-1e8), 1))["w"].item() == 0.0


def test_the_same_order_gives_the_same_bits():
    generator = torch.Generator().manual_seed(0)
    parties = [({"w": torch.randn(100, generator=generator)}, weight) for weight in (3, 7, 11)]
    by_hand = parties[0][0]["w"] * 3
    by_hand.add_(parties[1][0]["w"], alpha=7).add_(parties[2][0]["w"], alpha=11).div_(21)
    assert torch.equal(mean_of(*parties)["w"], by_hand)


def test_all_dtypes_keep_theirs():
    assert mean_of((w(1.0, dtype=torch.float64), 1), (w(2.0, dtype=torch.float64), 1))["w"].dtype == torch.float64


def test_half_precision_does_not_overflow_in_the_sum():
    value = mean_of((w(100.0, dtype=torch.float16), 1000), (w(300.0, dtype=torch.float16), 1000))["w"]
    assert value.dtype == torch.float16
    assert value.item() == 200.0


def test_a_value_stays_what_it_was_when_more_is_added():
    mean = WeightedMean()
    mean.add({"n": torch.tensor(1)}, 1)
    value = mean.value()
    mean.add({"n": torch.tensor(5)}, 1)
    assert value["n"].item() == 1


@pytest.mark.parametrize(
    "other",
    [
        {"w": torch.ones(2)},
        {"w": torch.ones(2), "b": torch.ones(1), "c": torch.ones(1)},
        {"w": torch.ones(1), "b": torch.ones(1)},
    ],
    ids=["missing", "extra", "shape"],
)
def test_parties_whose_tensors_do_not_match_are_refused(other):
    mean = WeightedMean()
    mean.add({"w": torch.ones(2), "b": torch.ones(1)}, 1)
    with pytest.raises(ModelError, match="tensors to average"):
        mean.add(other, 1)
