"""Positions as gaps and packages: bits worked by hand, what comes back, and how near to the entropy they are."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.codecs import positions as coded
from catchment.errors import WireError


def at(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def test_gaps_worked_by_hand():
    # Positions 1, 2, 9 leave gaps 1, 0, 6. With b = 1: 1 -> quotient 0, bit 1; 0 -> 0, 0; 6 -> 3, 0: 9 bits.
    # b = 0 takes 2 + 1 + 7 = 10 bits, b = 2 takes 3 + 3 + 4 = 10.
    # Unary parts end at bits 0, 1 and 5: 1 + 2 + 32. Lowest bits are 1, 0, 0: 1.
    assert coded.to_gaps(at(1, 2, 9)) == bytes([1, 1 + 2 + 32, 1])
    assert coded.from_gaps(bytes([1, 35, 1]), 3, 10).tolist() == [1, 2, 9]


def test_no_positions_are_one_byte():
    assert coded.to_gaps(at()) == b"\0"
    assert coded.from_gaps(b"\0", 0, 7).tolist() == []


@settings(deadline=None, max_examples=200)
@given(chosen=st.sets(st.integers(0, 5000)), beyond=st.integers(1, 1000))
def test_gaps_come_back(chosen, beyond):
    positions = at(*sorted(chosen))
    below = max(chosen, default=0) + beyond
    assert coded.from_gaps(coded.to_gaps(positions), len(positions), below).tolist() == sorted(chosen)


@pytest.mark.parametrize("share", [0.5, 0.38, 0.25, 0.1, 1 / 32, 1 / 64, 0.001])
def test_gaps_are_within_5_percent_of_the_entropy(share):
    mask = np.random.default_rng(0).random(400_000) < share
    p = mask.mean()
    entropy = -mask.size * (p * np.log2(p) + (1 - p) * np.log2(1 - p))
    assert entropy - 8 < 8 * len(coded.to_gaps(np.flatnonzero(mask))) < 1.05 * entropy


WRONG_GAPS = {
    "nothing": (b"", 1, 9, "do not begin with a number of lowest bits"),
    "32 lowest bits": (bytes([32, 1, 0, 0, 0, 0]), 1, 9, "do not begin with a number"),
    "too many positions": (bytes([0, 255, 1]), 9, 8, "gaps for 9 positions of 8"),
    "no lowest bits": (bytes([9]), 3, 99, "end after 1 bytes, before their lowest bits"),
    "an end too few": (bytes([1, 3, 1]), 3, 10, "have 2 ends in 1 bytes for 3 positions"),
    "a byte too many": (bytes([0, 7, 0]), 3, 10, "have 3 ends in 2 bytes for 3 positions"),
    "padding": (bytes([1, 35, 9]), 3, 10, "the padding of its gaps is not zero"),
    "beyond the end": (bytes([1, 35, 1]), 3, 9, "lead beyond position 8"),
    "far beyond": (bytes([31, 128]) + b"\xff\xff\xff\x7f", 1, 2**31, "lead beyond position"),
}


@pytest.mark.parametrize("case", WRONG_GAPS)
def test_wrong_gaps_are_refused_with_the_reason(case):
    raw, count, below, reason = WRONG_GAPS[case]
    with pytest.raises(WireError, match=reason):
        coded.from_gaps(raw, count, below)


# ---- SmartIdx ---------------------------------------------------------------------------------------------------

KERNELS = torch.Size([40, 25, 3, 3])  # 1,000 kernels of 9


def test_a_kernel_of_which_most_is_chosen_goes_whole():
    shape = torch.Size([2, 1, 2, 2])
    most, half = [0, 1, 3], [4, 7]
    assert coded.with_whole_kernels(torch.tensor(most + half).int(), shape).tolist() == [0, 1, 2, 3, 4, 7]
    matrix = torch.tensor(most).int()
    assert coded.with_whole_kernels(matrix, torch.Size([4])) is matrix


def test_packages_worked_by_hand():
    # One whole kernel, number 1 of 2: a gap of 1, which with b = 0 ends at bit 1. No pattern. Position 3 alone: a gap
    # of 3, which takes 4 bits with b = 0, and 3 with b = 1: quotient 1, which ends at bit 1, and bit 1.
    # Each list is its length, the bytes of its gaps, and these.
    shape = torch.Size([2, 1, 2, 2])
    raw = coded.to_packages(at(3, 4, 5, 6, 7), shape)
    assert raw == bytes([1, 2, 0, 2]) + bytes([0]) + bytes([1, 3, 1, 2, 1])
    assert coded.from_packages(raw, shape).tolist() == [3, 4, 5, 6, 7]


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
    raw = coded.to_packages(positions, KERNELS)
    assert coded.from_packages(raw, KERNELS).tolist() == positions.tolist()
    assert len(raw) < 0.45 * len(coded.to_gaps(positions))


def test_without_structure_packages_cost_little_more_than_gaps():
    positions = np.flatnonzero(np.random.default_rng(0).random(9000) < 1 / 32)
    assert len(coded.to_packages(positions, KERNELS)) <= 1.02 * len(coded.to_gaps(positions)) + 8
    matrix = torch.Size([90, 100])
    raw = coded.to_packages(positions, matrix)
    assert len(raw) <= len(coded.to_gaps(positions)) + 8
    assert coded.from_packages(raw, matrix).tolist() == positions.tolist()


@settings(deadline=None, max_examples=150)
@given(
    chosen=st.sets(st.integers(0, 4 * 3 * 9 - 1)),
    shape=st.sampled_from([(4, 3, 3, 3), (108,), (9, 12), (108, 1, 1, 1)]),
)
def test_packages_come_back(chosen, shape):
    positions = at(*sorted(chosen))
    assert coded.from_packages(coded.to_packages(positions, torch.Size(shape)), torch.Size(shape)).tolist() == sorted(
        chosen
    )


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
        coded.from_packages(raw, torch.Size([2, 1, 2, 2]))


def test_tensors_without_kernels_have_no_packages_of_them():
    with pytest.raises(WireError, match="whole kernels, and no kernels"):
        coded.from_packages(bytes([1, 2, 0, 2, 0, 0]), torch.Size([8]))
    with pytest.raises(WireError, match="patterns of kernels, and no kernels"):
        coded.from_packages(bytes([0, 1, 1, 0, 0]), torch.Size([8]))
