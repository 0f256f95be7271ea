"""Momentum correction: what waits on the sender grows until it is large enough to be sent.

Lin et al., Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed Training, ICLR 2018.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from catchment.codecs.sparsification import fitting, with_residual
from catchment.codecs.stage import Context, Parts, Place, Stage, put
from catchment.errors import ExperimentError


@dataclass(frozen=True)
class MomentumCorrection(Stage):
    """What is not sent grows: u = m u + change, v = v + u. Where v was sent, both start from 0 (factor masking)."""

    name: ClassVar[str] = "momentum"
    place: ClassVar[Place] = "correction"
    saves: ClassVar[bool] = True
    partial: ClassVar[bool] = True
    silent: ClassVar[bool] = True
    remembers: ClassVar[tuple[str, ...]] = ("velocity", "residual")  # u and v
    usage: ClassVar[str] = "needs m, from 0 to below 1, as in momentum(0.9)"
    m: float
    """The share of the velocity that is kept from one message to the next."""

    def __post_init__(self) -> None:
        if not 0 <= self.m < 1:
            raise ExperimentError(f"{self} {self.usage}")

    def encode(self, parts: Parts, context: Context) -> Parts:
        """v in place of the change."""
        return put(parts, with_residual(self.velocity(parts, context), context.known))

    def velocity(self, parts: Parts, context: Context) -> Tensor:
        """u, from the change and the u before it."""
        change = parts["values"]
        before = fitting(context.known.get("velocity"), change)
        return change if before is None else self.m * before + change

    def remember(self, given: Parts, received: Parts, context: Context) -> dict[str, Tensor]:
        """u and v after the mask of what was sent."""
        u = self.velocity(given, context)
        v = with_residual(u, context.known)
        sent = received["values"]
        return {"velocity": u.masked_fill(sent != 0, 0), "residual": v - sent}

    def conflict(self, chain: tuple[Stage, ...]) -> str:
        """It needs a stage that leaves something out."""
        if any(stage.place == "selection" for stage in chain):
            return ""
        return "has momentum without topk or smartidx; momentum is for what waits until it is sent"
