"""Modules that do no work."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from catchment import models
from catchment.planning.hollow import hollow
from catchment.runs.rehearsal import PeakMemory


def test_a_hollow_module_returns_the_shape_and_counts_the_work():
    model, calls = nn.Sequential(nn.Flatten(), nn.Linear(6, 3)), []
    model[1].register_forward_pre_hook(lambda *_: calls.append(1))
    with hollow("quiet") as modules, torch.no_grad():
        first = model(torch.ones(5, 2, 3))
        assert model(torch.ones(4, 2, 3)).shape == (4, 3)
    assert first.shape == (5, 3)
    assert first.argmax(1).tolist() == [0] * 5
    assert modules.macs == (5 + 4) * 6 * 3
    assert calls == [1]  # the two samples that showed the shape
    assert not torch.equal(model(torch.ones(5, 2, 3)), first)


@pytest.mark.parametrize("values", ["quiet", "loud"])
def test_gradients_reach_weights_and_input(values):
    model, images = nn.Linear(4, 3), torch.ones(2, 4, requires_grad=True)
    with hollow(values) as modules:
        nn.CrossEntropyLoss()(model(images), torch.tensor([1, 1])).backward()
    moved = values == "loud"
    for tensor in (model.weight, model.bias, images):
        assert tensor.grad.shape == tensor.shape
        assert bool(tensor.grad.any()) is moved
    assert modules.macs == 3 * 2 * 4 * 3  # backward is two forward passes


def test_loud_outputs_are_other_every_time():
    model = nn.Linear(4, 3)
    with hollow("loud"), torch.no_grad():
        one, other = model(torch.ones(2, 4)), model(torch.ones(2, 4))
    assert not torch.equal(one, other)
    assert one.argmax(1).tolist() == [0, 0]


def test_statistics_and_modes_stay():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout())
    model[0].eval()
    with hollow("quiet"):
        model(torch.randn(4, 3, generator=torch.Generator().manual_seed(0)))
    assert model[0].running_mean.tolist() == [0, 0, 0]
    assert [part.training for part in model.modules()] == [True, False, True]


def test_measuring_is_no_work():
    model = nn.Linear(4, 3)
    with hollow("quiet") as modules, torch.inference_mode():
        model(torch.ones(2, 4))
    assert modules.macs == 0


def test_a_module_that_is_counted_by_a_hook_is_not_counted_here():
    model, seen = nn.Linear(4, 3), []
    model.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    with hollow("quiet") as modules:
        model(torch.ones(2, 4))
    assert seen == [(2, 3)]
    assert modules.macs == 0


def test_a_forward_of_its_own_stays():
    model = nn.Linear(4, 3)
    model.forward = lambda images: images[:, :2]
    with hollow("quiet"), torch.no_grad():
        assert model(torch.ones(5, 4)).shape == (5, 2)
    assert model(torch.ones(5, 4)).tolist() == [[1, 1]] * 5


@pytest.mark.parametrize("samples", [3, 32])
def test_memory_is_that_of_a_module_that_works(samples):
    peaks = []
    for modules in (nullcontext(), hollow("loud")):
        model = models.build("resnet10", (16, 8, 8), 10, seed=0)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        with modules, PeakMemory() as memory:
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.ones(samples, 16, 8, 8)).logsumexp(1).sum().backward()
                optimizer.step()
        peaks.append(memory.peak)
    assert peaks[1] == pytest.approx(peaks[0], rel=0.02)


def test_memory_of_a_pass_without_gradients_is_that_of_one_moment():
    model = nn.Sequential(nn.Linear(4, 100), nn.ReLU(), nn.Linear(100, 2))
    with hollow("quiet"), PeakMemory() as memory, torch.no_grad():
        output = model(torch.ones(50, 4))
    assert memory.now == output.nbytes == 50 * 2 * 4
    assert memory.peak == 50 * (4 + 100 + 100) * 4
