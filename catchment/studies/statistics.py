"""Means over seeds, and differences that are paired by seed, with 95 % intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

# Quantiles 0.975 of Student's t for 1 to 30 degrees of freedom; beyond, the normal one with its first correction.
_T = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
    2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
)  # fmt: skip


class Spread(NamedTuple):
    """Some numbers in short."""

    mean: float
    deviation: float | None  # standard deviation of the sample; None of one number
    runs: int


class Difference(NamedTuple):
    """The mean of paired differences, and where it lies with 95 % confidence."""

    mean: float
    low: float | None  # None of one pair
    high: float | None

    @property
    def certain(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def spread(values: Sequence[float]) -> Spread:
    """Mean and standard deviation; there must be a value."""
    return Spread(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


def paired(values: Mapping[int, float], others: Mapping[int, float]) -> Difference | None:
    """How much larger `values` are than `others` with the same seeds; None if there is no such seed."""
    differences = [values[seed] - others[seed] for seed in sorted(values.keys() & others.keys())]
    if not differences:
        return None
    mean = statistics.fmean(differences)
    if len(differences) == 1:
        return Difference(mean, None, None)
    half = t_quantile(len(differences) - 1) * statistics.stdev(differences) / math.sqrt(len(differences))
    return Difference(mean, mean - half, mean + half)


def t_quantile(degrees: int) -> float:
    """The 0.975 quantile of Student's t."""
    if degrees <= len(_T):
        return _T[degrees - 1]
    z = statistics.NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
