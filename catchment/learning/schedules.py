"""Learning rates over the rounds of a run: a share of the rate for each round."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Annotated, Literal

from pydantic import Field

from catchment.errors import ExperimentError
from catchment.reading import Count, Whole

OPTIONS: dict[str, tuple[str, ...]] = {
    "constant": (),
    "step": ("every", "at", "factor"),
    "cosine": ("floor",),
    "plateau": ("patience", "factor"),
}


@dataclass(frozen=True)
class Schedule:
    """One `[optimizer.*.schedule]` table: which share of `lr` a round has. The first round is 1."""

    name: Literal["constant", "step", "cosine", "plateau"] = "constant"
    """How the rate falls: not at all, in steps, along half a cosine, or when validation accuracy stops rising."""
    warmup: Whole = 0
    """Rounds below the full rate, which rises in equal steps."""
    every: Count | None = None
    """For `step`: rounds between two drops."""
    at: tuple[Count, ...] = ()
    """For `step`: the rounds after which the rate drops, in place of `every`."""
    factor: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """For `step` and `plateau`: the rate is multiplied by it at a drop."""
    floor: Annotated[float, Field(ge=0, lt=1, title="a share of lr from 0 to below 1")] = 0.0
    """For `cosine`: the share of the rate that it falls towards."""
    patience: Count = 10
    """For `plateau`: rounds without a better validation accuracy before a drop."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name not in ("name", "warmup", *OPTIONS[self.name]) and getattr(self, field.name) != field.default:
                users = " or ".join(f'"{name}"' for name, options in OPTIONS.items() if field.name in options)
                raise ExperimentError(f'schedule "{self.name}" has no {field.name}; it belongs to {users}')
        if self.name == "step" and (self.every is None) == (not self.at):
            raise ExperimentError(
                f'schedule "step" drops at regular intervals or after given rounds; every is {self.every} and at is '
                f"{list(self.at)}: set one of them, such as every = 30"
            )
        if list(self.at) != sorted(set(self.at)):
            raise ExperimentError(f"at is {list(self.at)}; rounds in ascending order are expected")

    def share(self, round: int, rounds: int, drops: int = 0) -> float:
        """The share of `lr` in a round of a run of `rounds`; `drops` are those of a plateau so far."""
        round = max(round, 1)  # before the first one, as in it
        return min(1.0, round / (self.warmup + 1)) * self._fallen(round, rounds, drops)

    def drops(self, accuracies: Iterable[float]) -> int:
        """How often a plateau has dropped the rate after these validation accuracies, one per round."""
        return plateaus(accuracies, self.patience) if self.name == "plateau" else 0

    def _fallen(self, round: int, rounds: int, drops: int) -> float:
        if self.name == "step":
            passed = (round - 1) // self.every if self.every else sum(round > last for last in self.at)
            return self.factor**passed
        if self.name == "cosine":
            return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * (round - 1) / rounds)) / 2
        return self.factor**drops if self.name == "plateau" else 1.0


def plateaus(accuracies: Iterable[float], patience: int) -> int:
    """How often `patience` values in a row brought nothing better than the best before."""
    best, waited, found = float("-inf"), 0, 0
    for accuracy in accuracies:
        waited = 0 if accuracy > best else waited + 1
        best = max(best, accuracy)
        if waited == patience:
            found, waited = found + 1, 0
    return found
