"""Stages that lose nothing: sparse values, Golomb-coded positions, zstd."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from catchment.codecs.packing import bytes_of, expect, from_gaps, from_wire, to_gaps, to_wire, wire_layout
from catchment.codecs.sparsification import MOST
from catchment.codecs.stage import Context, Form, Layout, Parts, Place, Stage, put
from catchment.errors import ExperimentError, WireError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

EXPANSION = 2**15  # zstd makes at most 128 KiB of the four bytes of a block; golomb gets the same limit
HIGHEST_LEVEL = 22  # of zstd


@dataclass(frozen=True)
class Sparse(Stage):
    """One bit per value, and the values that are not zero."""

    name: ClassVar[str] = "sparse"
    place: ClassVar[Place] = "packing"
    saves: ClassVar[bool] = True

    def applies(self, before: Layout) -> bool:
        """To values of any dtype whose number is known."""
        return "values" in before and before["values"].shape is not None

    def encode(self, parts: Parts, context: Context) -> Parts | None:
        """A bitmap and what is left, if that is smaller."""
        width = context.form.bits or 8 * context.form.dtype.itemsize
        elements = _integers(parts["values"].reshape(-1))
        mask = elements != 0
        left = int(np.count_nonzero(mask))
        if bytes_of(mask.size) + bytes_of(left * width) >= bytes_of(mask.size * width):
            return None
        bitmap = torch.from_numpy(np.packbits(mask, bitorder="little"))
        return put(parts, torch.from_numpy(elements[mask]).view(context.form.dtype), bitmap=bitmap)

    def layout(self, before: Layout, count: int) -> Layout:
        """A bit for every value, and those that were kept."""
        form = before["values"]
        return put(before, form._replace(shape=(count,)), bitmap=Form(torch.uint8, (bytes_of(form.numel),)))

    def decode(self, parts: Parts, context: Context) -> Parts:
        """Zeros where the bitmap has none."""
        form, values = context.form, parts["values"]
        bits = np.unpackbits(parts["bitmap"].numpy(), bitorder="little")
        expect(not bits[form.numel :].any(), "the padding of its bitmap is not zero")
        mask = bits[: form.numel].view(np.bool_)
        found = int(np.count_nonzero(mask))
        expect(found == len(values), f"its bitmap has {found:,} bits set for {len(values):,} values")
        left = _integers(values)
        elements = np.zeros(form.numel, dtype=left.dtype)
        elements[mask] = left
        return put(parts, torch.from_numpy(elements).view(form.dtype).view(form.shape or ()))

    def counts(self, before: Layout) -> bool:
        """Always."""
        return True


def _integers(values: Tensor) -> NDArray[Any]:
    """The elements as integers of their width: -0.0 is then not 0, and NaN equals itself."""
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()]
    return values.view(width).numpy()


@dataclass(frozen=True)
class Golomb(Stage):
    """Gaps between the positions of topk in place of the positions; for truth values, gaps between the rarer ones."""

    name: ClassVar[str] = "golomb"
    place: ClassVar[Place] = "packing"
    saves: ClassVar[bool] = True

    def applies(self, before: Layout) -> bool:
        """To positions and to truth values."""
        return "positions" in before or before["values"].dtype == torch.bool

    def encode(self, parts: Parts, context: Context) -> Parts | None:
        """Gaps in the place of positions; in that of truth values if they are smaller."""
        if "positions" in parts:
            gaps = to_gaps(parts["positions"].long().numpy())
            return {("gaps" if n == "positions" else n): part for n, part in parts.items()} | {"gaps": _string(gaps)}
        values = parts["values"].reshape(-1)
        rare = not bool(values.sum() * 2 > len(values))  # the truth value that is not more frequent
        gaps = bytes([rare]) + to_gaps((values == rare).nonzero().squeeze(1).numpy())
        return {"gaps": _string(gaps)} if len(gaps) < len(values) <= EXPANSION * len(gaps) else None

    def layout(self, before: Layout, count: int) -> Layout:
        """Gaps have the length that they need."""
        gaps = Form(torch.uint8)
        if "positions" in before:
            return {("gaps" if n == "positions" else n): form for n, form in before.items()} | {"gaps": gaps}
        return {"gaps": gaps}

    def decode(self, parts: Parts, context: Context) -> Parts:
        """Positions in ascending order, or truth values."""
        raw = parts["gaps"].numpy().data
        if "positions" in context.before:
            positions = from_gaps(raw, context.before["positions"].numel, MOST)
            return parts | {"positions": torch.from_numpy(positions).to(torch.int32)}
        count = context.form.numel
        expect(len(raw) > 1 and raw[0] <= 1, "it does not begin with the truth value that its gaps lead to")
        expect(count <= EXPANSION * len(raw), f"{len(raw):,} bytes of gaps are too few for {count:,} values")
        values = torch.full((count,), not raw[0], dtype=torch.bool)
        values[torch.from_numpy(from_gaps(raw[1:], context.kept, count))] = bool(raw[0])
        return {"values": values.view(context.form.shape or ())}

    def counts(self, before: Layout) -> bool:
        """The rarer truth values."""
        return "positions" not in before

    def count(self, given: Parts, made: Parts) -> int:
        """How many truth values are the rarer ones."""
        true = int(given["values"].sum())
        return min(true, given["values"].numel() - true)

    def conflict(self, chain: tuple[Stage, ...]) -> str:
        """Its bits look like noise."""
        after = [stage.name for stage in chain if stage.place == "compression"]
        return f"has {after[0]} after golomb, which leaves it nothing to compress; drop one of the two" if after else ""


def _string(raw: bytes) -> Tensor:
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)


@dataclass(frozen=True)
class Zstd(Stage):
    """All parts as one compressed string of bytes."""

    name: ClassVar[str] = "zstd"
    place: ClassVar[Place] = "compression"
    saves: ClassVar[bool] = True
    usage: ClassVar[str] = f"needs a level from 1 to {HIGHEST_LEVEL}, as in zstd(9)"
    level: int = 3
    """From 1, fastest, to the highest, smallest."""

    def __post_init__(self) -> None:
        if not 1 <= self.level <= HIGHEST_LEVEL:
            raise ExperimentError(f"{self} {self.usage}")

    def applies(self, before: Layout) -> bool:
        """To parts of any dtype whose sizes are known."""
        return all(form.shape is not None for form in before.values())

    def encode(self, parts: Parts, context: Context) -> Parts | None:
        """Squeeze the bytes of all parts, if that makes them fewer."""
        planes = _planes(list(to_wire(parts, context.before).values()))
        squeezed = zstd.compress(planes.data, level=self.level)
        return {"zstd": _string(squeezed)} if len(squeezed) < planes.size else None

    def layout(self, before: Layout, count: int) -> Layout:
        """A string of bytes."""
        return {"zstd": Form(torch.uint8)}

    def decode(self, parts: Parts, context: Context) -> Parts:
        """Decompress exactly the bytes that the layout needs."""
        squeezed, expected = parts["zstd"], wire_layout(context.before)
        size = sum(dtype.itemsize * (length or 0) for dtype, length in expected.values())
        expect(
            0 < len(squeezed) < size <= EXPANSION * len(squeezed),
            f"{len(squeezed):,} bytes of zstd do not hold the {size:,} bytes that its shape needs",
        )
        try:
            reader = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _window(size)})
            raw = reader.decompress(squeezed.numpy().data, max_length=size)
        except zstd.ZstdError as error:
            raise WireError(f"zstd cannot read it: {error}") from None
        expect(
            len(raw) == size and reader.eof and not reader.unused_data,
            f"{len(squeezed):,} bytes of zstd are not one string of {size:,} bytes",
        )
        planes, start, found = np.frombuffer(raw, dtype=np.uint8), 0, {}
        for name, (dtype, length) in expected.items():
            end = start + dtype.itemsize * (length or 0)
            found[name] = _from_planes(planes[start:end], dtype)
            start = end
        return from_wire(found, context.before)


def _window(size: int) -> int:
    """The largest window that content of this size needs, as a power of two: a header cannot ask for more memory."""
    low, high = zstd.DecompressionParameter.window_log_max.bounds()
    return min(max(size.bit_length(), low), high)


def _planes(parts: list[Tensor]) -> NDArray[np.uint8]:
    """The bytes of all parts; of wide elements all lowest bytes first, and so on: similar bytes become adjacent."""
    planes = [part.view(torch.uint8).numpy().reshape(len(part), -1).T.reshape(-1) for part in parts if len(part)]
    return planes[0] if len(planes) == 1 else np.concatenate(planes)


def _from_planes(planes: NDArray[np.uint8], dtype: torch.dtype) -> Tensor:
    """A part of wide elements; the copy in row-major order is aligned."""
    if not len(planes):
        return torch.empty(0, dtype=dtype)
    return torch.from_numpy(planes.reshape(dtype.itemsize, -1).T.reshape(-1).copy()).view(dtype)
