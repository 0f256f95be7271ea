"""Faults that a simulated run injects."""

from __future__ import annotations

from dataclasses import dataclass

from catchment.reading import Chance, NonNegative


@dataclass(frozen=True)
class Faults:
    """`[faults]`: the chance that something goes wrong with a request. What happens is derived from the seed."""

    drop: Chance = 0.0
    """The device does the work, and the reply is lost on the way."""
    crash: Chance = 0.0
    """The device dies while it works; its state stays as it was."""
    delay: Chance = 0.0
    """The reply comes `delay_seconds` later."""
    delay_seconds: NonNegative = 60.0
    """Seconds by which a delayed reply is late."""
