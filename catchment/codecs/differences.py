"""Stages that send differences from the request, and error feedback: what earlier messages left out is sent later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from catchment.codecs.stage import Context, Parts, Place, Stage, put


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
