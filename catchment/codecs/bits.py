"""Parts as they lie on the wire: in one dimension, small values several to a byte; and back, checked."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from catchment.codecs.stage import Form, Layout, Parts
from catchment.errors import WireError


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
