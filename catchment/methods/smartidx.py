"""SmartIdx: Wu et al., Reducing Communication Cost in Federated Learning by Exploiting the CNNs Structures, AAAI 2022.

FedAvg in which a client sends the largest few numbers of what it changed, and says in few bits where they belong: whole
kernels in which most are large, patterns that many kernels share, and positions one by one, all as Golomb-coded gaps.

Departures: the paper's thresholds are not known to us; a kernel goes whole if more than half of it is chosen, and a
pattern is a package where that takes fewer bits. What is not sent is added to the next change. Buffers, and tensors too
small to gain from it, go whole. The stage is `catchment.codecs.smartidx`.
"""

from __future__ import annotations

from dataclasses import dataclass

from catchment.methods.fedavg import FedAvg
from catchment.reading import ShareTo1


@dataclass(frozen=True)
class SmartIdx(FedAvg):
    """The largest changes, in packages of kernels, patterns and single numbers."""

    share: ShareTo1 = 1 / 32
    """The share of the numbers of a tensor that are chosen."""

    @property
    def codecs(self) -> tuple[str, ...]:
        """Changes, with what was left out before, in packages."""
        return (f"up:weights/*=update+feedback+smartidx({self.share})",)
