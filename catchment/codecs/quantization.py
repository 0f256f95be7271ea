"""Stages that send coarser numbers: of 16, 8 or 4 bits, or their signs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from catchment.codecs.packing import expect
from catchment.codecs.stage import CannotCarry, Context, Form, Layout, Parts, Stage, put
from catchment.errors import ExperimentError

LARGEST = 1e38  # number that can be carried: half a step beyond it must still be a float32
SMALLEST_STEP = torch.finfo(torch.float32).tiny  # its reciprocal is finite
SHRINK = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)  # ranges that int4 tries
TRIED = 4096  # numbers of a channel that it tries them on
BLOCK = 2**18  # numbers quantised at a time: they stay in the cache between passes


# ---- 16 bits ----------------------------------------------------------------------------------------------------


class _Cast(Stage):
    """Two bytes per number."""

    saves: ClassVar[bool] = True
    loses: ClassVar[bool] = True
    dtype: ClassVar[torch.dtype]

    def applies(self, before: Layout) -> bool:
        """To numbers that are wider."""
        return super().applies(before) and before["values"].dtype.itemsize > 2

    def encode(self, parts: Parts, context: Context) -> Parts:
        """Round; what is finite stays finite."""
        return put(parts, _narrow(parts["values"], self.dtype))

    def layout(self, before: Layout, count: int) -> Layout:
        """The same shape, narrower."""
        return put(before, before["values"]._replace(dtype=self.dtype))

    def decode(self, parts: Parts, context: Context) -> Parts:
        """The same numbers, wider."""
        return put(parts, parts["values"].to(context.form.dtype))


@dataclass(frozen=True)
class Float16(_Cast):
    """Half precision: a range up to 65,504."""

    name: ClassVar[str] = "fp16"
    dtype: ClassVar[torch.dtype] = torch.float16


@dataclass(frozen=True)
class BFloat16(_Cast):
    """The range of float32 with 8 bits of the fraction."""

    name: ClassVar[str] = "bf16"
    dtype: ClassVar[torch.dtype] = torch.bfloat16


def _narrow(values: Tensor, dtype: torch.dtype) -> Tensor:
    """A cast that makes no infinities: what is finite goes to the nearest finite number."""
    narrow = values.to(dtype)
    low, high = torch.aminmax(narrow)
    if not (low.isfinite() and high.isfinite()):
        largest = torch.finfo(dtype).max
        narrow = torch.where(values.isinf(), narrow, narrow.clamp(-largest, largest))
    return narrow


# ---- 8 and 4 bits -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Quantised(Stage):
    """Evenly spaced levels, with a range for each index of an axis."""

    saves: ClassVar[bool] = True
    loses: ClassVar[bool] = True
    finite: ClassVar[bool] = True
    bits: ClassVar[int]
    axis: int = 1
    """Every index of it has a range of its own; 0 for kernels, 1 for channels of feature maps."""

    def __post_init__(self) -> None:
        if self.axis < 0:
            raise ExperimentError(f"{self} {self.usage}")

    def encode(self, parts: Parts, context: Context) -> Parts:
        """Levels, and the low and high end of each range."""
        values = parts["values"]
        cube = values.float().view(channels(values.shape, self.axis))
        ranges = _ranges(cube, self.bits)
        return put(parts, _quantise(cube, ranges, self.bits).view(values.shape), ranges=ranges)

    def layout(self, before: Layout, count: int) -> Layout:
        """Levels in the shape of the values; all low ends, then all high ends."""
        shape = before["values"].shape
        ends = 2 * (1 if shape is None else channels(shape, self.axis)[1])
        levels = Form(torch.uint8, shape, self.bits if self.bits < 8 else None)
        return put(before, levels, ranges=Form(torch.float32, (ends,)))

    def decode(self, parts: Parts, context: Context) -> Parts:
        """The middle of each level."""
        low, high = parts["ranges"].view(2, -1)
        expect(
            bool(((low <= 0) & (low >= -LARGEST) & (high >= 0) & (high <= LARGEST)).all()),
            f"a range does not reach from at least -{LARGEST:g} over 0 to at most {LARGEST:g}",
        )
        levels, dtype = parts["values"], context.form.dtype
        values = _dequantise(levels.reshape(channels(levels.shape, self.axis)), parts["ranges"], self.bits)
        values = _narrow(values, dtype) if dtype.itemsize < 4 else values.to(dtype)
        return put(parts, values.view(levels.shape))


@dataclass(frozen=True)
class Int8(_Quantised):
    """One byte per number."""

    name: ClassVar[str] = "int8"
    usage: ClassVar[str] = "needs an axis that counts from 0, as in int8(0)"
    bits: ClassVar[int] = 8


@dataclass(frozen=True)
class Int4(_Quantised):
    """Half a byte per number; a range leaves out its tails where that makes the squared error smaller."""

    name: ClassVar[str] = "int4"
    usage: ClassVar[str] = "needs an axis that counts from 0, as in int4(0)"
    bits: ClassVar[int] = 4


def channels(shape: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    """Elements before, along and after the axis that has a range for each index; one range without such an axis."""
    if len(shape) < 2 or axis >= len(shape):
        return 1, 1, math.prod(shape)
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def _ranges(cube: Tensor, bits: int) -> Tensor:
    """Low and high end of each channel, with zero between them."""
    low, high = cube.amin(2).amin(0).clamp(max=0), cube.amax(2).amax(0).clamp(min=0)
    ranges = torch.stack([low, high])  # [2, channels]
    if not bool(ranges.isfinite().all()):
        raise CannotCarry("NaN or infinity")
    if float(ranges.abs().max()) > LARGEST:
        raise CannotCarry(f"a number beyond {LARGEST:g}")
    if bits == Int4.bits:  # with few levels, cutting off the tails is worth its error
        ranges = ranges * _best_shrink(cube, ranges)
    return ranges.reshape(-1)


def _best_shrink(cube: Tensor, ranges: Tensor) -> Tensor:
    """For each channel the factor on its range that gives the least squared error, on evenly spaced numbers of it.

    Summed in NumPy, whose order of summing does not depend on the number of threads.
    """
    before, count, after = cube.shape
    tried = min(before * after, TRIED)
    picks = torch.arange(tried) * (before * after) // tried
    reach = ranges.abs().amax(0).clamp(min=SMALLEST_STEP)  # relative to it, no square overflows
    sample = (cube[picks // after, :, picks % after] / reach).t().contiguous().numpy()  # [channels, tried]
    errors = np.empty((len(SHRINK), count), dtype=np.float32)
    for row, shrink in enumerate(SHRINK):
        step, zero = _grid(ranges / reach * shrink, Int4.bits)
        levels = np.clip(np.floor(sample * (1 / step) + (zero + 0.5)), 0, 15)
        errors[row] = np.square((levels - zero) * step - sample).sum(axis=1)
    return torch.tensor(SHRINK)[torch.from_numpy(errors.argmin(axis=0))]  # of equal ones the widest


def _grid(ranges: Tensor, bits: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Step and zero point of each channel, [channels, 1] both: level q stands for (q - zero) * step."""
    low, high = ranges.reshape(2, -1, 1).numpy()
    levels = np.float32(2**bits - 1)
    step = np.maximum((high - low) / levels, np.float32(SMALLEST_STEP))
    return step, np.clip(np.rint(-low / step), 0, levels)


def _quantise(cube: Tensor, ranges: Tensor, bits: int) -> Tensor:
    """Levels minus the zero point, modulo 2^bits: zero is stored as 0."""
    step, zero = map(torch.from_numpy, _grid(ranges, bits))
    factor, offset, whole_zero = 1 / step, zero + 0.5, zero.to(torch.uint8)
    stored = torch.empty(cube.shape, dtype=torch.uint8)
    rows = max(1, BLOCK // cube[0].numel())
    scratch = torch.empty((min(rows, len(cube)), *cube.shape[1:]))
    for start in range(0, len(cube), rows):
        block = stored[start : start + rows]
        level = torch.mul(cube[start : start + rows], factor, out=scratch[: len(block)])
        block.copy_(level.add_(offset).clamp_(0, 2**bits - 0.5)).sub_(whole_zero)  # the copy rounds down
    return stored.bitwise_and_(2**bits - 1) if bits < 8 else stored


def _dequantise(stored: Tensor, ranges: Tensor, bits: int) -> Tensor:
    step, zero = map(torch.from_numpy, _grid(ranges, bits))
    whole_zero = zero.to(torch.uint8)
    values = torch.empty(stored.shape)
    rows = max(1, BLOCK // stored[0].numel())
    for start in range(0, len(stored), rows):
        level = (stored[start : start + rows] + whole_zero).bitwise_and_(2**bits - 1)
        values[start : start + rows].copy_(level).sub_(zero).mul_(step)
    return values


# ---- 1 bit ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sign(Stage):
    """One bit per number, and the mean magnitude."""

    name: ClassVar[str] = "sign"
    saves: ClassVar[bool] = True
    loses: ClassVar[bool] = True
    partial: ClassVar[bool] = True
    finite: ClassVar[bool] = True

    def encode(self, parts: Parts, context: Context) -> Parts:
        """Signs and their scale, summed in NumPy, whose order does not depend on the number of threads."""
        values = parts["values"]
        scale = np.abs(values.double().numpy()).sum() / values.numel()
        if not scale <= LARGEST:
            raise CannotCarry(f"a number beyond {LARGEST:g}" if math.isfinite(scale) else "NaN or infinity")
        return put(parts, (values >= 0).to(torch.uint8), ranges=torch.tensor([scale], dtype=torch.float32))

    def layout(self, before: Layout, count: int) -> Layout:
        """Bits in the shape of the values, and one scale."""
        return put(before, Form(torch.uint8, before["values"].shape, 1), ranges=Form(torch.float32, (1,)))

    def decode(self, parts: Parts, context: Context) -> Parts:
        """Plus or minus the scale."""
        scale = parts["ranges"]
        expect(0 <= float(scale) <= LARGEST, f"its scale is not between 0 and {LARGEST:g}")
        values = torch.where(parts["values"].bool(), scale, -scale).to(context.form.dtype)
        return put(parts, values.view(parts["values"].shape))

    def conflict(self, chain: tuple[Stage, ...]) -> str:
        """The largest magnitudes are nearly equal, so their signs carry little more than their positions."""
        selection = [stage.name for stage in chain if stage.place == "selection"]
        return f"has sign after {selection[0]}, whose values would all be one; drop one of the two" if selection else ""
