"""Many small models that train side by side: one call of `torch.func` per step in place of one step per model.

Equal to training one after the other up to rounding: sums over a batch of matrices have another order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from catchment.data import Batch
from catchment.errors import Diverged
from catchment.learning.training import Weights

Loss = Callable[[Tensor, Tensor], Tensor]  # of outputs and labels


class SideBySide:
    """K models of one architecture; their parameters are stacked, `[K, ...]`."""

    def __init__(self, model: nn.Module, count: int) -> None:
        """All begin with the weights that the model has."""
        self._model = model
        self._count = count
        self._parameters = {
            name: nn.Parameter(parameter.detach().expand(count, *parameter.shape).clone())
            for name, parameter in model.named_parameters()
        }

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The stacked parameters, for an optimiser, whose rule must be elementwise."""
        return list(self._parameters.values())

    def fit(self, optimizer: torch.optim.Optimizer, batches: Iterable[Sequence[Batch]], loss: Loss) -> list[float]:
        """One step of all per K batches, which have one size; returns the mean losses."""

        def value(parameters: Mapping[str, Tensor], images: Tensor, labels: Tensor) -> Tensor:
            return loss(functional_call(self._model, dict(parameters), (images,)), labels)

        step = vmap(grad_and_value(value))
        total, steps = torch.zeros(self._count), 0
        for few in batches:
            live = {name: parameter.detach() for name, parameter in self._parameters.items()}
            images, labels = (torch.stack(tensors) for tensors in zip(*((b.images, b.labels) for b in few)))
            gradients, values = step(live, images, labels)
            for name, parameter in self._parameters.items():
                parameter.grad = gradients[name]
            optimizer.step()
            total = total + values.cpu()
            steps += 1
        means = (total / max(steps, 1)).tolist()
        if not all(abs(mean) < float("inf") for mean in means):
            raise Diverged("the loss of one of several clients that train together is not finite")
        return means

    def weights(self) -> list[Weights]:
        """The weights of each model."""
        each = {name: parameter.detach().unbind() for name, parameter in self._parameters.items()}
        return [{name: tensors[k] for name, tensors in each.items()} for k in range(self._count)]
