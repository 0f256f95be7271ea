"""Packages of positions: which of a tensor's numbers are sent, said in few bits where whole kernels are among them.

Wu et al., Reducing Communication Cost in Federated Learning by Exploiting the CNNs Structures, AAAI 2022.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from catchment.codecs.packing import Positions, bytes_of, expect, from_bits, from_gaps, to_bits, to_gaps
from catchment.codecs.sparsification import kept, largest, scattered
from catchment.codecs.stage import Context, Form, Layout, Parts, Place, Stage, put
from catchment.errors import ExperimentError, WireError


@dataclass(frozen=True)
class Packages(Stage):
    """The largest magnitudes, and all of a kernel if more than half of it is among them; positions in packages."""

    name: ClassVar[str] = "smartidx"
    place: ClassVar[Place] = "selection"
    saves: ClassVar[bool] = True
    loses: ClassVar[bool] = True
    partial: ClassVar[bool] = True
    finite: ClassVar[bool] = True
    usage: ClassVar[str] = "needs the share to keep, above 0 and at most 1, as in smartidx(0.01)"
    share: float
    """The share of the numbers of a tensor, before kernels are completed."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ExperimentError(f"{self} {self.usage}")

    def encode(self, parts: Parts, context: Context) -> Parts:
        """Pick the largest, complete kernels, pack the positions."""
        values = parts["values"]
        flat, shape = values.reshape(-1), tuple(values.shape)
        positions = with_whole_kernels(largest(flat, kept(self.share, context.form)), shape)
        index = to_packages(positions.long().numpy(), shape)
        return put(parts, flat[positions], index=torch.frombuffer(bytearray(index), dtype=torch.uint8))

    def layout(self, before: Layout, count: int) -> Layout:
        """How many values there are is known from the packages."""
        return put(before, before["values"]._replace(shape=None), index=Form(torch.uint8))

    def measured(self, parts: Parts, before: Layout) -> int:
        """The positions in the packages, at least the share."""
        form = before["values"]
        found, least = packed_positions(parts["index"].numpy().data, form.shape or ()), kept(self.share, form)
        expect(found >= least, f"it has {found:,} positions; at least {least:,} were expected")
        return found

    def decode(self, parts: Parts, context: Context) -> Parts:
        """Zeros where nothing was sent."""
        positions = from_packages(parts["index"].numpy().data, context.form.shape or ())
        return put(parts, scattered(parts["values"], torch.from_numpy(positions), context.form))

    def conflict(self, chain: tuple[Stage, ...]) -> str:
        """Its positions are coded already."""
        after = [stage.name for stage in chain if stage.place in ("packing", "compression")]
        return (
            f"has {after[0]} after smartidx, which codes its positions itself; leave {after[0]} away" if after else ""
        )


def kernel_size(shape: tuple[int, ...]) -> int:
    """Numbers in a kernel, one plane of a convolution's weights; 1 for all other tensors."""
    return shape[2] * shape[3] if len(shape) == 4 else 1


def with_whole_kernels(positions: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The positions, and all others of kernels of which they are more than half."""
    size = kernel_size(shape)
    if size == 1:
        return positions
    chosen = torch.zeros(math.prod(shape) // size, size, dtype=torch.bool)
    chosen.view(-1)[positions.long()] = True
    chosen[chosen.sum(1) > size / 2] = True
    return chosen.view(-1).nonzero().squeeze(1).to(positions.dtype)


def to_packages(positions: Positions, shape: tuple[int, ...]) -> bytes:
    """Kernels that are whole; patterns, each with the kernels that have it; and positions one by one.

    Kernels with the same pattern of chosen numbers are a package of their own where that takes fewer bits than their
    positions one by one.
    """
    size = kernel_size(shape)
    chosen = np.zeros((math.prod(shape) // size, size), dtype=np.bool_)
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
                packages.append(to_bits(example) + _counted(kernels))
                chosen[kernels] = False
    return _counted(whole) + _number(len(packages)) + b"".join(packages) + _counted(np.flatnonzero(chosen))


def from_packages(raw: bytes | memoryview, shape: tuple[int, ...]) -> Positions:
    """The positions in packages."""
    size = kernel_size(shape)
    chosen = np.zeros((math.prod(shape) // size, size), dtype=np.bool_)
    reader = _Reader(memoryview(raw))
    whole = reader.counted(len(chosen))
    expect(size > 1 or not len(whole), "it has whole kernels, and no kernels")
    chosen[whole] = True
    packages = reader.number()
    expect(size > 1 or not packages, "it has patterns of kernels, and no kernels")
    for _ in range(packages):
        pattern = from_bits(reader.take(bytes_of(size)))
        expect(not pattern[size:].any() and bool(pattern.any()), "one of its patterns is none")
        kernels = reader.counted(len(chosen))
        expect(not chosen[kernels].any(), "one of its kernels is in two packages")
        chosen[kernels] = pattern[:size]
    alone = reader.counted(chosen.size)
    expect(not chosen.reshape(-1)[alone].any(), "one of its positions is in two packages")
    chosen.reshape(-1)[alone] = True
    expect(not len(reader.rest), "its packages are followed by something else")
    return np.flatnonzero(chosen)


def packed_positions(raw: bytes | memoryview, shape: tuple[int, ...]) -> int:
    """How many positions packages say that they have; nothing else of them is read."""
    size = kernel_size(shape)
    reader = _Reader(memoryview(raw))
    found = reader.skipped() * size
    for _ in range(reader.number()):
        pattern = from_bits(reader.take(bytes_of(size)))
        found += int(pattern.sum()) * reader.skipped()
    return found + reader.skipped()


class _Reader:
    """Takes numbers and positions from the front of a string of bytes."""

    def __init__(self, raw: memoryview) -> None:
        self.rest = raw

    def take(self, length: int) -> memoryview:
        expect(length <= len(self.rest), f"its packages end {length - len(self.rest):,} bytes too early")
        taken, self.rest = self.rest[:length], self.rest[length:]
        return taken

    def number(self) -> int:
        """Seven bits per byte, the lowest first; the last byte is below 128."""
        number = 0
        for shift in range(0, 63, 7):
            byte = self.take(1)[0]
            number |= (byte & 127) << shift
            if byte < 128:
                return number
        raise WireError("a number in its packages does not end")

    def skipped(self) -> int:
        """How many positions are here, without reading them."""
        count = self.number()
        self.take(self.number() if count else 0)
        return count

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
