"""Stages that send only what matters: differences from the request, the largest numbers, later what was left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from catchment.codecs.packing import expect
from catchment.codecs.stage import CannotCarry, Context, Form, Layout, Parts, Place, Stage, is_finite, put
from catchment.errors import ExperimentError

MOST = 2**31  # numbers of a tensor whose positions have 32 bits


@dataclass(frozen=True)
class Update(Stage):
    """The difference from the tensor of the same name in the request that is answered."""

    name: ClassVar[str] = "update"
    place: ClassVar[Place] = "difference"
    saves: ClassVar[bool] = True
    needs_request: ClassVar[bool] = True

    def encode(self, parts: Parts, context: Context) -> Parts:
        """Subtract the tensor of the request."""
        return put(parts, parts["values"] - context.known["request"])

    def decode(self, parts: Parts, context: Context) -> Parts:
        """Add the tensor of the request."""
        return put(parts, context.known["request"] + parts["values"])


@dataclass(frozen=True)
class Feedback(Stage):
    """Error feedback: what later stages lost of one message is added to the next."""

    name: ClassVar[str] = "feedback"
    place: ClassVar[Place] = "correction"
    saves: ClassVar[bool] = True
    partial: ClassVar[bool] = True
    silent: ClassVar[bool] = True
    remembers: ClassVar[tuple[str, ...]] = ("residual",)

    def encode(self, parts: Parts, context: Context) -> Parts:
        """Add what was lost."""
        return put(parts, with_residual(parts["values"], context.known))

    def remember(self, given: Parts, received: Parts, context: Context) -> dict[str, Tensor]:
        """What the receiver lacks."""
        return {"residual": with_residual(given["values"], context.known) - received["values"]}

    def conflict(self, chain: tuple[Stage, ...]) -> str:
        """It needs a stage that loses something."""
        if any(stage.loses for stage in chain):
            return ""
        return "has feedback with no lossy stage after it; put topk, int8 or another lossy stage after it"


def with_residual(values: Tensor, known: Mapping[str, Tensor]) -> Tensor:
    """The values and what the receiver lacks from earlier messages, if that is of their form."""
    residual = fitting(known.get("residual"), values)
    return values if residual is None else values + residual


def fitting(found: Tensor | None, values: Tensor) -> Tensor | None:
    """What was found, if it has the dtype and the shape of the values."""
    return found if found is not None and (found.dtype, found.shape) == (values.dtype, values.shape) else None


# ---- the largest ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TopK(Stage):
    """The largest magnitudes and their positions; with a warm-up, more of them in a sender's first messages."""

    name: ClassVar[str] = "topk"
    place: ClassVar[Place] = "selection"
    saves: ClassVar[bool] = True
    loses: ClassVar[bool] = True
    partial: ClassVar[bool] = True
    finite: ClassVar[bool] = True
    usage: ClassVar[str] = (
        "needs the share to keep, above 0 and at most 1, as in topk(0.01), and may have a number of messages to warm "
        "up, as in topk(0.01,4)"
    )
    share: float
    """The share of the numbers of a tensor that are sent, above 0 and at most 1."""
    warmup: int = 0
    """Messages of a sender before its share is that small."""

    def __post_init__(self) -> None:
        if not (0 < self.share <= 1 and self.warmup >= 0):
            raise ExperimentError(f"{self} {self.usage}")

    def encode(self, parts: Parts, context: Context) -> Parts:
        """Pick the largest."""
        flat = parts["values"].reshape(-1)
        positions = largest(flat, kept(self.share, context.form))
        return put(parts, flat[positions], positions=positions)

    def layout(self, before: Layout, count: int) -> Layout:
        """As many values and positions as the share says."""
        form = before["values"]
        shape = (kept(self.share, form),)
        return put(before, form._replace(shape=shape), positions=Form(torch.int32, shape))

    def decode(self, parts: Parts, context: Context) -> Parts:
        """Zeros where nothing was sent."""
        positions, count = parts["positions"], context.form.numel
        rising = bool((positions[1:] > positions[:-1]).all())
        expect(
            rising and int(positions[0]) >= 0 and int(positions[-1]) < count,
            f"positions do not rise within 0 to {count - 1}",
        )
        return put(parts, scattered(parts["values"], positions, context.form))

    @property
    def changes(self) -> bool:
        """During a warm-up."""
        return self.warmup > 0

    def at(self, message: int) -> TopK:
        """The share falls from message to message until the warm-up ends."""
        return TopK(self.share ** min(message / (self.warmup + 1), 1.0)) if self.warmup else self

    def covers(self, other: Stage) -> bool:
        """Other shares only during a warm-up, and none below its own."""
        if other == self:
            return True
        return isinstance(other, TopK) and self.warmup > 0 and not other.warmup and other.share >= self.share


def kept(share: float, values: Form) -> int:
    """How many values a share is: at least one."""
    return max(1, round(share * values.numel))


def largest(flat: Tensor, count: int) -> Tensor:
    """Positions of the largest magnitudes, ascending, [count] int32; of equal ones the first."""
    if not is_finite(flat):
        raise CannotCarry("NaN or infinity")
    if flat.numel() >= MOST:
        raise CannotCarry(f"{flat.numel():,} numbers, whose positions do not fit into 32 bits")
    magnitudes = flat.abs()
    threshold = magnitudes.topk(count, sorted=False).values.min()
    above = (magnitudes > threshold).nonzero().squeeze(1)
    ties = (magnitudes == threshold).nonzero().squeeze(1)[: count - len(above)]
    return torch.cat([above, ties]).sort().values.to(torch.int32)


def scattered(values: Tensor, positions: Tensor, form: Form) -> Tensor:
    """A tensor of this form with the values at these positions, which were checked, and zeros elsewhere."""
    whole = torch.zeros(form.numel, dtype=values.dtype)
    whole[positions.long()] = values
    return whole.view(form.shape or ())
