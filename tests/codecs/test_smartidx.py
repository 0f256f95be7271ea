"""SmartIdx: packages of kernels, patterns and single positions, bit by bit."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from catchment.codecs import smartidx
from catchment.codecs.packing import to_gaps
from catchment.errors import WireError


def at(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


KERNELS = (40, 25, 3, 3)  # 1,000 kernels of 9


def test_a_kernel_of_which_most_is_chosen_goes_whole():
    shape = (2, 1, 2, 2)
    most, half = [0, 1, 3], [4, 7]
    assert smartidx.with_whole_kernels(torch.tensor(most + half).int(), shape).tolist() == [0, 1, 2, 3, 4, 7]
    matrix = torch.tensor(most).int()
    assert smartidx.with_whole_kernels(matrix, (4,)) is matrix


def test_packages_worked_by_hand():
    # One whole kernel, number 1 of 2: a gap of 1, which with b = 0 ends at bit 1. No pattern. Position 3 alone: a gap
    # of 3, which takes 4 bits with b = 0, and 3 with b = 1: quotient 1, which ends at bit 1, and bit 1.
    # Each list is its length, the bytes of its gaps, and these.
    shape = (2, 1, 2, 2)
    raw = smartidx.to_packages(at(3, 4, 5, 6, 7), shape)
    assert raw == bytes([1, 2, 0, 2]) + bytes([0]) + bytes([1, 3, 1, 2, 1])
    assert smartidx.from_packages(raw, shape).tolist() == [3, 4, 5, 6, 7]


def chosen_by_kernels() -> np.ndarray:
    """100 whole kernels, 200 with one pattern of four, some single numbers."""
    chosen = np.zeros((1000, 9), dtype=bool)
    order = np.random.default_rng(1).permutation(1000)
    chosen[order[:100]] = True
    chosen[order[100:300]] = [1, 0, 1, 0, 0, 1, 0, 1, 0]
    chosen[order[300:400], np.random.default_rng(2).integers(0, 9, 100)] = True
    return np.flatnonzero(chosen)


def test_packages_of_kernels_and_patterns_take_fewer_bytes_than_gaps():
    positions = chosen_by_kernels()
    raw = smartidx.to_packages(positions, KERNELS)
    assert smartidx.from_packages(raw, KERNELS).tolist() == positions.tolist()
    assert len(raw) < 0.45 * len(to_gaps(positions))


def test_without_structure_packages_cost_little_more_than_gaps():
    positions = np.flatnonzero(np.random.default_rng(0).random(9000) < 1 / 32)
    assert len(smartidx.to_packages(positions, KERNELS)) <= 1.02 * len(to_gaps(positions)) + 8
    matrix = (90, 100)
    raw = smartidx.to_packages(positions, matrix)
    assert len(raw) <= len(to_gaps(positions)) + 8
    assert smartidx.from_packages(raw, matrix).tolist() == positions.tolist()


@settings(deadline=None, max_examples=150)
@given(
    chosen=st.sets(st.integers(0, 4 * 3 * 9 - 1)),
    shape=st.sampled_from([(4, 3, 3, 3), (108,), (9, 12), (108, 1, 1, 1)]),
)
def test_packages_come_back(chosen, shape):
    positions = at(*sorted(chosen))
    raw = smartidx.to_packages(positions, shape)
    assert smartidx.from_packages(raw, shape).tolist() == sorted(chosen)
    assert smartidx.packed_positions(raw, shape) == len(chosen)


WRONG_PACKAGES = {
    "nothing": (b"", "end 1 bytes too early"),
    "gaps cut short": (bytes([1, 2, 0]), "end 1 bytes too early"),
    "a number without an end": (bytes([255] * 12), "does not end"),
    "an empty pattern": (bytes([0, 1, 0, 0, 0]), "one of its patterns is none"),
    "a pattern too wide": (bytes([0, 1, 16, 0, 0]), "one of its patterns is none"),
    "a kernel twice": (bytes([1, 2, 0, 2, 1, 1, 1, 2, 0, 2, 0]), "kernels is in two packages"),
    "a position twice": (bytes([1, 2, 0, 1, 0, 1, 2, 0, 1]), "positions is in two packages"),
    "something more": (bytes([0, 0, 0, 0]), "followed by something else"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_PACKAGES)
def test_wrong_packages_are_refused_with_the_reason(case):
    raw, reason = WRONG_PACKAGES[case]
    with pytest.raises(WireError, match=reason):
        smartidx.from_packages(raw, (2, 1, 2, 2))


def test_tensors_without_kernels_have_no_packages_of_them():
    with pytest.raises(WireError, match="whole kernels, and no kernels"):
        smartidx.from_packages(bytes([1, 2, 0, 2, 0, 0]), (8,))
    with pytest.raises(WireError, match="patterns of kernels, and no kernels"):
        smartidx.from_packages(bytes([0, 1, 1, 0, 0]), (8,))
