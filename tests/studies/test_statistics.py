"""Means and paired intervals, worked by hand."""

import pytest

from catchment.studies.statistics import paired, spread, t_quantile


def test_a_spread():
    assert spread([1.0, 2.0, 6.0]) == (3.0, pytest.approx(7**0.5), 3)
    assert spread([0.5]) == (0.5, None, 1)


def test_differences_are_paired_by_seed():
    # Differences 1, 2, 3: mean 2, deviation 1, half an interval of 4.3027 / sqrt(3).
    found = paired({0: 2.0, 1: 4.0, 2: 6.0, 9: 100.0}, {0: 1.0, 1: 2.0, 2: 3.0, 8: 0.0})
    assert found.mean == 2.0
    assert (found.low, found.high) == (pytest.approx(2 - 2.48416, abs=1e-4), pytest.approx(2 + 2.48416, abs=1e-4))
    assert not found.certain


def test_a_difference_is_certain_if_its_interval_leaves_zero_out():
    assert paired({0: 2.0, 1: 2.1, 2: 1.9}, {0: 1.0, 1: 1.0, 2: 1.0}).certain
    assert paired({0: -2.0, 1: -2.1, 2: -1.9}, {0: 1.0, 1: 1.0, 2: 1.0}).certain


def test_one_pair_has_no_interval_and_none_has_no_difference():
    assert paired({0: 2.0}, {0: 1.0}) == (1.0, None, None)
    assert not paired({0: 2.0}, {0: 1.0}).certain
    assert paired({0: 2.0}, {1: 1.0}) is None


def test_quantiles_beyond_the_table():
    assert t_quantile(1) == 12.7062
    assert t_quantile(30) == 2.0423
    assert t_quantile(31) == pytest.approx(2.0395, abs=2e-4)
    assert t_quantile(120) == pytest.approx(1.9799, abs=2e-4)
