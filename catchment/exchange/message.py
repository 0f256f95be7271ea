"""The flat form of what server and clients send each other, and its exact bytes.

Ledgers, codecs, attacks and transports see a `Message`: named tensors and scalars. On the wire a message is a valid
safetensors file whose metadata carries the version, the envelope and the scalars; there is no pickle anywhere. Reading
checks every size and dtype against the header before a tensor is made, and a malformed message is a `WireError` that
says what is wrong with it.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import safetensors
import torch
from torch import Tensor

from catchment.errors import ProtocolError, WireError

Scalar = bool | int | float | str
WIRE_VERSION = "1"
LARGEST_HEADER = 2**20  # bytes, of what another machine sent: some thousand tensors

_DTYPE_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8",
    torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64", torch.bool: "BOOL",
}  # fmt: skip
_DTYPES = {name: dtype for dtype, name in _DTYPE_NAMES.items()}


@dataclass(frozen=True, eq=False)
class Message:
    """Named tensors and scalars; names of a dict field are `field/key`."""

    tensors: dict[str, Tensor]
    scalars: dict[str, Scalar] = field(default_factory=dict)

    @functools.cached_property
    def layout(self) -> Layout:
        """Order, sizes and header of the tensors on the wire."""
        return _layout(_signature(self))

    @property
    def sizes(self) -> tuple[tuple[str, int], ...]:
        """Bytes of each tensor, by its name."""
        return self.layout.sizes

    @functools.cached_property
    def scalar_text(self) -> str:
        """The scalars as they stand in the header."""
        items = (f"{json.dumps(name)}: {_written(value)}" for name, value in self.scalars.items())
        return json.dumps("{" + ", ".join(items) + "}")

    def header(self, envelope: str) -> str:
        """The safetensors header, padded so that every tensor is aligned."""
        text = (
            f'{{"__metadata__":{{"catchment":"{WIRE_VERSION}","envelope":{json.dumps(envelope)},'
            f'"scalars":{self.scalar_text}}}{self.layout.header}}}'
        )
        return text + " " * (-len(text) % 8)

    def size(self, envelope: str = "") -> int:
        """Bytes on the wire, without serialising."""
        return self.size_with(quoted_length(envelope))

    def size_with(self, envelope: int) -> int:
        """Bytes on the wire with an envelope of this length in JSON, quotes included."""
        header = _FIXED_HEADER + envelope + len(self.scalar_text) + len(self.layout.header)
        return 8 + header + -header % 8 + self.layout.nbytes

    def to_bytes(self, envelope: str = "") -> bytes:
        """The wire form."""
        return b"".join(self.buffers(envelope))

    def buffers(self, envelope: str = "") -> Iterator[bytes | memoryview]:
        """The wire form in parts, each made on demand; tensors in row-major order are not copied."""
        header = self.header(envelope).encode()
        yield len(header).to_bytes(8, "little")
        yield header
        for name in self.layout.order:
            yield _raw(self.tensors[name])

    @staticmethod
    def from_bytes(raw: bytes, largest_header: int | None = None) -> tuple[Message, str]:
        """Message and envelope from the wire form."""
        metadata, names = _header(raw, largest_header)
        try:
            found = dict(safetensors.deserialize(raw))  # type: ignore[no-untyped-call]
        except safetensors.SafetensorError as error:
            raise WireError(f"not a message: {error} ({len(raw):,} bytes given)") from None
        tensors = {}
        for name in names:  # in the order in which the sender packed them
            spec = found[name]
            if spec["dtype"] not in _DTYPES:
                raise WireError(f'tensor "{name}" has dtype {spec["dtype"]}; known: {", ".join(_DTYPES)}')
            dtype = _DTYPES[spec["dtype"]]
            flat = torch.frombuffer(spec["data"], dtype=dtype) if spec["data"] else torch.empty(0, dtype=dtype)
            try:
                tensors[name] = flat.reshape(spec["shape"])
            except (RuntimeError, TypeError, OverflowError):
                raise WireError(f'tensor "{name}" has an impossible shape {spec["shape"]}') from None
        try:
            scalars = json.loads(metadata["scalars"])
        except (KeyError, ValueError, RecursionError) as error:
            raise WireError(f"the scalars of a message cannot be read: {error}") from None
        if not isinstance(scalars, dict) or not all(isinstance(v, Scalar) for v in scalars.values()):
            raise WireError("the scalars of a message must be an object of plain values")
        return Message(tensors, scalars), metadata.get("envelope", "")


def _written(value: Scalar) -> str:
    """A scalar in JSON; floats have one width, so that the size of a message does not depend on its numbers."""
    if type(value) is float and math.isfinite(value):
        return f"{value: .16e}"  # 17 digits: exactly the same number again
    return str(value) if type(value) is int else json.dumps(value)


class FileContent(Message):
    """A message for a file, of whose names no other has the same: its layout is not remembered for the next one."""

    @functools.cached_property
    def layout(self) -> Layout:
        """Order, sizes and header of the tensors in the file."""
        return _layout.__wrapped__(_signature(self))


@dataclass(frozen=True, eq=False)
class Received(FileContent):
    """A message as another machine sent it, which may have names and shapes of its own: its layout is not remembered
    either, and its size is the length that it had.
    """

    length: int = 0

    @property
    def sizes(self) -> tuple[tuple[str, int], ...]:
        """Bytes of each tensor, by its name."""
        return tuple((name, tensor.nbytes) for name, tensor in self.tensors.items())

    def size_with(self, envelope: int) -> int:
        """Bytes on the wire."""
        return self.length


_FIXED_HEADER = len('{"__metadata__":{"catchment":"1","envelope":,"scalars":}}')


@functools.lru_cache(maxsize=256)
def quoted_length(text: str) -> int:
    """The length of a text in JSON."""
    return len(json.dumps(text))


class Layout(NamedTuple):
    """How the tensors of a message lie on the wire; equal for equal names, dtypes and shapes."""

    order: tuple[str, ...]  # of the data: wide elements first, so that each starts aligned
    header: str  # the part of the header that describes tensors, in the order of the message
    sizes: tuple[tuple[str, int], ...]  # bytes of each tensor
    nbytes: int  # of all tensors


def _signature(message: Message) -> tuple[tuple[str, torch.dtype, torch.Size], ...]:
    return tuple((name, tensor.dtype, tensor.shape) for name, tensor in message.tensors.items())


@functools.lru_cache(maxsize=4096)
def _layout(signature: tuple[tuple[str, torch.dtype, torch.Size], ...]) -> Layout:
    order = sorted(signature, key=lambda item: (-item[1].itemsize, item[0]))
    offsets, offset = {}, 0
    for name, dtype, shape in order:
        if dtype not in _DTYPE_NAMES:
            raise ProtocolError(f'tensor "{name}" has dtype {dtype}, which has no wire form')
        if name == "__metadata__":
            raise ProtocolError('a tensor cannot be called "__metadata__"')
        end = offset + shape.numel() * dtype.itemsize
        offsets[name] = (offset, end)
        offset = end
    header = ""
    for name, dtype, shape in signature:
        entry = {"dtype": _DTYPE_NAMES[dtype], "shape": list(shape), "data_offsets": offsets[name]}
        header += f",{json.dumps(name)}:{json.dumps(entry, separators=(',', ':'))}"
    sizes = tuple((name, offsets[name][1] - offsets[name][0]) for name, _, _ in signature)
    return Layout(tuple(name for name, _, _ in order), header, sizes, offset)


def plain(tensor: Tensor) -> Tensor:
    """The tensor as it would be after deserialising: without graph, on the CPU, row-major.

    PyTorch picks kernels by memory order, so a channels-last tensor passed in memory could give other last digits than
    the same tensor from the wire.
    """
    tensor = tensor.detach().cpu()
    return tensor.contiguous() if tensor.dim() < 4 else tensor.reshape(-1).view(tensor.shape)


def _raw(tensor: Tensor) -> memoryview | bytes:
    """The bytes of a tensor in row-major order."""
    flat = plain(tensor).reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else b""


def _header(raw: bytes, largest: int | None) -> tuple[dict[str, str], list[str]]:
    """Metadata and tensor names of a wire form, read by hand because safetensors gives them only for files."""
    if len(raw) < 8:
        raise WireError(f"not a message: {len(raw)} bytes given, at least 8 expected")
    length = int.from_bytes(raw[:8], "little")
    if length > len(raw) - 8:
        raise WireError(f"not a message: the header says {length:,} bytes, {len(raw) - 8:,} are there")
    if largest is not None and length > largest:
        raise WireError(f"the header of a message has {length:,} bytes; at most {largest:,} are accepted")
    try:
        header = json.loads(raw[8 : 8 + length])
        metadata = header["__metadata__"]
        version = metadata["catchment"]
        names = [name for name in header if name != "__metadata__"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise WireError(f"not a message: its header cannot be read ({type(error).__name__}: {error})") from None
    if version != WIRE_VERSION:
        raise WireError(f'message of version "{version}", this side reads "{WIRE_VERSION}"; update one of the two')
    return metadata, names
