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

from catchment.errors import ModelError


class WeightedMean:
    """A running weighted mean of tensors by name; holds one sum, however many are added."""

    def __init__(self) -> None:
        self.weight = 0.0
        self._sums: dict[str, Tensor] = {}
        self._dtypes: dict[str, torch.dtype] = {}

    def add(self, tensors: Mapping[str, Tensor], weight: float) -> None:
        """Add one client's tensors."""
        if not self._sums:
            self._sums = {
                name: tensor.clone() if _is_count(tensor) else _wide(tensor) * weight
                for name, tensor in tensors.items()
            }
            self._dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
        else:
            check_alike(tensors, self._sums)
            for name, total in self._sums.items():
                tensor = tensors[name]
                if _is_count(tensor):
                    torch.maximum(total, tensor, out=total)
                else:
                    total.add_(_wide(tensor), alpha=weight)
        self.weight += weight

    def value(self) -> dict[str, Tensor]:
        """The mean of what was added, which must be something."""
        if not self.weight > 0:
            raise ValueError(f"a mean over weights that sum to {self.weight} does not exist")
        return {
            name: total.clone() if _is_count(total) else (total / self.weight).to(self._dtypes[name])
            for name, total in self._sums.items()
        }


def check_alike(tensors: Mapping[str, Tensor], first: Mapping[str, Tensor]) -> None:
    """Refuse tensors that cannot be averaged with the first ones."""
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    if shapes != (known := {name: tensor.shape for name, tensor in first.items()}):
        wrong = sorted(name for name in shapes.keys() | known.keys() if shapes.get(name) != known.get(name))
        raise ModelError(f"tensors to average have other names or shapes than the first: {', '.join(wrong[:4])}")


def _wide(tensor: Tensor) -> Tensor:
    """Half precision would overflow in a sum over samples."""
    return tensor.float() if tensor.dtype.itemsize < 4 else tensor


def _is_count(tensor: Tensor) -> bool:
    return not tensor.dtype.is_floating_point
