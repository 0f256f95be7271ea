"""Stages that send only some of the numbers, with their positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from catchment.codecs.bits import expect
from catchment.codecs.stage import CannotCarry, Context, Form, Layout, Parts, Place, Stage, is_finite, put
from catchment.errors import ExperimentError

MOST = 2**31  # numbers of a tensor whose positions have 32 bits


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
    share: float  # of the numbers of a tensor that are sent, above 0 and at most 1
    warmup: int = 0  # messages of a sender before its share is that small

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
