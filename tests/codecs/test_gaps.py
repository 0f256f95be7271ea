"""Positions as gaps: bits worked by hand, what comes back, and how near to the entropy they are."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from catchment.codecs.packing import from_gaps, to_gaps
from catchment.errors import WireError


def at(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def test_gaps_worked_by_hand():
    # Positions 1, 2, 9 leave gaps 1, 0, 6. With b = 1: 1 -> quotient 0, bit 1; 0 -> 0, 0; 6 -> 3, 0: 9 bits.
    # b = 0 takes 2 + 1 + 7 = 10 bits, b = 2 takes 3 + 3 + 4 = 10.
    # Unary parts end at bits 0, 1 and 5: 1 + 2 + 32. Lowest bits are 1, 0, 0: 1.
    assert to_gaps(at(1, 2, 9)) == bytes([1, 1 + 2 + 32, 1])
    assert from_gaps(bytes([1, 35, 1]), 3, 10).tolist() == [1, 2, 9]


def test_no_positions_are_one_byte():
    assert to_gaps(at()) == b"\0"
    assert from_gaps(b"\0", 0, 7).tolist() == []


@settings(deadline=None, max_examples=200)
@given(chosen=st.sets(st.integers(0, 5000)), beyond=st.integers(1, 1000))
def test_gaps_come_back(chosen, beyond):
    positions = at(*sorted(chosen))
    below = max(chosen, default=0) + beyond
    assert from_gaps(to_gaps(positions), len(positions), below).tolist() == sorted(chosen)


@pytest.mark.parametrize("share", [0.5, 0.38, 0.25, 0.1, 1 / 32, 1 / 64, 0.001])
def test_gaps_are_within_5_percent_of_the_entropy(share):
    mask = np.random.default_rng(0).random(400_000) < share
    p = mask.mean()
    entropy = -mask.size * (p * np.log2(p) + (1 - p) * np.log2(1 - p))
    assert entropy - 8 < 8 * len(to_gaps(np.flatnonzero(mask))) < 1.05 * entropy


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
        from_gaps(raw, count, below)
