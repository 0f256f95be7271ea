"""Whether a run ended below an earlier round by more than chance and its usual wiggle explain."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from catchment.runs.records import LOWER_IS_BETTER, Fall

STANDARD_ERRORS = 2.0  # of the difference between two shares of the test samples
WIGGLES = 8.0  # times what is usual; of 20 values that only wiggle, a last one falls further in 1 of 200 cases
FEWEST = 4  # evaluated rounds; with fewer nobody knows what is usual


def fall_of(points: Sequence[tuple[int, float]], headline: str, samples: int | None) -> Fall | None:
    """How far the last of the rounds and headlines ended below the best one; None if that may be chance.

    `samples` is the number of test samples where the headline is a share of them, and None where it is not.
    """
    if len(points) < FEWEST:
        return None
    sign = -1.0 if headline in LOWER_IS_BETTER else 1.0
    values = [sign * value for _, value in points]
    last, best = values[-1], max(values)
    chance = 0.0
    if samples:
        chance = STANDARD_ERRORS * math.sqrt(sum(share * (1 - share) for share in (best, last)) / samples)
    if best - last <= max(chance, WIGGLES * _wiggle(values)):
        return None
    newest = max(number for (number, _), value in zip(points, values) if value == best)
    return Fall(from_round=newest, by=best - last)


def _wiggle(values: Sequence[float]) -> float:
    """How far a value usually is from the middle between its neighbours, which a steady fall does not change."""
    threes = zip(values, values[1:], values[2:])
    return statistics.median(abs(value - (before + after) / 2) for before, value, after in threes)
