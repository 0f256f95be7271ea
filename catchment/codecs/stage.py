"""What a stage of a codec is: one step that makes a tensor smaller, and how the receiver undoes it.

A tensor goes through a chain as named parts. It starts as the one part `values`; a stage takes the parts, changes
`values` and may put other parts beside it, such as the scale that it divided by. The layout of the parts (dtype and
shape of each) follows from the layout before the stage, without the numbers: so the receiver knows every size before
it takes memory for it.
"""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, get_args

import torch
from torch import Tensor

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)

Place = Literal["difference", "correction", "selection", "precision", "packing", "compression"]
PLACES: tuple[Place, ...] = get_args(Place)
"""Where a stage stands in a chain, which has at most one of each, in this order. Each works on what the one before it
left: differences of numbers, with what was left out before, then fewer of them, then coarser ones, then bytes."""


class Form(NamedTuple):
    """What is known of a part before it exists."""

    dtype: torch.dtype
    shape: tuple[int, ...] | None = None  # None: of any length, which the stage itself checks
    bits: int | None = None  # 1, 2 or 4, of uint8 values below 2^bits: several share a byte on the wire

    @property
    def numel(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape or ())


Parts = dict[str, Tensor]
Layout = dict[str, Form]


class Context(NamedTuple):
    """What a stage may use besides the parts."""

    before: Layout  # of the parts before this stage
    known: Mapping[str, Tensor] = {}  # "request" if it `needs_request`; at the sender, what it `remembers`
    kept: int = 0  # how many values, for the receiver, if the stage `counts`

    @property
    def form(self) -> Form:
        """The form of the values before this stage."""
        return self.before["values"]


_Part = TypeVar("_Part", Tensor, Form)


def put(parts: dict[str, _Part], values: _Part, **more: _Part) -> dict[str, _Part]:
    """Parts, or their layout, with other values and with more parts before them."""
    return {**{name: part for name, part in parts.items() if name != "values"}, **more, "values": values}


class CannotCarry(Exception):
    """Raised by `encode` for numbers that a stage cannot carry: the text says which, such as "NaN or infinity"."""


@dataclass(frozen=True)
class Stage:
    """One step of a codec. Subclass it as a frozen dataclass of options, with `encode`, `layout` and `decode`."""

    name: ClassVar[str]  # in rules and on the wire; "module:Class" unless a class says otherwise
    place: ClassVar[Place] = "precision"
    saves: ClassVar[bool] = False  # it is there for bytes alone: a tensor that does not get smaller goes without it
    loses: ClassVar[bool] = False  # anything that the receiver then lacks, beyond the rounding of a difference
    partial: ClassVar[bool] = False  # only for differences: left out where a chain of differences sends a tensor whole
    finite: ClassVar[bool] = False  # cannot carry NaN and infinity
    silent: ClassVar[bool] = False  # the receiver has nothing to undo, and the message does not name it
    needs_request: ClassVar[bool] = False  # the tensor of the request that is answered; left out where there is none
    remembers: ClassVar[tuple[str, ...]] = ()  # what the sender keeps of the tensor, from `remember`
    usage: ClassVar[str] = ""  # the end of a sentence about wrong options: "needs ..., as in ..."

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "name" not in cls.__dict__:
            cls.name = f"{cls.__module__}:{cls.__qualname__}"

    def __str__(self) -> str:
        """The stage as it is written in a rule, without options at the end that have their default."""
        options = [(getattr(self, field.name), field.default) for field in dataclasses.fields(self)]
        while options and options[-1][0] == options[-1][1]:
            options.pop()
        texts = [str(value).lower() if isinstance(value, bool) else str(value) for value, _ in options]
        return f"{self.name}({','.join(texts)})" if texts else self.name

    # ---- every stage

    def applies(self, before: Layout) -> bool:
        """Whether it can do something for parts of this layout: for floating-point values, unless it says otherwise."""
        return "values" in before and before["values"].dtype in FLOATS

    @abstractmethod
    def encode(self, parts: Parts, context: Context) -> Parts | None:
        """The parts after this stage; None if it would not help. Nothing is changed in place."""

    def layout(self, before: Layout, count: int) -> Layout:
        """The layout of what `encode` makes of parts of the layout `before`; `count` is there if it `counts`."""
        return before

    def decode(self, parts: Parts, context: Context) -> Parts:
        """The parts before this stage again, others are dropped; raises WireError for what cannot be right."""
        return parts

    # ---- stages that keep only some values

    def counts(self, before: Layout) -> bool:
        """Whether the message must say how many values were kept."""
        return False

    def count(self, given: Parts, made: Parts) -> int:
        """How many values were kept."""
        return made["values"].numel()

    def measured(self, parts: Parts, before: Layout) -> int:
        """How many values there are, where `layout` leaves that open: read from received parts, not yet checked."""
        raise NotImplementedError("its layout leaves the number of values open: give it `counts` or `measured`")

    # ---- stages that depend on earlier messages

    def remember(self, given: Parts, received: Parts, context: Context) -> dict[str, Tensor]:
        """What to keep for the next message: `given` is the input of `encode`, `received` what the receiver decodes."""
        return {}

    @property
    def changes(self) -> bool:
        """Whether it differs in later messages of a sender."""
        return False

    def at(self, message: int) -> Stage:
        """The stage for the message of this number from one sender, the first being 1."""
        return self

    def covers(self, other: Stage) -> bool:
        """Whether the other stage is this one at some message."""
        return other == self

    def key(self, kept: str) -> str:
        """The name of something that it remembers, distinct from those of other stages."""
        return f"{self.name}.{kept}" if ":" in self.name else kept

    # ---- before anything runs

    def conflict(self, chain: tuple[Stage, ...]) -> str:
        """Why it cannot stand in this chain; "" if it can."""
        return ""


def is_finite(values: Tensor) -> bool:
    """Whether there is neither NaN nor infinity among the values."""
    return bool(values.sum().isfinite()) or bool(values.isfinite().all())  # a sum alone may overflow
