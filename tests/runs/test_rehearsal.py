"""Peak memory in bytes, counted by hand. A float has 4 bytes."""

import torch
from torch import nn

from catchment.runs.rehearsal import PeakMemory, counting, uncounted

BATCH, WIDTH, HIDDEN, CLASSES = 4, 10, 20, 5
WEIGHTS = 4 * (WIDTH * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES)
INPUT = 4 * BATCH * WIDTH
FIRST = 4 * BATCH * HIDDEN  # activations of the first layer
SECOND = 4 * BATCH * CLASSES


def two_layers():
    return nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, CLASSES))


def test_a_forward_pass_is_weights_input_and_activations():
    with PeakMemory() as memory:
        model = two_layers()
        images = torch.zeros(BATCH, WIDTH)
        model(images)
    assert memory.peak == WEIGHTS + INPUT + FIRST + SECOND


def test_activations_are_held_for_the_backward_pass_and_freed_without_one():
    def peak(gradients):
        with PeakMemory() as memory, torch.set_grad_enabled(gradients):
            model = nn.Sequential(*(nn.Linear(10, 10, bias=False) for _ in range(4)))
            images = torch.zeros(4, 10)
            model(images)
        return memory.peak - 4 * 4 * 100 - 160  # less the weights and the input

    assert peak(gradients=True) == 4 * 160  # every layer's
    assert peak(gradients=False) == 2 * 160  # the input and the output of the layer under way


def test_gradients_and_optimiser_state_are_counted():
    with PeakMemory() as memory:
        model = nn.Linear(100, 100, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.zeros(1, 100)).sum().backward()
            optimizer.step()
    weights = 4 * 100 * 100
    assert 3 * weights <= memory.peak < 3.2 * weights  # weights, gradients, momentum, and a few activations


def test_freed_memory_is_not_counted():
    with PeakMemory() as memory:
        for _ in range(5):
            large = torch.zeros(1000)
            del large
        kept = torch.zeros(10)
    assert memory.peak == 4000
    assert len(kept) == 10


def test_the_peak_is_the_most_at_one_time():
    with PeakMemory() as memory:
        first = torch.zeros(100)
        second = torch.zeros(50)
        del first
        third = torch.zeros(80)
    assert memory.peak == 600
    assert len(second) + len(third) == 130


def test_views_and_changes_in_place_take_no_memory():
    with PeakMemory() as memory:
        tensor = torch.zeros(100)
        views = [tensor.view(10, 10), tensor[:5], tensor.t(), tensor.detach(), tensor.expand(3, 100)]
        tensor.add_(1).mul_(2)
    assert memory.peak == 400
    assert len(views) == 5


def test_a_view_keeps_its_whole_storage_alive():
    with PeakMemory() as memory:
        view = torch.zeros(100)[:1]
        other = torch.zeros(100)
    assert memory.peak == 800
    assert len(view) + len(other) == 101


def test_nothing_is_counted_outside():
    before = torch.zeros(1000)
    with PeakMemory() as memory:
        inside = torch.zeros(10)
    after = torch.zeros(1000)
    assert memory.peak == 40
    assert len(before) + len(inside) + len(after) == 2010


def test_a_slice_of_what_was_there_before_is_not_counted():
    data_set = torch.zeros(100_000, dtype=torch.uint8)
    with PeakMemory() as memory:
        batch = data_set[:10].float()
    assert memory.peak == 40
    assert len(batch) == 10


def test_an_inner_count_takes_the_place_of_the_outer_one():
    with PeakMemory() as outer:
        kept = torch.ones(10)
        with PeakMemory() as inner:
            torch.ones(1000)
        with uncounted():
            torch.ones(1000)
            assert counting() is None
        assert counting() is outer
    assert (outer.now, outer.peak) == (kept.nbytes, 40)
    assert inner.peak == 4000
    assert counting() is None


def test_tensors_from_elsewhere_count_until_they_are_freed():
    given, token = torch.ones(10), torch.ones(())
    with PeakMemory() as memory:
        memory.hold(given)
        memory.hold(token, 1000)
        memory.pass_through(500)
        assert (memory.now, memory.peak) == (1040, 1540)
        del token
        assert memory.now == 40
