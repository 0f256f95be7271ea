"""Learning rates over the rounds of a run: a share of the rate for each round."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields

from catchment.errors import ExperimentError, at_least
from catchment.names import did_you_mean

OPTIONS: dict[str, tuple[str, ...]] = {
    "constant": (),
    "step": ("every", "at", "factor"),
    "cosine": ("floor",),
    "plateau": ("patience", "factor"),
}


@dataclass(frozen=True)
class Schedule:
    """One `[optimizer.*.schedule]` table: which share of `lr` a round has. The first round is 1."""

    name: str = "constant"
    warmup: int = 0  # rounds before the full rate, in which it rises in equal steps
    every: int | None = None  # step: rounds between two drops
    at: tuple[int, ...] = ()  # step: the rounds after which the rate drops, in place of `every`
    factor: float = 0.1  # step, plateau: by which the rate is multiplied at a drop
    floor: float = 0.0  # cosine: the share that it falls towards
    patience: int = 10  # plateau: rounds without a better validation accuracy before a drop

    def __post_init__(self) -> None:
        if self.name not in OPTIONS:
            raise ExperimentError(f'unknown schedule "{self.name}"; {did_you_mean(self.name, OPTIONS)}')
        for field in fields(self):
            if field.name not in ("name", "warmup", *OPTIONS[self.name]) and getattr(self, field.name) != field.default:
                users = " or ".join(f'"{name}"' for name, options in OPTIONS.items() if field.name in options)
                raise ExperimentError(f'schedule "{self.name}" has no {field.name}; it belongs to {users}')
        at_least("warmup", self.warmup, 0)
        at_least("patience", self.patience, 1)
        if self.every is not None:
            at_least("every", self.every, 1)
        if self.name == "step" and (self.every is None) == (not self.at):
            raise ExperimentError(
                f'schedule "step" drops at regular intervals or after given rounds; every is {self.every} and at is '
                f"{list(self.at)}: set one of them, such as every = 30"
            )
        if list(self.at) != sorted(set(self.at)) or any(round < 1 for round in self.at):
            raise ExperimentError(f"at is {list(self.at)}; rounds in ascending order, from 1 on, are expected")
        if not 0 < self.factor < 1:
            raise ExperimentError(f"factor is {self.factor}; a number between 0 and 1 is expected")
        if not 0 <= self.floor < 1:
            raise ExperimentError(f"floor is {self.floor}; a share of lr from 0 to below 1 is expected")

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
