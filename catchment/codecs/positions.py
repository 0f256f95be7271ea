"""Ascending positions in few bits: Golomb codes of their gaps, and SmartIdx's packages for the kernels of convolutions.

A gap g, the number of positions left out before the next one, is written as g >> b in unary and its b lowest bits, with
the b that gives the fewest bits (Golomb, Run-length encodings, 1966, in Rice's form). For positions that are set at
random this is within 5 % of their entropy. All unary parts come first, then all lowest bits: so both are read and
written as arrays. What came from the other side is checked before it is used.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from catchment.errors import WireError

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
    return bytes([low_bits]) + _bits(unary) + _bits(lowest.reshape(-1) == 1)


def from_gaps(raw: bytes | memoryview, count: int, below: int) -> Positions:
    """`count` ascending positions, all less than `below`."""
    _expect(len(raw) > 0 and raw[0] <= LOWEST_BITS, "its gaps do not begin with a number of lowest bits")
    _expect(0 <= count <= below, f"it has gaps for {count:,} positions of {below:,}")
    low_bits = raw[0]
    split = len(raw) - _bytes(count * low_bits)
    _expect(split >= 1, f"its gaps end after {len(raw):,} bytes, before their lowest bits")
    ends = np.flatnonzero(_from_bits(raw[1:split]))
    used = int(ends[-1]) + 1 if len(ends) else 0
    _expect(
        len(ends) == count and _bytes(used) == split - 1,
        f"its gaps have {len(ends):,} ends in {split - 1:,} bytes for {count:,} positions",
    )
    bits = _from_bits(raw[split:])
    _expect(not bits[count * low_bits :].any(), "the padding of its gaps is not zero")
    lowest = bits[: count * low_bits].reshape(count, low_bits) @ (1 << np.arange(low_bits, dtype=np.int64))
    gaps = ((np.diff(ends, prepend=-1) - 1) << low_bits) + lowest
    # Summed as floats first: too large gaps, which only a wrong message has, would wrap around.
    _expect(float(gaps.sum(dtype=np.float64)) + count <= below, f"its gaps lead beyond position {below - 1:,}")
    positions: Positions = np.cumsum(gaps + 1) - 1
    return positions


# ---- SmartIdx ---------------------------------------------------------------------------------------------------


def kernel_size(shape: torch.Size) -> int:
    """Numbers in a kernel, one plane of a convolution's weights; 1 for all other tensors."""
    return shape[2] * shape[3] if len(shape) == 4 else 1


def with_whole_kernels(positions: Tensor, shape: torch.Size) -> Tensor:
    """The positions, and all others of kernels of which they are more than half."""
    size = kernel_size(shape)
    if size == 1:
        return positions
    chosen = torch.zeros(shape.numel() // size, size, dtype=torch.bool)
    chosen.view(-1)[positions.long()] = True
    chosen[chosen.sum(1) > size / 2] = True
    return chosen.view(-1).nonzero().squeeze(1).to(positions.dtype)


def to_packages(positions: Positions, shape: torch.Size) -> bytes:
    """Kernels that are whole; patterns, each with the kernels that have it; and positions one by one.

    Kernels with the same pattern of chosen numbers are a package of their own where that takes fewer bits than their
    positions one by one.
    """
    size = kernel_size(shape)
    chosen = np.zeros((shape.numel() // size, size), dtype=np.bool_)
    chosen.reshape(-1)[positions] = True
    whole = np.flatnonzero(chosen.all(axis=1)) if size > 1 else np.empty(0, dtype=np.int64)
    chosen[whole] = False
    packages = []
    if 1 < size < 63 and chosen.any():
        some = np.flatnonzero(chosen.any(axis=1))
        named = chosen[some] @ (1 << np.arange(size, dtype=np.int64))  # a pattern as one number
        patterns, first, counts = np.unique(named, return_index=True, return_counts=True)
        alone = math.log2(chosen.size / np.count_nonzero(chosen)) + 1.5  # bits of a position, about
        for pattern, example, count in zip(patterns, chosen[some[first]], counts):
            together = count * (math.log2(len(chosen) / count) + 1.5) + size + 24
            if together < count * np.count_nonzero(example) * alone:
                kernels = some[named == pattern]
                packages.append(_bits(example) + _counted(kernels))
                chosen[kernels] = False
    return _counted(whole) + _number(len(packages)) + b"".join(packages) + _counted(np.flatnonzero(chosen))


def from_packages(raw: bytes | memoryview, shape: torch.Size) -> Positions:
    """The positions in packages."""
    size = kernel_size(shape)
    chosen = np.zeros((shape.numel() // size, size), dtype=np.bool_)
    reader = _Reader(memoryview(raw))
    whole = reader.counted(len(chosen))
    _expect(size > 1 or not len(whole), "it has whole kernels, and no kernels")
    chosen[whole] = True
    packages = reader.number()
    _expect(size > 1 or not packages, "it has patterns of kernels, and no kernels")
    for _ in range(packages):
        pattern = _from_bits(reader.take(_bytes(size)))
        _expect(not pattern[size:].any() and bool(pattern.any()), "one of its patterns is none")
        kernels = reader.counted(len(chosen))
        _expect(not chosen[kernels].any(), "one of its kernels is in two packages")
        chosen[kernels] = pattern[:size]
    alone = reader.counted(chosen.size)
    _expect(not chosen.reshape(-1)[alone].any(), "one of its positions is in two packages")
    chosen.reshape(-1)[alone] = True
    _expect(not len(reader.rest), "its packages are followed by something else")
    return np.flatnonzero(chosen)


class _Reader:
    """Takes numbers and positions from the front of a string of bytes."""

    def __init__(self, raw: memoryview) -> None:
        self.rest = raw

    def take(self, length: int) -> memoryview:
        _expect(length <= len(self.rest), f"its packages end {length - len(self.rest):,} bytes too early")
        taken, self.rest = self.rest[:length], self.rest[length:]
        return taken

    def number(self) -> int:
        """Seven bits a byte, the lowest first; the last byte is below 128."""
        number = 0
        for shift in range(0, 63, 7):
            byte = self.take(1)[0]
            number |= (byte & 127) << shift
            if byte < 128:
                return number
        raise WireError("a number in its packages does not end")

    def counted(self, below: int) -> Positions:
        count = self.number()
        return from_gaps(self.take(self.number()), count, below) if count else np.empty(0, dtype=np.int64)


def _number(number: int) -> bytes:
    parts = []
    while number >= 128:
        parts.append(number % 128 + 128)
        number //= 128
    return bytes([*parts, number])


def _counted(positions: Positions) -> bytes:
    if not len(positions):
        return _number(0)
    gaps = to_gaps(positions)
    return _number(len(positions)) + _number(len(gaps)) + gaps


# ---- bits -------------------------------------------------------------------------------------------------------


def _bits(values: NDArray[np.bool_]) -> bytes:
    return np.packbits(values, bitorder="little").tobytes()


def _from_bits(raw: bytes | memoryview) -> NDArray[np.uint8]:
    return np.unpackbits(np.frombuffer(raw, dtype=np.uint8), bitorder="little")


def _bytes(bits: int) -> int:
    return (bits + 7) // 8


def _expect(good: bool, reason: str) -> None:
    if not good:
        raise WireError(reason)
