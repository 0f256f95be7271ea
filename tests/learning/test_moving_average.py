"""Moving averages with numbers worked by hand."""

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

from catchment.learning.moving_average import MovingAverage, StateAverages
from catchment.runs.undo import restorer


def weights(value: float, batches: int = 0) -> dict[str, Tensor]:
    return {"w": torch.tensor([value]), "num_batches_tracked": torch.tensor(batches)}


def test_the_first_steps_count_for_more_until_the_decay_is_reached() -> None:
    average = MovingAverage.starting_at(weights(0.0))
    average.follow(weights(1.0), 0.15)  # decay 1/10
    assert average.weights["w"].item() == pytest.approx(0.9)
    average.follow(weights(2.0), 0.15)  # 2/11 is above 0.15
    assert average.weights["w"].item() == pytest.approx(0.15 * 0.9 + 0.85 * 2.0)
    assert average.steps == 2


def test_counts_of_batches_are_the_newest() -> None:
    average = MovingAverage.starting_at(weights(0.0, batches=3))
    average.follow(weights(1.0, batches=5), 0.99)
    assert average.weights["num_batches_tracked"].item() == 5


def test_what_it_begins_with_stays_untouched() -> None:
    first = weights(0.0)
    MovingAverage.starting_at(first).follow(weights(1.0), 0.99)
    assert first["w"].item() == 0.0


def test_tensors_bring_an_average_back() -> None:
    average = MovingAverage.starting_at(weights(0.0))
    average.follow(weights(1.0, batches=1), 0.99)
    again = MovingAverage.from_tensors(average.tensors())
    for one in (average, again):
        one.follow(weights(2.0, batches=2), 0.99)
    assert torch.equal(average.weights["w"], again.weights["w"])
    assert average.steps == again.steps == 2


def test_an_average_does_not_depend_on_the_memory_order_of_its_model() -> None:
    kernel = torch.rand(4, 3, 3, 3, generator=torch.Generator().manual_seed(0))
    other = kernel.flip(0)
    plain, channels_last = (
        MovingAverage.starting_at({"w": kernel.contiguous(memory_format=order)})
        for order in (torch.contiguous_format, torch.channels_last)
    )
    for average in (plain, channels_last):
        average.follow({"w": other.contiguous(memory_format=torch.channels_last)}, 0.99)
    assert torch.equal(plain.weights["w"], channels_last.weights["w"])
    assert channels_last.weights["w"].is_contiguous()


@dataclass
class State:
    model: nn.Linear
    optimizer: torch.optim.Optimizer
    mean: dict[str, Tensor]
    devices: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    absent: nn.Module | None = None


@pytest.fixture
def state() -> State:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    return State(model, torch.optim.SGD(model.parameters(), lr=1.0), weights(0.0))


def step(state: State) -> None:
    """w becomes w + 1."""
    state.model.weight.grad = torch.tensor([[-1.0]])
    state.optimizer.step()


def watching(state: State) -> StateAverages:
    averages = StateAverages(0.5, ("model", "mean", "devices", "absent"))
    averages.watch(state)
    return averages


def test_a_trained_module_counts_steps_and_aggregated_weights_count_rounds(state: State) -> None:
    averages = watching(state)
    step(state)  # 0.9
    step(state)  # 2/11 x 0.9 + 9/11 x 2
    state.mean = weights(4.0)
    averages.end_round(state)
    assert averages.averages["model"].weights["weight"].item() == pytest.approx(2 / 11 * 0.9 + 9 / 11 * 2)
    assert averages.averages["model"].steps == 2
    assert averages.averages["mean"].weights["w"].item() == pytest.approx(0.9 * 4.0)
    assert averages.averages["mean"].steps == 1


def test_a_module_that_made_no_step_counts_a_round(state: State) -> None:
    averages = watching(state)
    nn.init.ones_(state.model.weight)  # such as by a mean of copies
    averages.end_round(state)
    assert averages.averages["model"].weights["weight"].item() == pytest.approx(0.9)


def test_models_that_come_later_begin_with_their_first_weights(state: State) -> None:
    averages = watching(state)
    state.devices[3] = weights(7.0)
    averages.end_round(state)
    state.devices[3] = weights(8.0)
    averages.end_round(state)
    assert averages.averages["devices/3"].weights["w"].item() == pytest.approx(0.1 * 7 + 0.9 * 8)


def test_averages_are_there_inside_the_block_and_gone_after_it(state: State) -> None:
    averages = watching(state)
    step(state)
    state.mean = weights(4.0)
    state.devices[0] = weights(1.0)
    averages.end_round(state)
    with averages.swapped_in(state):
        assert state.model.weight.item() == pytest.approx(0.9)
        assert state.mean["w"].item() == pytest.approx(3.6)
        assert state.devices[0]["w"].item() == 1.0
    assert state.model.weight.item() == 1.0
    assert state.mean["w"].item() == 4.0


def test_averages_are_taken_back_with_a_round_that_is_undone(state: State) -> None:
    averages = watching(state)
    step(state)
    averages.end_round(state)
    before = averages.averages["model"].weights["weight"].item()
    undo = restorer(averages)
    step(state)
    state.devices[0] = weights(1.0)
    averages.end_round(state)
    undo()
    assert averages.averages["model"].weights["weight"].item() == before
    assert averages.averages["model"].steps == 1
    assert "devices/0" not in averages.averages
    assert averages.stepped == {}


def test_loaded_averages_go_on_as_the_old_ones(state: State) -> None:
    averages = watching(state)
    step(state)
    averages.end_round(state)
    again = StateAverages(0.5, averages.fields)
    again.load(averages.tensors())
    again.watch(state)
    step(state)  # both see it
    assert torch.equal(averages.averages["model"].weights["weight"], again.averages["model"].weights["weight"])
