"""Optimisers by name; their state as tensors, after which they go on as if nothing had happened."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

from catchment.errors import ExperimentError
from catchment.learning.optimizers import (
    NAMES,
    OptimizerSettings,
    in_groups,
    load_optimizer_tensors,
    optimizer_tensors,
    set_rate,
)
from catchment.learning.schedules import Schedule
from catchment.reading import read_table

KINDS = {
    "sgd": OptimizerSettings("sgd", lr=0.1),
    "momentum": OptimizerSettings("sgd", lr=0.1, momentum=0.9),
    "nesterov": OptimizerSettings("sgd", lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": OptimizerSettings("adam", lr=0.1),
    "amsgrad": OptimizerSettings("adam", lr=0.1, amsgrad=True, weight_decay=0.01),
    "adamw": OptimizerSettings("adamw", lr=0.1, weight_decay=0.01),
}


def parameters():
    return [torch.nn.Parameter(torch.tensor([1.0, -2.0])), torch.nn.Parameter(torch.tensor([[3.0]]))]


def steps(optimizer, weights, first, last):
    """A few steps on a bowl whose middle moves with the step."""
    for step in range(first, last):
        optimizer.zero_grad()
        sum(((w - step) ** 2).sum() for w in weights).backward()
        optimizer.step()


@pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)
def test_state_as_tensors_and_back_goes_on_as_if_uninterrupted(settings):
    whole = parameters()
    steps(settings.build(whole), whole, 0, 6)

    first = parameters()
    optimizer = settings.build(first)
    steps(optimizer, first, 0, 3)
    kept = {name: tensor.clone() for name, tensor in optimizer_tensors(optimizer).items()}

    second = [torch.nn.Parameter(w.detach().clone()) for w in first]
    again = settings.build(second)
    load_optimizer_tensors(again, kept)
    steps(again, second, 3, 6)

    assert all(torch.equal(a, b) for a, b in zip(second, whole))
    if settings is not KINDS["sgd"]:  # the state must matter
        fresh = [torch.nn.Parameter(w.detach().clone()) for w in first]
        steps(settings.build(fresh), fresh, 3, 6)
        assert not torch.equal(fresh[0], whole[0])


@pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)
def test_state_in_another_memory_order_than_its_parameter_meets_the_right_elements(settings):
    def train(weight, optimizer, first, last):
        for step in range(first, last):
            optimizer.zero_grad()
            (weight * torch.arange(1.0, 17.0).reshape(weight.shape)).sub(step).square().sum().backward()
            optimizer.step()

    def weight_of(values):
        return torch.nn.Parameter(values.detach().clone().contiguous(memory_format=torch.channels_last))

    start = torch.linspace(-1, 1, 16).reshape(2, 2, 2, 2)
    whole = weight_of(start)
    optimizer = settings.build([whole])
    train(whole, optimizer, 0, 6)

    first = weight_of(start)
    optimizer = settings.build([first])
    train(first, optimizer, 0, 3)
    row_major = {name: t.reshape(-1).clone().view(t.shape) for name, t in optimizer_tensors(optimizer).items()}

    second = weight_of(first)
    again = settings.build([second])
    load_optimizer_tensors(again, row_major)
    train(second, again, 3, 6)
    assert torch.equal(second, whole)


@pytest.mark.parametrize(
    ("kind", "slots"),
    [
        ("sgd", []),
        ("momentum", ["momentum_buffer"]),
        ("adam", ["exp_avg", "exp_avg_sq", "step"]),
        ("amsgrad", ["exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step"]),
    ],
)
def test_the_tensors_are_named_by_parameter_and_slot(kind, slots):
    weights = parameters()
    optimizer = KINDS[kind].build(weights)
    assert optimizer_tensors(optimizer) == {}
    steps(optimizer, weights, 0, 1)
    assert sorted(optimizer_tensors(optimizer)) == [f"{number}.{slot}" for number in (0, 1) for slot in slots]


@pytest.mark.parametrize("kind", ["momentum", "amsgrad"])
def test_the_tensors_given_stay_untouched(kind):
    weights = parameters()
    optimizer = KINDS[kind].build(weights)
    steps(optimizer, weights, 0, 2)
    given = {name: tensor.clone() for name, tensor in optimizer_tensors(optimizer).items()}
    before = {name: tensor.clone() for name, tensor in given.items()}
    load_optimizer_tensors(optimizer, given)
    steps(optimizer, weights, 2, 4)
    assert all(torch.equal(given[name], before[name]) for name in before)


def test_loading_nothing_makes_an_optimiser_as_good_as_new():
    weights = parameters()
    optimizer = KINDS["adam"].build(weights)
    steps(optimizer, weights, 0, 2)
    load_optimizer_tensors(optimizer, {})
    assert optimizer_tensors(optimizer) == {}
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_settings_reach_the_optimiser():
    sgd = OptimizerSettings("sgd", lr=0.3, momentum=0.8, nesterov=True, weight_decay=0.2).build(parameters())
    group = sgd.param_groups[0]
    assert (type(sgd), group["lr"], group["momentum"]) == (torch.optim.SGD, 0.3, 0.8)
    assert (group["nesterov"], group["weight_decay"]) == (True, 0.2)
    adam = OptimizerSettings("adam", lr=0.3, amsgrad=True, weight_decay=0.2).build(parameters())
    group = adam.param_groups[0]
    assert (type(adam), group["lr"], group["amsgrad"], group["weight_decay"]) == (torch.optim.Adam, 0.3, True, 0.2)
    assert type(OptimizerSettings("adamw").build(parameters())) is torch.optim.AdamW


def test_every_name_builds():
    for name in NAMES:
        assert isinstance(OptimizerSettings(name).build(parameters()), torch.optim.Optimizer)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"name": "adm"}, 'name is the text "adm"; expected one of adam, adamw, sgd'),
        ({"name": "zzz"}, 'name is the text "zzz"; expected one of adam, adamw, sgd'),
        ({"lr": 0.0}, "lr is 0.0; a number above 0 is expected"),
        ({"lr": -0.1}, "lr is -0.1; a number above 0 is expected"),
        ({"lr": float("nan")}, "lr is nan; a number above 0 is expected"),
        ({"batch_size": 0}, "batch_size is 0; at least 1 is expected"),
        ({"momentum": 0.9}, 'optimizer "adam" has no momentum setting; use name = "sgd" or remove it'),
        (
            {"name": "adamw", "nesterov": True},
            'optimizer "adamw" has no momentum setting; use name = "sgd" or remove it',
        ),
        ({"name": "sgd", "amsgrad": True}, 'optimizer "sgd" has no amsgrad; use name = "adam" or remove it'),
    ],
)
def test_bad_settings(settings, text):
    with pytest.raises(ExperimentError) as caught:
        read_table(OptimizerSettings, settings)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"weight_decay": -0.1}, "weight_decay is -0.1"),
        ({"name": "sgd", "momentum": -0.1}, "momentum is -0.1"),
        ({"name": "sgd", "nesterov": True}, "nesterov needs momentum"),
        ({"lr": float("inf")}, "lr is inf"),
    ],
)
def test_bad_settings_that_pytorch_would_refuse_or_blow_up_with(settings, said):
    with pytest.raises(ExperimentError, match=said):
        read_table(OptimizerSettings, settings)


def test_the_rate_of_a_round_is_lr_times_its_schedule() -> None:
    settings = OptimizerSettings(lr=0.5, schedule=Schedule("step", every=2, factor=0.5, warmup=1))
    assert [settings.rate(round, 4) for round in (1, 2, 3)] == [0.25, 0.5, 0.25]
    assert OptimizerSettings(lr=0.3).rate(7, 9) == 0.3


def test_parts_of_a_model_may_have_a_share_of_the_rate():
    model = nn.Sequential(OrderedDict(extractor=nn.Linear(2, 2), classifier=nn.Linear(2, 1)))
    optimizer = OptimizerSettings(name="sgd", lr=0.5).build(in_groups(model, {"extractor": 0.1}))
    set_rate(optimizer, 0.2)
    before = [weight.detach().clone() for weight in model.parameters()]
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    moved = [float((old - new.detach()).max()) for old, new in zip(before, model.parameters())]
    assert moved == pytest.approx([0.02, 0.02, 0.2, 0.2])
    assert len(in_groups(model, {"extractor": 1.0})) == 1  # one call for all
