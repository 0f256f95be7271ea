"""What crosses between server and client: payloads, messages, requests, responses, and their exact bytes.

A `Payload` is what a method writes. A `Message` is the flat form that ledgers, codecs, attacks and transports see:
named tensors and scalars. On the wire a message is a valid safetensors file whose metadata carries the version, the
envelope and the scalars; there is no pickle anywhere. Reading checks every size and dtype against the header before
a tensor is made, and a malformed message is a `WireError` that says what is wrong with it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import safetensors
import torch
from torch import Tensor

from catchment.errors import ProtocolError, WireError

Scalar = bool | int | float | str
WIRE_VERSION = "1"
TRAINING = "training"  # the purpose of ordinary traffic; `Fleet.aside` names others
LARGEST_HEADER = 2**20  # bytes, of what another machine sent: some thousand tensors

_DTYPE_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8",
    torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64", torch.bool: "BOOL",
}  # fmt: skip
_DTYPES = {name: dtype for dtype, name in _DTYPE_NAMES.items()}


# ---- messages ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Message:
    """Named tensors and scalars; names of a dict field are `field/key`."""

    tensors: dict[str, Tensor]
    scalars: dict[str, Scalar] = field(default_factory=dict)

    @functools.cached_property
    def layout(self) -> Layout:
        """Order, sizes and header of the tensors on the wire."""
        return _layout(tuple((name, t.dtype, t.shape) for name, t in self.tensors.items()))

    @functools.cached_property
    def scalar_text(self) -> str:
        """The scalars as they stand in the header."""
        return json.dumps(json.dumps(self.scalars)) if self.scalars else '"{}"'

    def header(self, envelope: str) -> str:
        """The safetensors header, padded so that every tensor is aligned."""
        text = (
            f'{{"__metadata__":{{"catchment":"{WIRE_VERSION}","envelope":{json.dumps(envelope)},'
            f'"scalars":{self.scalar_text}}}{self.layout.header}}}'
        )
        return text + " " * (-len(text) % 8)

    def size(self, envelope: str = "") -> int:
        """Bytes on the wire, without making them."""
        return self.size_with(_quoted_length(envelope))

    def size_with(self, envelope: int) -> int:
        """Bytes on the wire with an envelope that is so long there, quotes included."""
        header = _FIXED_HEADER + envelope + len(self.scalar_text) + len(self.layout.header)
        return 8 + header + -header % 8 + self.layout.nbytes

    def to_bytes(self, envelope: str = "") -> bytes:
        """The wire form."""
        return b"".join(self.buffers(envelope))

    def buffers(self, envelope: str = "") -> Iterator[bytes | memoryview]:
        """The wire form in parts, each made when its turn comes; tensors in row-major order are not copied."""
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


_FIXED_HEADER = len('{"__metadata__":{"catchment":"1","envelope":,"scalars":}}')


@functools.lru_cache(maxsize=256)
def _quoted_length(text: str) -> int:
    return len(json.dumps(text))


class Layout(NamedTuple):
    """How the tensors of a message lie on the wire; equal for equal names, dtypes and shapes."""

    order: tuple[str, ...]  # of the data: wide elements first, so that each starts aligned
    header: str  # the part of the header that describes tensors, in the order of the message
    sizes: tuple[tuple[str, int], ...]  # bytes of each tensor
    nbytes: int  # of all tensors


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
    """The tensor as it would come out of its bytes: without graph, on the CPU, row-major.

    Kernels choose by memory order, so a channels-last tensor handed over in memory could give other last digits than
    the same tensor from a wire.
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
        raise WireError(f"the header of a message has {length:,} bytes; at most {largest:,} are taken")
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


# ---- payloads ---------------------------------------------------------------------------------------------------


class Payload:
    """Base of what methods exchange: a frozen dataclass of tensors, dicts of tensors, scalars or None.

    Nothing else can cross, on any transport.
    """

    def pack(self) -> Message:
        """The flat form."""
        tensors: dict[str, Tensor] = {}
        scalars: dict[str, Scalar] = {}
        for name, kind, optional, scalar_types in fields_of(type(self)):
            value = getattr(self, name)
            if value is None and optional:
                continue
            if kind == "tensor" and isinstance(value, Tensor):
                tensors[name] = plain(value)
            elif kind == "tensors" and isinstance(value, dict) and all(map(_is_entry, value.items())):
                for key, tensor in value.items():
                    tensors[f"{name}/{key}"] = plain(tensor)
                if not value:
                    scalars[name] = EMPTY
            elif kind == "scalar" and isinstance(value, Scalar) and isinstance(value, scalar_types):
                scalars[name] = value
            else:
                given = "None" if value is None else f"a {type(value).__name__}"
                raise ProtocolError(
                    f"{type(self).__name__}.{name} is {given}; a payload field is declared and given "
                    "as a Tensor, a dict[str, Tensor], a bool, int, float or str, or None"
                )
        return Message(tensors, scalars)

    @classmethod
    def unpack(cls, message: Message) -> Self:
        """The payload back from its flat form; anything missing or left over is an error."""
        values: dict[str, Any] = {}
        tensors, scalars = dict(message.tensors), dict(message.scalars)  # what is left to find a place for
        for name, kind, optional, scalar_types in fields_of(cls):
            value: Any = None
            if kind == "tensor":
                value = tensors.pop(name, None)
            elif kind == "scalar":
                value = scalars.pop(name, None)
                if value is not None and not isinstance(value, scalar_types):
                    raise WireError(f"{cls.__name__}.{name} came as a {type(value).__name__}")
            else:
                prefix = name + "/"
                value = {key[len(prefix) :]: tensors.pop(key) for key in list(tensors) if key.startswith(prefix)}
                if not value and scalars.pop(name, None) != EMPTY:
                    value = None
            if value is None and not optional:
                raise WireError(f"{cls.__name__} needs {name}, which the message does not have")
            values[name] = value
        for kind, rest in (("tensors", tensors), ("scalars", scalars)):
            if rest:
                raise WireError(f"{cls.__name__} has no place for {kind} {', '.join(sorted(rest))}")
        return cls(**values)


EMPTY = "{}"  # stands among the scalars for a dict without tensors, which is not None


class Field(NamedTuple):
    """A field of a payload class."""

    name: str
    kind: str  # "tensor", "tensors" or "scalar"
    optional: bool  # may be None
    types: tuple[type, ...] = ()  # of a scalar


def _is_entry(item: tuple[Any, Any]) -> bool:
    return isinstance(item[0], str) and isinstance(item[1], Tensor)


def fields_of(kind: Any) -> tuple[Field, ...]:
    """The fields of a payload class; a class that cannot cross is an error."""
    return _FIELDS.get(kind) or _FIELDS.setdefault(kind, _find_fields(kind))


_FIELDS: dict[Any, tuple[Field, ...]] = {}


def _find_fields(kind: Any) -> tuple[Field, ...]:
    if not dataclasses.is_dataclass(kind):
        raise ProtocolError(f"{kind.__name__} must be a dataclass: write @dataclass(frozen=True) above it")
    hints = typing.get_type_hints(kind)
    return tuple(_field(kind, f.name, hints[f.name]) for f in dataclasses.fields(kind))


def _field(owner: Any, name: str, hint: Any) -> Field:
    options = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    optional = type(None) in options
    options = tuple(option for option in options if option is not type(None))
    if options == (Tensor,):
        return Field(name, "tensor", optional)
    if options == (dict[str, Tensor],):
        return Field(name, "tensors", optional)
    if options and all(option in typing.get_args(Scalar) for option in options):
        return Field(name, "scalar", optional, (*options, int) if float in options else options)
    raise ProtocolError(
        f"{owner.__name__}.{name} is declared as {hint}; a payload field is a Tensor, a dict[str, Tensor], "
        "a bool, int, float or str, each possibly | None"
    )


# ---- requests and responses -------------------------------------------------------------------------------------


class Request(NamedTuple):
    """One question to one client, with what makes its answer reproducible."""

    client: int
    handler: str
    round: int
    turn: int  # how many requests of this purpose the client had before in this round
    sequence: int  # number of the request in the run; a client's state is versioned by it
    body: Message
    purpose: str = TRAINING
    life: int = 0  # how often the run was resumed
    start: int = 0  # versions from `start` on that older lives made are disowned
    base: int = 0  # the last checkpoint needs the newest version before `base`

    @property
    def aside(self) -> bool:
        """Not part of training: reads the client's state, changes nothing, takes no virtual time."""
        return self.purpose != TRAINING

    @property
    def envelope(self) -> str:
        """The fields beside the body, in a width that does not depend on their values."""
        numbers = (self.client, self.round, self.turn, self.sequence, self.life, self.start, self.base)
        return "".join(f"{number:08x}" for number in numbers) + f":{self.purpose}:{self.handler}"

    def size(self) -> int:
        """Bytes on the wire."""
        return self.body.size_with(56 + _quoted_length(f":{self.purpose}:{self.handler}"))

    def to_bytes(self) -> bytes:
        """The wire form."""
        return self.body.to_bytes(self.envelope)

    @staticmethod
    def from_bytes(raw: bytes) -> Request:
        """A request from its wire form."""
        body, envelope = Message.from_bytes(raw, LARGEST_HEADER)
        try:
            numbers, purpose, handler = envelope.split(":")
            if not re.fullmatch("[0-9a-f]{56}", numbers):
                raise ValueError("seven numbers expected")
            client, round_, turn, sequence, life, start, base = (int(numbers[i : i + 8], 16) for i in range(0, 56, 8))
        except ValueError as error:
            raise WireError(f'not a request: envelope "{envelope[:80]}" ({error})') from None
        return Request(client, handler, round_, turn, sequence, body, purpose, life, start, base)


class Response(NamedTuple):
    """The answer to a request: a body, or the reason why there is none."""

    client: int
    sequence: int
    body: Message | None
    macs: int = 0  # multiply-accumulates the client spent on it
    seconds: float = 0.0  # wall time the client spent on it
    error: str = ""  # why there is no body
    failed: bool = False  # the handler raised; otherwise a missing body was lost on the way
    aside: bool = False  # answers a request that was aside

    @property
    def envelope(self) -> str:
        """The fields beside the body, in a width that does not depend on their values."""
        flags = (self.body is None) + 2 * self.failed + 4 * self.aside
        return f"{self.client:08x}{self.sequence:08x}{self.macs:016x}{round(self.seconds * 1e6):012x}{flags:x}"

    def size(self) -> int:
        """Bytes on the wire; nothing arrives of a lost reply."""
        return self.body.size_with(45 + 2) if self.body is not None else 0

    def to_bytes(self) -> bytes:
        """The wire form."""
        body = self.body if self.body is not None else Message({}, {"error": self.error})
        return body.to_bytes(self.envelope)

    @staticmethod
    def from_bytes(raw: bytes) -> Response:
        """A response from its wire form."""
        body, envelope = Message.from_bytes(raw, LARGEST_HEADER)
        try:
            if not re.fullmatch("[0-9a-f]{45}", envelope):
                raise ValueError("four numbers and a flag expected")
            bounds = ((0, 8), (8, 16), (16, 32), (32, 44), (44, 45))
            client, sequence, macs, microseconds, flags = (int(envelope[a:b], 16) for a, b in bounds)
        except ValueError as error:
            raise WireError(f'not a response: envelope "{envelope[:80]}" ({error})') from None
        error_text = str(body.scalars.get("error", "")) if flags & 1 else ""
        kept = None if flags & 1 else body
        return Response(client, sequence, kept, macs, microseconds / 1e6, error_text, bool(flags & 2), bool(flags & 4))
