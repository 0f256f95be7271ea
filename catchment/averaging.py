"""Means over clients.

Batch normalisation: running means and running variances are averaged with the same weights as the parameters (the
usual choice; the variance between the clients' means is left out, as the averaged network's activations are not a
mixture of theirs anyway). `num_batches_tracked` and other integer buffers take the largest value, because a count of
steps has no mean. Nothing is skipped: what is in the state dict is averaged.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class WeightedMean:
    """A running weighted mean of tensors by name; holds one sum, however many are added."""

    def __init__(self) -> None:
        self.weight = 0.0
        self._sums: dict[str, Tensor] = {}

    def add(self, tensors: Mapping[str, Tensor], weight: float) -> None:
        """Add one party's tensors."""
        if not self._sums:
            self._sums = {
                name: tensor.clone() if _is_count(tensor) else tensor * weight for name, tensor in tensors.items()
            }
        else:
            for name, total in self._sums.items():
                tensor = tensors[name]
                if _is_count(tensor):
                    torch.maximum(total, tensor, out=total)
                else:
                    total.add_(tensor, alpha=weight)
        self.weight += weight

    def value(self) -> dict[str, Tensor]:
        """The mean of what was added; at least one party must have been."""
        if not self.weight > 0:
            raise ValueError(f"a mean over weights that sum to {self.weight} does not exist")
        return {name: total if _is_count(total) else total / self.weight for name, total in self._sums.items()}


def _is_count(tensor: Tensor) -> bool:
    return not tensor.dtype.is_floating_point
