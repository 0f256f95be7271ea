"""What clients measure of their own models on the test set and send: no sample, no label, no count of either."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from catchment.core.declarations import Values
from catchment.exchange.payload import Payload
from catchment.tasks.quality import NUMBERS, Quality

_SENT = ("accuracy", *NUMBERS)
_UNKNOWN = -1.0  # a number that was not measured


@dataclass(frozen=True)
class Scored(Payload):
    """A client's own model on the test set: a `Quality` in as many bytes as any other."""

    numbers: Annotated[Tensor, Values("metrics", ("7",), torch.float64, _UNKNOWN, 1)]  # accuracy first
    rates: Annotated[Tensor, Values("metrics", ("C", "C"), low=0, high=1)] | None

    @property
    def quality(self) -> Quality:
        """As it was measured."""
        found = dict(zip(_SENT, self.numbers.tolist()))
        known = {name: number for name, number in found.items() if number != _UNKNOWN}
        return Quality(**{"accuracy": 0.0, **known}, rates=self.rates)


def scored(quality: Quality) -> dict[str, Any]:
    """The fields of such a reply."""
    found = [getattr(quality, name) for name in _SENT]
    numbers = [_UNKNOWN if number is None else number for number in found]
    return {"numbers": torch.tensor(numbers, dtype=torch.float64), "rates": quality.rates}
