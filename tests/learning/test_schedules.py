"""Shares of the learning rate, round by round, worked by hand."""

import pytest

from catchment.errors import ExperimentError
from catchment.learning.schedules import Schedule, plateaus
from catchment.reading import read_table


def shares(schedule: Schedule, rounds: int, drops: int = 0) -> list[float]:
    return [schedule.share(round, rounds, drops) for round in range(1, rounds + 1)]


def test_a_constant_rate_is_exactly_the_rate() -> None:
    assert shares(Schedule(), 3) == [1.0, 1.0, 1.0]


def test_a_step_drops_after_every_second_round() -> None:
    assert shares(Schedule("step", every=2, factor=0.5), 6) == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]


def test_a_step_drops_after_given_rounds() -> None:
    assert shares(Schedule("step", at=(1, 4), factor=0.5), 6) == [1.0, 0.5, 0.5, 0.5, 0.25, 0.25]


def test_a_cosine_falls_from_the_whole_rate_towards_its_floor() -> None:
    assert shares(Schedule("cosine"), 4) == pytest.approx([1.0, (2 + 2**0.5) / 4, 0.5, (2 - 2**0.5) / 4])
    assert shares(Schedule("cosine", floor=0.5), 2) == pytest.approx([1.0, 0.75])


def test_a_plateau_drops_as_often_as_it_is_told() -> None:
    schedule = Schedule("plateau", factor=0.5, patience=2)
    assert [schedule.share(1, 9, drops) for drops in range(3)] == [1.0, 0.5, 0.25]
    assert schedule.drops([0.5, 0.4, 0.5]) == 1
    assert Schedule("step", every=1).drops([0.5, 0.4, 0.5]) == 0


def test_a_plateau_is_patience_rounds_without_a_better_value() -> None:
    values = [0.1, 0.2, 0.2, 0.1, 0.3, 0.3, 0.3]
    assert [plateaus(values[:n], 2) for n in range(8)] == [0, 0, 0, 0, 1, 1, 1, 2]
    assert plateaus([0.5, 0.5, 0.5, 0.5, 0.5], 2) == 2  # the wait begins anew after a drop


def test_warm_up_rises_in_equal_steps_and_multiplies_any_schedule() -> None:
    assert shares(Schedule(warmup=3), 5) == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert shares(Schedule("step", warmup=1, every=1, factor=0.5), 3) == [0.5, 0.5, 0.25]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"name": "steps"}, 'name is the text "steps"; expected one of constant, step, cosine, plateau'),
        ({"name": "cosine", "every": 3}, 'schedule "cosine" has no every; it belongs to "step"'),
        ({"name": "constant", "factor": 0.5}, 'schedule "constant" has no factor; it belongs to "step" or "plateau"'),
        ({"name": "step"}, "every is None and at is \\[\\]: set one of them"),
        ({"name": "step", "every": 2, "at": (3,)}, "every is 2 and at is \\[3\\]: set one of them"),
        ({"name": "step", "every": 0}, "every is 0; at least 1"),
        ({"name": "step", "at": (4, 2)}, "at is \\[4, 2\\]; rounds in ascending order"),
        ({"name": "step", "at": (0,)}, "at\\[0\\] is 0; at least 1"),
        ({"name": "step", "every": 2, "factor": 1.0}, "factor is 1.0; a number between 0 and 1"),
        ({"name": "cosine", "floor": 1.0}, "floor is 1.0; a share of lr"),
        ({"name": "plateau", "patience": 0}, "patience is 0; at least 1"),
        ({"warmup": -1}, "warmup is -1; at least 0"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_sentence(options: dict, sentence: str) -> None:
    with pytest.raises(ExperimentError, match=sentence):
        read_table(Schedule, options)
