"""The loop of local training, and loading and reading the weights of a module. Knows nothing of federation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

from catchment.data import Batch
from catchment.errors import Diverged, ModelError

Weights = dict[str, Tensor]  # the state dict of a module: parameters and buffers


def fit(optimizer: torch.optim.Optimizer, batches: Iterable[Batch], loss: Callable[[Batch], Tensor]) -> float:
    """One step per batch; returns the mean loss. A loss that is not finite raises `Diverged`."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    total: Tensor | None = None
    steps = 0
    for batch in batches:
        for parameter in parameters:  # zero_grad() in a fraction of its time, which counts for tiny models
            parameter.grad = None
        value = loss(batch)
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        total = value.detach() if total is None else total + value.detach()
        steps += 1
    mean = 0.0 if total is None else float(total) / steps
    if mean != mean or mean in (float("inf"), float("-inf")):
        raise Diverged(
            f"the loss is {mean} after {steps} steps; a lower learning rate (optimizer.*.lr, now "
            f"{optimizer.param_groups[0]['lr']:g}) or normalised data usually helps"
        )
    return mean


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
