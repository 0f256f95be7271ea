"""Ascending positions in few bits: Golomb codes of the gaps between them.

A gap g, the number of positions left out before the next one, is written as g >> b in unary and its b lowest bits, with
the b that gives the fewest bits (Golomb, Run-length encodings, 1966, in Rice's form). For positions that are set at
random this is within 5 % of their entropy. All unary parts come first, then all lowest bits: so both are read and
written as arrays. What came from the other side is checked before it is used.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from catchment.codecs.bits import bytes_of, expect

Positions = NDArray[np.int64]
LOWEST_BITS = 31  # at most


def to_gaps(positions: Positions) -> bytes:
    """The number b in a byte, then the gaps; the number of positions is for the reader to know."""
    gaps = np.diff(positions, prepend=-1) - 1
    about = int(math.log2(float(gaps.mean()) + 1)) if len(gaps) else 0
    tried = range(max(0, about - 2), min(about + 2, LOWEST_BITS) + 1)
    low_bits = min(tried, key=lambda b: len(gaps) * (1 + b) + int((gaps >> b).sum()))
    ends = np.cumsum((gaps >> low_bits) + 1) - 1
    unary = np.zeros(int(ends[-1]) + 1 if len(ends) else 0, dtype=np.bool_)
    unary[ends] = True
    lowest = (gaps[:, None] >> np.arange(low_bits)) & 1
    return bytes([low_bits]) + to_bits(unary) + to_bits(lowest.reshape(-1) == 1)


def from_gaps(raw: bytes | memoryview, count: int, below: int) -> Positions:
    """`count` ascending positions, all less than `below`."""
    expect(len(raw) > 0 and raw[0] <= LOWEST_BITS, "its gaps do not begin with a number of lowest bits")
    expect(0 <= count <= below, f"it has gaps for {count:,} positions of {below:,}")
    low_bits = raw[0]
    split = len(raw) - bytes_of(count * low_bits)
    expect(split >= 1, f"its gaps end after {len(raw):,} bytes, before their lowest bits")
    ends = np.flatnonzero(from_bits(raw[1:split]))
    used = int(ends[-1]) + 1 if len(ends) else 0
    expect(
        len(ends) == count and bytes_of(used) == split - 1,
        f"its gaps have {len(ends):,} ends in {split - 1:,} bytes for {count:,} positions",
    )
    bits = from_bits(raw[split:])
    expect(not bits[count * low_bits :].any(), "the padding of its gaps is not zero")
    lowest = bits[: count * low_bits].reshape(count, low_bits) @ (1 << np.arange(low_bits, dtype=np.int64))
    gaps = ((np.diff(ends, prepend=-1) - 1) << low_bits) + lowest
    # Summed as floats first: too large gaps, which only a wrong message has, would wrap around.
    expect(float(gaps.sum(dtype=np.float64)) + count <= below, f"its gaps lead beyond position {below - 1:,}")
    positions: Positions = np.cumsum(gaps + 1) - 1
    return positions


def to_bits(values: NDArray[np.bool_]) -> bytes:
    """Eight truth values to a byte, the first lowest."""
    return np.packbits(values, bitorder="little").tobytes()


def from_bits(raw: bytes | memoryview) -> NDArray[np.uint8]:
    """A number, 0 or 1, for each bit."""
    return np.unpackbits(np.frombuffer(raw, dtype=np.uint8), bitorder="little")
