"""DGC: Lin et al., Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed Training, ICLR 2018.

FedAvg in which a client sends the largest few numbers of what it changed. The others wait on the client and grow, with
momentum, until they are large enough; in its first turns a client sends more of them.

Departures: the paper compresses the gradient of every step, this the change of every round: what is written u and v
there is summed over rounds, and so is the warm-up counted, by client. Gradients are not clipped. Buffers, and tensors
too small to gain from it, go whole. The stages are `catchment.codecs.momentum` and `topk`.
"""

from __future__ import annotations

from dataclasses import dataclass

from catchment.methods.fedavg import FedAvg
from catchment.reading import ShareFrom0, ShareTo1, Whole


@dataclass(frozen=True)
class DGC(FedAvg):
    """Deep gradient compression of what clients changed."""

    share: ShareTo1 = 1 / 32
    """The share of the numbers of a tensor that are sent."""
    momentum: ShareFrom0 = 0.9
    """m of momentum correction; 0: none."""
    warmup: Whole = 4
    """Turns of a client in which it sends more: share^(turn / (warmup + 1))."""

    @property
    def codecs(self) -> tuple[str, ...]:
        """The largest of what waits, and more of it in a client's first turns."""
        return (f"up:weights/*=update+momentum({self.momentum})+topk({self.share},{self.warmup})",)
