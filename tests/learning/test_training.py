"""Local training worked by hand, and loading weights."""

import math

import pytest
import torch
from torch import nn

from catchment.data import Batch
from catchment.errors import Diverged, ModelError
from catchment.learning.steps import fit, loss_function
from catchment.learning.training import copy_weights, load_weights, tensors_of


def batch(images, targets):
    """A batch for a regression by hand: `labels` are numbers here."""
    return Batch(torch.tensor(images), torch.tensor(targets), torch.arange(len(targets)))


def line(weight=1.0, bias=0.0):
    model = nn.Linear(1, 1)
    load_weights(tensors_of(model), {"weight": torch.tensor([[weight]]), "bias": torch.tensor([bias])}, "line")
    return model


@loss_function
def squared_error(outputs, labels):
    return ((outputs[:, 0] - labels) ** 2).mean()


# ---- fit --------------------------------------------------------------------------------------------------------


def test_two_steps_of_gradient_descent_by_hand():
    """y = w x + b from w = 1, b = 0 with learning rate 1/4.

    Step 1: x = 2, target 0: error 2, loss 4, dw = 2 * 2 * 2 = 8, db = 4, so w = -1, b = -1.
    Step 2: x = 1 and 3, targets 0: errors -2 and -4, loss 10, dw = mean(-4, -24) = -14, db = mean(-4, -8) = -6,
    so w = 2.5, b = 0.5. The mean loss is 7.
    """
    model = line()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    batches = [batch([[2.0]], [0.0]), batch([[1.0], [3.0]], [0.0, 0.0])]
    assert fit(squared_error, model, optimizer, batches) == 7.0
    assert (model.weight.item(), model.bias.item()) == (2.5, 0.5)


def test_the_loss_is_the_mean_over_steps_not_over_samples():
    model = line()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-30)
    batches = [batch([[1.0], [1.0], [1.0]], [1.0, 1.0, 1.0]), batch([[3.0]], [0.0])]  # losses 0 and 9
    assert fit(squared_error, model, optimizer, batches) == 4.5


def test_gradients_of_one_step_do_not_leak_into_the_next():
    model = line()
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e6)
    fit(squared_error, model, torch.optim.SGD(model.parameters(), lr=0.25), [batch([[2.0]], [2.0])])
    assert (model.weight.item(), model.bias.item()) == (1.0, 0.0)  # the loss was 0


def test_no_batches_change_nothing():
    model = line()
    assert fit(squared_error, model, torch.optim.SGD(model.parameters(), lr=1.0), []) == 0.0
    assert model.weight.item() == 1.0


@loss_function
def shifted(outputs, labels, *, value):
    return outputs.sum() * 0 + value


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_says_which_how_long_and_what_helps(value):
    model = line()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with pytest.raises(Diverged) as caught:
        fit(shifted, model, optimizer, [batch([[1.0]], [0.0])] * 2, value=value)
    assert str(caught.value) == (
        f"the loss is {value} after 2 steps; a lower learning rate (optimizer.*.lr, now 0.5) or normalised data "
        "usually helps"
    )


def test_one_bad_step_among_good_ones_is_not_averaged_away():
    model = line()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with pytest.raises(Diverged, match="the loss is nan after 3 steps"):
        fit(squared_error, model, optimizer, [batch([[x]], [0.0]) for x in (1.0, math.nan, 1.0)])


# ---- weights ----------------------------------------------------------------------------------------------------


def test_load_weights_copies_parameters_and_buffers():
    source, target = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    source.running_mean.fill_(3)
    source.num_batches_tracked.fill_(7)
    given = copy_weights(source)
    load_weights(tensors_of(target), given, "net")
    assert torch.equal(target.running_mean, torch.tensor([3.0, 3.0]))
    assert target.num_batches_tracked == 7
    target.running_mean.add_(1)
    assert torch.equal(given["running_mean"], torch.tensor([3.0, 3.0]))


def test_live_tensors_are_the_modules_own():
    model = line()
    assert tensors_of(model)["weight"] is model.weight


def test_copied_weights_stay_when_the_module_trains_on():
    model = line()
    kept = copy_weights(model)
    fit(squared_error, model, torch.optim.SGD(model.parameters(), lr=0.25), [batch([[2.0]], [0.0])])
    assert kept["weight"].item() == 1.0
    assert not kept["weight"].requires_grad


def test_weights_with_other_names_are_refused_with_the_names():
    with pytest.raises(ModelError) as caught:
        load_weights(tensors_of(line()), {"weight": torch.zeros(1, 1), "wait": torch.zeros(1)}, "cnn")
    assert str(caught.value) == "weights for cnn have other names than the model: bias, wait do not match"


def test_weights_of_another_shape_are_refused_even_if_they_could_be_stretched():
    with pytest.raises(ModelError) as caught:
        load_weights(tensors_of(nn.Linear(2, 3)), {"weight": torch.zeros(1, 2), "bias": torch.zeros(3)}, "cnn")
    assert str(caught.value) == "weights for cnn: weight has shape [1, 2], the model's is [3, 2]"
