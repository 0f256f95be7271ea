"""What the fields of a payload hold, declared in the payload class:

    features: Annotated[Tensor, features("n <= N_k")]
    labels: Annotated[Tensor, labels("n <= N_k")]
    weights: Annotated[dict[str, Tensor], like(client_weights)]
    samples: Samples
    accuracy: Share

Sizes are written as in the papers: `N_k` is the number of the client's samples, `N_0` that of public samples, `C` that
of classes, `B` the largest size of a batch, `7` is seven; `n <= N_k` is any number up to `N_k`, the same throughout a
reply. Replies are checked against the declarations (`expectations`), which also say what kind of knowledge a device
sends.
A field without one is of kind "unknown": its numbers must be finite, and nothing else is checked.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor

from catchment.core.method import Method, contract, handlers
from catchment.core.world import World
from catchment.exchange.payload import Payload, fields_of

Kind = Literal["weights", "masks", "logits", "features", "labels", "ids", "counts", "metrics", "images", "unknown"]
Reference = Callable[[World, int], Mapping[str, Tensor]]

LARGEST_NUMBER = 1e6  # of features and logits; training on larger ones overflows
LARGEST_WHOLE = 2**53


@dataclass(frozen=True)
class Values:
    """A tensor field: its kind, dtype, sizes, and the least and largest of its numbers."""

    kind: Kind
    sizes: tuple[str, ...]
    dtype: torch.dtype | None = torch.float32  # None: dtype and range are those of the task's labels
    low: float = -LARGEST_NUMBER
    high: float | str = LARGEST_NUMBER  # a name stands for a size: numbers are below it
    least: int = 0  # rows


@dataclass(frozen=True)
class Like:
    """A field of tensors by name: names, dtypes and shapes are those of a reference, or with `part` of some of it."""

    kind: Kind
    reference: Reference
    part: bool = False


@dataclass(frozen=True)
class Number:
    """A scalar field: its kind and its range."""

    kind: Kind
    low: float = -LARGEST_NUMBER
    high: float | str = LARGEST_NUMBER  # "N_k": exactly the number of the client's samples, where the server knows it


Declaration = Values | Like | Number


def features(rows: str, least: int = 0) -> Values:
    """What a client's extractor makes of samples."""
    return Values("features", (rows, "*features"), least=least)


def logits(rows: str) -> Values:
    """Class scores of samples."""
    return Values("logits", (rows, "C"))


def labels(rows: str, least: int = 0) -> Values:
    """Classes of samples."""
    return Values("labels", (rows,), torch.int64, 0, "C", least)


def targets(rows: str) -> Values:
    """Labels of samples, whatever the task."""
    return Values("labels", (rows, "*label"), None)


def ids(rows: str) -> Values:
    """Numbers of samples."""
    return Values("ids", (rows,), torch.int64, 0, LARGEST_WHOLE)


def images(rows: str) -> Values:
    """The samples themselves."""
    return Values("images", (rows, "*image"), torch.uint8, 0, 255)


def like(reference: Reference, *, part: bool = False, kind: Kind = "weights") -> Like:
    """Tensors as in what `reference(world, client)` gives, or with `part` some of them."""
    return Like(kind, reference, part)


def client_weights(world: World, client: int) -> Mapping[str, Tensor]:
    """The state dict of a client's model."""
    return world.client_architecture(client).facts.initial


Samples = Annotated[int, Number("counts", 1, "N_k")]  # how many the client trained on
Turn = Annotated[int, Number("counts", 0, 2**31)]
Last = Annotated[bool, Number("counts", 0, 1)]
Loss = Annotated[float, Number("metrics", -1e30, 1e30)]
Share = Annotated[float, Number("metrics", 0, 1)]  # an accuracy


# ---- what clients send ------------------------------------------------------------------------------------------


class Leaving(NamedTuple):
    """A field of a handler's reply."""

    handler: str
    field: str
    kind: Kind
    shape: str  # in words: "[n <= N_k, C]", "as client_weights", or the type of a scalar


@functools.cache
def leaving(method: type[Method[Any]]) -> tuple[Leaving, ...]:
    """All that the clients of a method send, from the payload classes themselves."""
    return tuple(
        Leaving(handler, name, declared.kind if declared else "unknown", shape)
        for handler in handlers(method)
        for name, (declared, shape) in _described(contract(method, handler).reply).items()
    )


def _described(reply: type[Payload]) -> dict[str, tuple[Declaration | None, str]]:
    declared = declarations(reply)
    found: dict[str, tuple[Declaration | None, str]] = {}
    for field in fields_of(reply):
        declaration = declared[field.name]
        if isinstance(declaration, Values):
            sizes = ", ".join(size.lstrip("*") for size in declaration.sizes)
            dtype = "" if declaration.dtype is None else f"{str(declaration.dtype).removeprefix('torch.')} "
            shape = f"{dtype}[{sizes}]"
        elif isinstance(declaration, Like):
            words = declaration.reference.__name__.replace("_", " ")
            shape = f"{'part of ' if declaration.part else ''}{words}"
        else:
            shape = field.types[0].__name__ if field.types else field.kind
        found[field.name] = (declaration, shape)
    return found


def declarations(reply: type[Payload]) -> Mapping[str, Declaration | None]:
    """The declaration of each field of a payload class; None where there is none."""
    hints = typing.get_type_hints(reply, include_extras=True)
    return {field.name: _declaration(hints[field.name]) for field in fields_of(reply)}


def _declaration(hint: Any) -> Declaration | None:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return next((found for option in typing.get_args(hint) if (found := _declaration(option))), None)
    metadata = getattr(hint, "__metadata__", ())
    return next((item for item in metadata if isinstance(item, Declaration)), None)
