"""When a run is said to have ended below an earlier round, with numbers worked by hand."""

import json

import pytest

import catchment
from catchment.config.experiment import Experiment
from catchment.runs import loop
from catchment.runs.falling import fall_of
from catchment.runs.reading import RunFiles
from catchment.runs.records import Fall


def points(*values, every=1):
    return [(every * (number + 1), value) for number, value in enumerate(values)]


def test_a_steady_fall_is_seen_from_the_best_round_on():
    # wiggles: |0.9 - 0.75| = 0.15, then 0.05, 0, 0: the median is 0.025, eight times that 0.2
    found = fall_of(points(0.7, 0.9, 0.8, 0.7, 0.6, 0.5), "accuracy", None)
    assert found == Fall(from_round=2, by=pytest.approx(0.4))
    assert fall_of(points(0.7, 0.9, 0.8, 0.7, 0.6, 0.5, every=5), "accuracy", None).from_round == 10
    assert fall_of(points(0.9, 0.9, 0.8, 0.7, 0.6, 0.5), "accuracy", None).from_round == 2  # the last of the best


def test_the_usual_wiggle_is_no_fall():
    # up and down by 0.02 around 0.8: every wiggle is 0.02, so that 0.16 is the least that counts
    wiggling = points(0.81, 0.79, 0.81, 0.79, 0.81, 0.79)
    assert fall_of(wiggling, "accuracy", None) is None
    assert fall_of([*wiggling, (7, 0.66)], "accuracy", None) is None
    assert fall_of([*wiggling, (7, 0.64)], "accuracy", None) == Fall(from_round=5, by=pytest.approx(0.17))


def test_fewer_test_samples_need_a_larger_fall():
    # two standard errors: 2 * sqrt((0.9 * 0.1 + 0.8 * 0.2) / n) = 1 / sqrt(n), which is 0.1 for n = 100
    steady = points(0.9, 0.875, 0.85, 0.825, 0.8)
    assert fall_of(steady, "accuracy", 99) is None
    assert fall_of(steady, "accuracy", 101) == Fall(from_round=1, by=pytest.approx(0.1))


def test_three_rounds_are_too_few_to_know():
    assert fall_of(points(0.9, 0.5, 0.1), "accuracy", 10_000) is None
    assert fall_of([], "accuracy", 10_000) is None


def test_of_errors_the_lowest_is_the_best():
    rising = points(0.2, 0.1, 0.2, 0.3, 0.4)
    assert fall_of(rising, "calibration_error", None) == Fall(from_round=2, by=pytest.approx(0.3))
    assert fall_of(rising, "auroc", None) is None


@pytest.fixture
def accuracies(monkeypatch):
    """What the next evaluations find, in place of what they measure."""
    left, whole = [], loop.summary.measured
    monkeypatch.setattr(loop.summary, "measured", lambda *given: {**whole(*given), "accuracy": left.pop(0)})
    return left


def test_the_result_of_a_run_says_it_resumed_or_not(accuracies, tmp_path):
    table = {
        "name": "down", "rounds": 5, "workers": 1, "models": {"client": "mlp(8)"},
        "data": {"clients": 2, "train": 40, "test": 100},
    }  # fmt: skip
    accuracies += [0.75, 0.875, 0.75, 0.625, 0.5]
    result = catchment.run(Experiment.from_dict(table), tmp_path / "run")
    assert result["fall"] == {"from_round": 2, "by": 0.375}

    (tmp_path / "run" / "result.json").unlink()  # the end is told again, from the records of the rounds
    assert catchment.resume(tmp_path / "run")["fall"] == {"from_round": 2, "by": 0.375}

    accuracies += [0.05, 0.04, 0.03, 0.02, 0.01]  # never above a constant answer
    assert catchment.run(Experiment.from_dict(table))["fall"] is None


def test_a_result_of_an_earlier_version_has_no_fall(tmp_path):
    table = {"rounds": 1, "workers": 1, "models": {"client": "mlp(8)"}, "data": {"clients": 2, "train": 40, "test": 9}}
    result = catchment.run(Experiment.from_dict(table), tmp_path)
    assert result.pop("fall") is None
    (tmp_path / "result.json").write_text(json.dumps(result))
    assert RunFiles.read(tmp_path).result.fall is None
