"""One result from the uploads of many clients: the mean, and robust rules in its place where some of them may lie.

An aggregator takes uploads stacked along their first dimension. The mean, the median and the trimmed mean work on each
number alone. Krum and the filter of Cronus look at vectors: a client's whole upload (the weights of a model), or with
`by_sample` each row of it (its prediction for a public sample), so that a client may be left out for one sample and
kept for the next.

The weights of clients, such as their numbers of samples, are self-reported, and a client that lies about its model can
lie about them too. So only the mean uses them, and all others leave out clients that sent NaN or infinity.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Protocol

import torch
from pydantic import Field
from torch import Tensor

from catchment.learning.averaging import WeightedMean, check_alike
from catchment.reading import Count, Whole


class Running(Protocol):
    """An aggregate of named tensors that come one client after the other, as those of a model do."""

    weight: float  # of all that were added; 0 if nobody was

    def add(self, tensors: Mapping[str, Tensor], weight: float) -> None:
        """Add one client's tensors."""

    def value(self) -> dict[str, Tensor]:
        """The aggregate of what was added; at least one client must have been."""


class Aggregator(ABC):
    """A rule that makes one upload of many. Subclass it as a frozen dataclass of the rule's parameters."""

    def __call__(self, stacked: Tensor, weights: Tensor | None = None, *, by_sample: bool = False) -> Tensor:
        """One upload, `[...]`, from those of all clients, `[clients, ...]`.

        `weights`, `[clients]` or `[clients, samples]`, are for the mean. With `by_sample` each row of `[clients,
        samples, ...]` is aggregated on its own.
        """
        if stacked.ndim < 1 + by_sample or not len(stacked):
            raise ValueError(f"uploads of shape {list(stacked.shape)} cannot be aggregated; [clients, ...] is expected")
        if not stacked.numel():
            return stacked.new_empty(stacked.shape[1:])
        wide = stacked.float() if stacked.dtype.itemsize < 4 else stacked
        rows = wide.reshape(len(wide), wide.shape[1] if by_sample else 1, -1)  # [clients, rows, numbers]
        finite = rows.isfinite().all(dim=(1, 2))
        kept = rows if bool(finite.all()) or not bool(finite.any()) else rows[finite]
        return self.robust(kept).view(stacked.shape[1:]).to(stacked.dtype)

    @abstractmethod
    def robust(self, rows: Tensor) -> Tensor:
        """`[rows, numbers]` from `[clients, rows, numbers]`, every row on its own."""

    def running(self) -> Running:
        """The same over named tensors, client by client; the vector of a client is all that it sent."""
        return Gathered(self)


@dataclass(frozen=True)
class Mean(Aggregator):
    """The mean, weighted by what the method says. One lying client can move it anywhere."""

    def __call__(self, stacked: Tensor, weights: Tensor | None = None, *, by_sample: bool = False) -> Tensor:
        """The mean over clients; rows make no difference to it."""
        if weights is None:
            return stacked.mean(dim=0)
        shares = weights.view(*weights.shape, *[1] * (stacked.ndim - weights.ndim)).to(stacked)
        return (stacked * shares).sum(dim=0) / shares.sum(dim=0)

    def robust(self, rows: Tensor) -> Tensor:
        """The plain mean."""
        return rows.mean(dim=0)

    def running(self) -> Running:
        """A sum that holds one model, however many clients there are."""
        return WeightedMean()


@dataclass(frozen=True)
class Median(Aggregator):
    """The median of every number; of an even count, the mean of the middle two. Tolerates liars below one half."""

    def robust(self, rows: Tensor) -> Tensor:
        """What is left when all but the middle is cut."""
        return _trimmed(rows, (len(rows) - 1) // 2)


@dataclass(frozen=True)
class TrimmedMean(Aggregator):
    """The mean of every number without its highest and its lowest values (Yin et al., 2018)."""

    trim: BelowHalf = 0.2
    """The share of the clients that is cut at each end; tolerates that many liars."""

    def robust(self, rows: Tensor) -> Tensor:
        """The mean of what is left; the number that is cut at each end is rounded up."""
        return _trimmed(rows, min(_ceil(self.trim * len(rows)), (len(rows) - 1) // 2))


@dataclass(frozen=True)
class Krum(Aggregator):
    """The upload nearest to its neighbours, or the mean of the `keep` nearest (Blanchard et al., 2017)."""

    attackers: Whole = 1
    """f: how many liars to tolerate; proven for at least 2 f + 3 clients."""
    keep: Count = 1
    """m of Multi-Krum: how many uploads the mean is of."""

    def robust(self, rows: Tensor) -> Tensor:
        """Clients score by their squared distances to the n - f - 2 others nearest to them; the lowest are taken."""
        others = max(1, len(rows) - self.attackers - 2)
        distances = torch.stack([(rows - one).square().sum(dim=2) for one in rows])  # [clients, clients, rows]
        scores = distances.sort(dim=1).values[:, 1 : 1 + others].sum(dim=1)  # the nearest to each is itself
        best = scores.argsort(dim=0, stable=True)[: self.keep]
        return rows.gather(0, best.unsqueeze(2).expand(-1, -1, rows.shape[2])).mean(dim=0)


@dataclass(frozen=True)
class Cronus(Aggregator):
    """The mean of what a spectral filter leaves (Chang et al., 2019, after Diakonikolas et al., 2017).

    While the uploads spread too far along the direction in which they spread most, the farthest is dropped. The filter
    of the paper compares the variance along it with a constant, for data of unit scale. Logits and weights have no such
    scale: here it is compared with what half of the clients keep within.
    """

    bound: Annotated[float, Field(ge=1)] = 4.0
    """The variance that is accepted, over the squared usual deviation along the same direction."""
    most: BelowHalf = 0.4
    """The share of the clients that may be dropped; tolerates that many liars."""

    def robust(self, rows: Tensor) -> Tensor:
        """The mean of the clients that are kept, row by row."""
        kept = self.filter(rows)
        return (rows * kept.unsqueeze(2)).sum(dim=0) / kept.sum(dim=0).unsqueeze(1)

    def filter(self, rows: Tensor) -> Tensor:
        """Which clients are kept for which row, `[clients, rows]`."""
        values = rows.double().transpose(0, 1)  # [rows, clients, numbers]; squares of large lies need the range
        kept = torch.ones(values.shape[:2], dtype=torch.bool)
        spread = torch.arange(len(values))  # rows that may have more to drop
        for _ in range(math.floor(self.most * len(rows) + 1e-9)):
            here = kept[spread]
            variance, along = _principal(values[spread], here)
            along = along.masked_fill(~here, math.nan)
            deviation = (along - along.nanmedian(dim=1, keepdim=True).values).abs()
            usual = GAUSSIAN * deviation.nanmedian(dim=1).values
            wide = variance > self.bound * usual.square()
            spread = spread[wide]
            if not len(spread):
                break
            kept[spread, deviation[wide].nan_to_num(-1).argmax(dim=1)] = False
        return kept.T


AGGREGATORS: dict[str, type[Aggregator]] = {
    "cronus": Cronus,
    "krum": Krum,
    "mean": Mean,
    "median": Median,
    "trimmed_mean": TrimmedMean,
}
BelowHalf = Annotated[float, Field(ge=0, lt=0.5, title="a share from 0 to below one half")]
GAUSSIAN = 1.4826  # standard deviations of a normal distribution in its median absolute deviation


@dataclass
class Gathered:
    """Named tensors of every client, held until all have come, for rules that cannot be computed as a running sum."""

    aggregator: Aggregator
    weight: float = 0.0
    uploads: list[dict[str, Tensor]] = field(default_factory=list)

    def add(self, tensors: Mapping[str, Tensor], weight: float) -> None:
        """Keep one client's tensors."""
        if self.uploads:
            check_alike(tensors, self.uploads[0])
        self.uploads.append(dict(tensors))
        self.weight += weight

    def value(self) -> dict[str, Tensor]:
        """The aggregate of all floating-point numbers as one vector; counts take the largest value, as in a mean."""
        if not self.uploads:
            raise ValueError("an aggregate of nothing does not exist")
        first = self.uploads[0]
        floats = sorted(name for name, tensor in first.items() if tensor.dtype.is_floating_point)
        result = {
            name: torch.stack([upload[name] for upload in self.uploads]).amax(dim=0)
            for name in first.keys() - set(floats)
        }
        if floats:
            stacked = torch.stack([torch.cat([u[name].float().reshape(-1) for name in floats]) for u in self.uploads])
            parts = self.aggregator(stacked).split_with_sizes([first[name].numel() for name in floats])
            result |= {name: part.view(first[name].shape).to(first[name].dtype) for name, part in zip(floats, parts)}
        return {name: result[name] for name in first}


def _trimmed(rows: Tensor, cut: int) -> Tensor:
    """The mean over clients without the `cut` highest and lowest of every number."""
    return rows.sort(dim=0).values[cut : len(rows) - cut].mean(dim=0)


def _principal(values: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """The largest variance of the kept clients, `[rows]`, and all kept along its direction, `[rows, clients]`."""
    count = kept.sum(dim=1)
    mask = kept.unsqueeze(2)
    mean = (values * mask).sum(dim=1, keepdim=True) / count.view(-1, 1, 1)
    centred = (values - mean) * mask
    if values.shape[2] <= values.shape[1]:
        variances, directions = torch.linalg.eigh(centred.transpose(1, 2) @ centred)
        along = (centred @ directions[:, :, -1:]).squeeze(2)
    else:  # products of clients with clients have the same largest eigenvalue, and are fewer
        variances, directions = torch.linalg.eigh(centred @ centred.transpose(1, 2))
        along = directions[:, :, -1] * variances[:, -1:].clamp(min=0).sqrt()
    return variances[:, -1] / count, along


def _ceil(number: float) -> int:
    return math.ceil(number - 1e-9)  # 0.1 * 30 is a little more than 3
