"""What the stages of a chain do to the numbers of one tensor, and how it is undone.

The work has two halves. `coarsen` loses what a chain may lose (topk, smartidx, fp16, bf16, int8, int4, sign); `restore`
is what the receiver makes of the outcome, and the sender calls the same function to know it bit for bit. `pack` turns
the outcome into parts for the wire without losing anything (nibbles, bits, sparse, golomb, packages, zstd); `unpack`
undoes that and trusts nothing that came from the other side.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from catchment.codecs import positions as coded
from catchment.codecs.rules import LOSSLESS, PICKING, Chain
from catchment.errors import ProtocolError, WireError, needs

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
CASTS = {"fp16": torch.float16, "bf16": torch.bfloat16}
BITS = {"int8": 8, "int4": 4}

LARGEST = 1e38  # that int8 and int4 carry: half a step beyond it must still be a float32
SMALLEST_STEP = torch.finfo(torch.float32).tiny  # its reciprocal is finite
SHRINK = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)  # ranges that int4 tries
TRIED = 4096  # numbers of a channel that it tries them on
BLOCK = 2**18  # numbers quantised at a time: they stay in the cache between passes
EXPANSION = 2**15  # zstd makes at most 128 KiB of the four bytes of a block; golomb is held to that, too


class Coarse(NamedTuple):
    """The numbers of a tensor after the stages that lose something."""

    values: Tensor  # in the shape of the tensor, or [k] after topk and smartidx; uint8 after int8, int4 and sign
    ranges: Tensor | None = None  # [2 * channels] float32: the low ends, then the high ends; [1] after sign: its scale
    positions: Tensor | None = None  # [k] int32, ascending, in the row-major order of the tensor


class Packed(NamedTuple):
    """Parts for the wire, and the chain that made them: stages that would not help are left out."""

    parts: dict[str, Tensor]  # each one-dimensional
    chain: Chain
    nonzero: int | None = None  # values that sparse kept; truth values that golomb kept


def applicable(chain: Chain, dtype: torch.dtype) -> Chain:
    """The stages that can do something for this dtype."""
    if dtype not in FLOATS:
        chain = Chain(tuple(stage for stage in chain.stages if stage.name in LOSSLESS))
        return chain if dtype == torch.bool else chain.without("golomb")
    if "topk" not in chain:
        chain = chain.without("golomb")
    return chain.without(*CASTS) if dtype.itemsize <= 2 else chain


def is_finite(values: Tensor) -> bool:
    """Whether there is neither NaN nor infinity among the values."""
    return bool(values.sum().isfinite()) or bool(values.isfinite().all())  # a sum alone may overflow


def arrow() -> Any:
    """The package that has zstd; not every device needs it."""
    with needs("codec zstd", "zstd"):
        import pyarrow
    return pyarrow


# ---- what is lost -----------------------------------------------------------------------------------------------


def coarsen(values: Tensor, chain: Chain, name: str) -> Coarse:
    """Put row-major values through the stages that lose something; `name` is for errors."""
    positions = None
    if picking := chain.first(*PICKING):
        if not is_finite(values):
            raise not_carried(name, picking.name)
        flat, shape = values.reshape(-1), values.shape
        positions = _largest(flat, values_shape(chain, shape).numel(), name, picking.name)
        if picking.name == "smartidx":
            positions = coded.with_whole_kernels(positions, shape)
        values = flat[positions]
    if "sign" in chain:
        return Coarse((values >= 0).to(torch.uint8), _scale(values, name))
    if cast := chain.first(*CASTS):
        return Coarse(_narrow(values, CASTS[cast.name]), None, positions)
    if quantiser := chain.first(*BITS):
        bits, shape = BITS[quantiser.name], values.shape
        cube = values.float().view(channels(shape, quantiser.axis))
        ranges = _ranges(cube, bits, name, quantiser.name)
        return Coarse(_quantise(cube, ranges, bits).view(shape), ranges, positions)
    return Coarse(values, None, positions)


def restore(coarse: Coarse, chain: Chain, dtype: torch.dtype, shape: torch.Size) -> Tensor:
    """The tensor that the receiver makes of coarse values."""
    values = coarse.values
    if "sign" in chain and coarse.ranges is not None:
        return torch.where(values.bool(), coarse.ranges, -coarse.ranges).to(dtype).view(shape)
    if (quantiser := chain.first(*BITS)) and coarse.ranges is not None:
        cube = values.reshape(channels(values.shape, quantiser.axis))
        values = _dequantise(cube, coarse.ranges, BITS[quantiser.name])
        values = _narrow(values, dtype) if dtype.itemsize < 4 else values
    values = values.to(dtype).reshape(-1)
    if coarse.positions is None:
        return values.view(shape)
    whole = torch.zeros(shape.numel(), dtype=dtype)
    whole[coarse.positions.long()] = values
    return whole.view(shape)


def not_carried(name: str, stage: str) -> ProtocolError:
    """The error for values that a stage cannot carry."""
    return ProtocolError(f"{name} holds NaN or infinity, which {stage} cannot carry")


def too_large(name: str, stage: str) -> ProtocolError:
    """The error for numbers that are finite and still too much for a stage."""
    return ProtocolError(f"{name} holds a number beyond {LARGEST:g}, which {stage} cannot carry")


def values_shape(chain: Chain, shape: torch.Size) -> torch.Size:
    """The shape of the values of a tensor of this shape: topk keeps its share of them, at least one, in a row.

    smartidx keeps as many or more.
    """
    picking = chain.first(*PICKING)
    return torch.Size([max(1, round(picking.share * shape.numel()))]) if picking else shape


def channels(shape: torch.Size, axis: int) -> tuple[int, int, int]:
    """Elements before, along and after the axis that has a range for each index; one range without such an axis."""
    if len(shape) < 2 or axis >= len(shape):
        return 1, 1, shape.numel()
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def _largest(flat: Tensor, count: int, name: str, stage: str) -> Tensor:
    """Positions of the largest magnitudes, ascending; of equal ones the first."""
    if flat.numel() >= 2**31:
        raise ProtocolError(f"{name} has {flat.numel():,} elements; {stage} counts positions in 32 bits")
    magnitudes = flat.abs()
    threshold = magnitudes.topk(count, sorted=False).values.min()
    above = (magnitudes > threshold).nonzero().squeeze(1)
    ties = (magnitudes == threshold).nonzero().squeeze(1)[: count - len(above)]
    return torch.cat([above, ties]).sort().values.to(torch.int32)


def _scale(values: Tensor, name: str) -> Tensor:
    """The mean magnitude, [1] float32; summed in NumPy, whose order does not depend on the number of threads."""
    scale = np.abs(values.double().numpy()).sum() / values.numel()
    if not scale <= LARGEST:
        raise not_carried(name, "sign") if not math.isfinite(scale) else too_large(name, "sign")
    return torch.tensor([scale], dtype=torch.float32)


def _narrow(values: Tensor, dtype: torch.dtype) -> Tensor:
    """A cast that makes no infinities: what is finite goes to the nearest finite number."""
    narrow = values.to(dtype)
    low, high = torch.aminmax(narrow)
    if not (low.isfinite() and high.isfinite()):
        largest = torch.finfo(dtype).max
        narrow = torch.where(values.isinf(), narrow, narrow.clamp(-largest, largest))
    return narrow


def _ranges(cube: Tensor, bits: int, name: str, stage: str) -> Tensor:
    """Low and high end of each channel, with zero between them."""
    low, high = cube.amin(2).amin(0).clamp(max=0), cube.amax(2).amax(0).clamp(min=0)
    ranges = torch.stack([low, high])  # [2, channels]
    if not bool(ranges.isfinite().all()):
        raise not_carried(name, stage)
    if float(ranges.abs().max()) > LARGEST:
        raise too_large(name, stage)
    if bits == BITS["int4"]:  # with few levels, cutting off the tails is worth its error
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
        step, zero = _grid(ranges / reach * shrink, 4)
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


# ---- what is not ------------------------------------------------------------------------------------------------


def pack(coarse: Coarse, chain: Chain, shape: torch.Size) -> Packed:
    """The parts that travel of a tensor of this shape."""
    values, nonzero, width = coarse.values.reshape(-1), None, _width(chain, coarse.values.dtype)
    parts: dict[str, Tensor] = {}
    if values.dtype == torch.bool and "golomb" in chain:
        rare = not bool(values.sum() * 2 > len(values))  # the truth value that is not more frequent
        chosen = (values == rare).nonzero().squeeze(1).numpy()
        gaps = bytes([rare]) + coded.to_gaps(chosen)
        if len(gaps) < len(values) <= EXPANSION * len(gaps):
            return Packed({"gaps": _string(gaps)}, chain, len(chosen))
        chain = chain.without("golomb")
    if coarse.positions is not None and "smartidx" in chain:
        parts["index"] = _string(coded.to_packages(coarse.positions.long().numpy(), shape))
    elif coarse.positions is not None and "golomb" in chain:
        parts["gaps"] = _string(coded.to_gaps(coarse.positions.long().numpy()))
    elif coarse.positions is not None:
        parts["positions"] = coarse.positions
    if coarse.ranges is not None:
        parts["ranges"] = coarse.ranges
    if "sparse" in chain:
        elements = _integers(values)
        mask = elements != 0
        count = int(np.count_nonzero(mask))
        if _bytes_of_bits(mask.size) + _bytes_of_bits(count * width) < _bytes_of_bits(mask.size * width):
            parts["bitmap"] = torch.from_numpy(np.packbits(mask, bitorder="little"))
            values, nonzero = torch.from_numpy(elements[mask]).view(values.dtype), count
        else:
            chain = chain.without("sparse")
    parts["values"] = _pack_nibbles(values) if width == 4 else _pack_bits(values) if width == 1 else values
    if zstd := chain.first("zstd"):
        planes = _planes(list(parts.values()))
        squeezed = arrow().Codec("zstd", compression_level=zstd.level).compress(planes)
        if squeezed.size < planes.size:
            parts = {"zstd": torch.from_numpy(np.frombuffer(squeezed, dtype=np.uint8).copy())}
        else:
            chain = chain.without("zstd")
    return Packed(parts, chain, nonzero)


def layout(
    chain: Chain, dtype: torch.dtype, shape: torch.Size, nonzero: int | None
) -> dict[str, tuple[torch.dtype, int | None]]:
    """Dtype and length of each part before zstd; None for lengths that the part itself decides, never with zstd."""
    found: dict[str, tuple[torch.dtype, int | None]] = {}
    if dtype == torch.bool and "golomb" in chain:
        return {"gaps": (torch.uint8, None)}
    shape = values_shape(chain, shape)
    count = shape.numel()
    if "smartidx" in chain:
        found["index"] = (torch.uint8, None)
    elif "golomb" in chain:
        found["gaps"] = (torch.uint8, None)
    elif "topk" in chain:
        found["positions"] = (torch.int32, count)
    if quantiser := chain.first(*BITS):
        found["ranges"] = (torch.float32, 2 * channels(shape, quantiser.axis)[1])
        dtype = torch.uint8
    if "sign" in chain:
        found["ranges"] = (torch.float32, 1)
        dtype = torch.uint8
    if cast := chain.first(*CASTS):
        dtype = CASTS[cast.name]
    if nonzero is not None:
        found["bitmap"] = (torch.uint8, _bytes_of_bits(count))
        count = nonzero
    width = _width(chain, dtype)
    length = _bytes_of_bits(count * width) if width < 8 else count
    found["values"] = (dtype, None if "smartidx" in chain else length)
    return found


def unpack(
    parts: dict[str, Tensor], chain: Chain, dtype: torch.dtype, shape: torch.Size, nonzero: int | None
) -> Coarse:
    """Coarse values from parts that came over the wire; everything is checked before it is used."""
    expected = layout(chain, dtype, shape, nonzero)
    if "zstd" in chain:
        _expect(list(parts) == ["zstd"], "its only part is not zstd")
        parts = _from_planes(parts["zstd"], expected)
    _expect(list(parts) == list(expected), f"its parts are {', '.join(parts)}; expected: {', '.join(expected)}")
    for part, (kind, length) in expected.items():
        given = parts[part]
        _expect(
            given.dtype == kind and given.dim() == 1 and length in (None, len(given)),
            f"part {part} is {given.dtype} of shape {list(given.shape)}; {kind} of shape "
            f"[{'any' if length is None else length}] was expected",
        )
    if dtype == torch.bool and "golomb" in chain:
        return Coarse(_from_rare(parts["gaps"], nonzero or 0, shape))
    positions = _positions(parts, chain, shape)
    coarse_shape, values = values_shape(chain, shape), parts["values"]
    if positions is not None and "smartidx" in chain:
        coarse_shape = positions.shape
    count, width = coarse_shape.numel(), _width(chain, values.dtype)
    kept = count if nonzero is None else nonzero
    length = _bytes_of_bits(kept * width) if width < 8 else kept
    _expect(len(values) == length, f"it has {len(values):,} values where {length:,} were expected")
    if width == 4:
        values = _unpack_nibbles(values, kept)
    if width == 1:
        values = _unpack_bits(values, kept)
    if nonzero is not None:
        values = _scatter(values, parts["bitmap"], count)
    if values.dtype == torch.bool:
        _expect(not bool((values.view(torch.uint8) > 1).any()), "it has truth values other than 0 and 1")
    ranges = parts.get("ranges")
    if ranges is not None and "sign" in chain:
        _expect(0 <= float(ranges) <= LARGEST, f"its scale is not between 0 and {LARGEST:g}")
    elif ranges is not None:
        low, high = ranges.view(2, -1)
        _expect(
            bool(((low <= 0) & (low >= -LARGEST) & (high >= 0) & (high <= LARGEST)).all()),
            f"a range does not reach from at least -{LARGEST:g} over 0 to at most {LARGEST:g}",
        )
    return Coarse(values.view(coarse_shape), ranges, positions)


def _positions(parts: dict[str, Tensor], chain: Chain, shape: torch.Size) -> Tensor | None:
    """Where the values of topk and smartidx belong, ascending; None if all values are there."""
    least = values_shape(chain, shape).numel()
    if "smartidx" in chain:
        _expect(
            len(parts["values"]) * 2 >= least,
            f"it has {len(parts['values']):,} values; at least {least:,} belong there",
        )
        found = coded.from_packages(parts["index"].numpy().data, shape)
        _expect(len(found) >= least, f"it has {len(found):,} positions; at least {least:,} were expected")
        return torch.from_numpy(found)
    if "golomb" in chain:
        return torch.from_numpy(coded.from_gaps(parts["gaps"].numpy().data, least, shape.numel()))
    if "topk" not in chain:
        return None
    positions = parts["positions"]
    rising = bool((positions[1:] > positions[:-1]).all())
    _expect(
        rising and int(positions[0]) >= 0 and int(positions[-1]) < shape.numel(),
        f"positions do not rise within 0 to {shape.numel() - 1}",
    )
    return positions


def _from_rare(gaps: Tensor, count: int, shape: torch.Size) -> Tensor:
    """Truth values from the positions of those that are not more frequent."""
    raw = gaps.numpy().data
    _expect(len(raw) > 1 and raw[0] <= 1, "it does not begin with the truth value that its gaps lead to")
    _expect(
        shape.numel() <= EXPANSION * len(raw), f"{len(raw):,} bytes of gaps are too few for {shape.numel():,} values"
    )
    values = torch.full((shape.numel(),), not raw[0], dtype=torch.bool)
    values[torch.from_numpy(coded.from_gaps(raw[1:], count, shape.numel()))] = bool(raw[0])
    return values.view(shape)


def _expect(good: bool, reason: str) -> None:
    if not good:
        raise WireError(reason)


def _bytes_of_bits(count: int) -> int:
    return (count + 7) // 8


def _width(chain: Chain, dtype: torch.dtype) -> int:
    """Bits of a value on the wire."""
    return 1 if "sign" in chain else 4 if "int4" in chain else 8 * dtype.itemsize


def _string(raw: bytes) -> Tensor:
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)


def _integers(values: Tensor) -> NDArray[Any]:
    """The elements as integers of their width: -0.0 is then not 0, and NaN equals itself."""
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()]
    return values.view(width).numpy()


def _scatter(values: Tensor, bitmap: Tensor, count: int) -> Tensor:
    bits = np.unpackbits(bitmap.numpy(), bitorder="little")
    _expect(not bits[count:].any(), "the padding of its bitmap is not zero")
    mask = bits[:count].view(np.bool_)
    found = int(np.count_nonzero(mask))
    _expect(found == len(values), f"its bitmap has {found:,} bits set for {len(values):,} values")
    kept = _integers(values)
    elements = np.zeros(count, dtype=kept.dtype)
    elements[mask] = kept
    return torch.from_numpy(elements).view(values.dtype)


def _pack_nibbles(values: Tensor) -> Tensor:
    """Two to a byte, the first in the lower half."""
    packed = values[::2].clone()
    packed[: len(values) // 2] |= values[1::2] << 4
    return packed


def _unpack_nibbles(packed: Tensor, count: int) -> Tensor:
    values = torch.stack([packed & 15, packed >> 4], dim=1).view(-1)
    _expect(not bool(values[count:].any()), "the padding of its last nibble is not zero")
    return values[:count]


def _pack_bits(values: Tensor) -> Tensor:
    """Eight to a byte, the first lowest."""
    return torch.from_numpy(np.packbits(values.numpy(), bitorder="little"))


def _unpack_bits(packed: Tensor, count: int) -> Tensor:
    values = np.unpackbits(packed.numpy(), bitorder="little")
    _expect(not values[count:].any(), "the padding of its last byte is not zero")
    return torch.from_numpy(values[:count])


def _planes(parts: list[Tensor]) -> NDArray[np.uint8]:
    """The bytes of all parts; of wide elements first all lowest bytes, and so on: like bytes lie side by side."""
    planes = [part.view(torch.uint8).numpy().reshape(len(part), -1).T.reshape(-1) for part in parts if len(part)]
    return planes[0] if len(planes) == 1 else np.concatenate(planes)


def _from_planes(squeezed: Tensor, layout: dict[str, tuple[torch.dtype, int | None]]) -> dict[str, Tensor]:
    expected = {part: (kind, length or 0) for part, (kind, length) in layout.items()}
    size = sum(kind.itemsize * length for kind, length in expected.values())
    _expect(squeezed.dtype == torch.uint8 and squeezed.dim() == 1, "part zstd is not a string of bytes")
    _expect(
        0 < len(squeezed) < size <= EXPANSION * len(squeezed),
        f"{len(squeezed):,} bytes of zstd do not hold the {size:,} bytes that its shape needs",
    )
    try:
        raw = arrow().Codec("zstd").decompress(squeezed.numpy(), decompressed_size=size)
    except (OSError, arrow().ArrowException) as error:
        raise WireError(f"zstd cannot read it: {error}") from None
    planes, start, parts = np.frombuffer(raw, dtype=np.uint8), 0, {}
    for part, (kind, length) in expected.items():
        end = start + kind.itemsize * length
        # a copy in row-major order, so that wide elements are aligned
        raw_part = planes[start:end].reshape(kind.itemsize, length).T.reshape(-1).copy()
        parts[part] = torch.from_numpy(raw_part).view(kind) if length else torch.empty(0, dtype=kind)
        start = end
    return parts
