"""Payloads: what methods send, as frozen dataclasses of tensors and plain values, and how they become messages."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from typing import Any, NamedTuple, Self

from torch import Tensor

from catchment.errors import ProtocolError, WireError
from catchment.exchange.message import Message, Scalar, plain


class Payload:
    """Base of what methods exchange: a frozen dataclass of tensors, dicts of tensors, scalars or None.

    Nothing else can be sent, on any transport.
    """

    def pack(self, plain: Callable[[Tensor], Tensor] = plain) -> Message:
        """The flat form; `plain` makes a tensor fit to be sent."""
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
        tensors, scalars = dict(message.tensors), dict(message.scalars)  # what no field has taken yet
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
                raise WireError(f"{cls.__name__} has no field for {kind} {', '.join(sorted(rest))}")
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
    """The fields of a payload class; a class that cannot be sent is an error."""
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
