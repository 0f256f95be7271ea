"""Loading and reading the weights of a module. Knows nothing of federation."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from catchment.errors import ModelError

Weights = dict[str, Tensor]  # the state dict of a module: parameters and buffers


def tensors_of(module: nn.Module) -> Weights:
    """The live tensors of a module's state dict, by name."""
    return module.state_dict(keep_vars=True)


def load_weights(tensors: Weights, weights: Mapping[str, Tensor], where: str) -> None:
    """Copy weights into the live tensors of a module; names and shapes must agree."""
    if tensors.keys() != weights.keys():
        wrong = sorted(tensors.keys() ^ weights.keys())
        raise ModelError(f"weights for {where} have other names than the model: {', '.join(wrong[:4])} do not match")
    with torch.no_grad():
        for name, tensor in tensors.items():
            given = weights[name]
            if given.shape != tensor.shape:
                raise ModelError(
                    f"weights for {where}: {name} has shape {list(given.shape)}, the model's is {list(tensor.shape)}"
                )
            tensor.copy_(given)


def copy_weights(module: nn.Module) -> Weights:
    """A copy of a module's state dict that later training does not change."""
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
