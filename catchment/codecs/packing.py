"""Values packed into bytes: small ones several to a byte, ascending positions as Golomb codes of the gaps between them.

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

from catchment.codecs.stage import Form, Layout, Parts
from catchment.errors import WireError

Positions = NDArray[np.int64]
LOWEST_BITS = 31  # at most, of a gap


def expect(good: bool, reason: str) -> None:
    """Refuse what came over the wire unless a condition holds."""
    if not good:
        raise WireError(reason)


def bytes_of(bits: int) -> int:
    """The bytes that hold this many bits."""
    return (bits + 7) // 8


def to_wire(parts: Parts, layout: Layout) -> Parts:
    """The parts in one dimension, those of few bits packed."""
    return {name: _packed(parts[name].reshape(-1), form.bits) for name, form in layout.items()}


def wire_layout(layout: Layout) -> dict[str, tuple[torch.dtype, int | None]]:
    """Dtype and length of each part on the wire; None for a length that is open."""
    return {name: (form.dtype, None if form.shape is None else _length(form)) for name, form in layout.items()}


def check_wire(parts: Parts, layout: Layout) -> None:
    """Refuse parts that do not lie on the wire as the layout says."""
    expect(list(parts) == list(layout), f"its parts are {', '.join(parts)}; expected: {', '.join(layout)}")
    for name, (dtype, length) in wire_layout(layout).items():
        given = parts[name]
        expect(
            given.dtype == dtype and given.dim() == 1 and length in (None, len(given)),
            f"part {name} is {given.dtype} of shape {list(given.shape)}; {dtype} of shape "
            f"[{'any' if length is None else length}] was expected",
        )


def from_wire(parts: Parts, layout: Layout) -> Parts:
    """Parts of this layout from checked ones as they lie on the wire."""
    return {name: _unpacked(part, layout[name]) for name, part in parts.items()}


def _length(form: Form) -> int:
    return bytes_of(form.numel * form.bits) if form.bits else form.numel


def _unpacked(part: Tensor, form: Form) -> Tensor:
    if form.shape is None:
        return part
    expect(len(part) == _length(form), f"it has {len(part):,} values where {_length(form):,} were expected")
    if form.bits:
        values = _spread(part, form.bits)
        expect(not bool(values[form.numel :].any()), "the padding of its last byte is not zero")
        part = values[: form.numel]
    if part.dtype == torch.bool:
        expect(not bool((part.view(torch.uint8) > 1).any()), "it has truth values other than 0 and 1")
    return part.view(form.shape)


def _spread(packed: Tensor, bits: int) -> Tensor:
    """All values of packed bytes."""
    if bits == 1:
        return torch.from_numpy(np.unpackbits(packed.numpy(), bitorder="little"))
    return torch.stack([packed >> shift & 2**bits - 1 for shift in range(0, 8, bits)], dim=1).view(-1)


def _packed(values: Tensor, bits: int | None) -> Tensor:
    """Several to a byte, the first lowest."""
    if not bits:
        return values
    if bits == 1:
        return torch.from_numpy(np.packbits(values.numpy(), bitorder="little"))
    together = 8 // bits
    packed = values[::together].clone()
    for place in range(1, together):
        later = values[place::together]
        packed[: len(later)] |= later << place * bits
    return packed


# ---- positions --------------------------------------------------------------------------------------------------


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
