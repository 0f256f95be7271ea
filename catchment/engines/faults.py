"""Faults that a simulated run injects."""

from __future__ import annotations

from dataclasses import dataclass

from catchment.errors import ExperimentError


@dataclass(frozen=True)
class Faults:
    """`[faults]`: the chance that something goes wrong with a request. What happens is derived from the seed."""

    drop: float = 0.0  # the work is done, the reply is lost on the way
    crash: float = 0.0  # the device dies while working; its state stays as it was
    delay: float = 0.0  # the reply comes `delay_seconds` later
    delay_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name in ("drop", "crash", "delay"):
            if not 0 <= getattr(self, name) <= 1:
                raise ExperimentError(f"faults.{name} is a chance from 0 to 1, not {getattr(self, name)}")
        if self.delay_seconds < 0:
            raise ExperimentError(f"faults.delay_seconds is {self.delay_seconds}; at least 0 is expected")
