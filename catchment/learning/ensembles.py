"""Several models that see the same images: teachers, or students of one teacher. Knows nothing of federation.

Dense models of one architecture run as one batched call, which saves many small operations. Convolutions do not: with
different weights per model they become grouped convolutions, which are slower than a loop on CPUs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

from catchment.models import SplitModel

ENOUGH = 4  # models of one architecture, from which on one call is faster than a loop
BATCHED = (SplitModel, nn.Sequential, nn.Flatten, nn.Linear, nn.ReLU, nn.Identity)


class Ensemble:
    """Models in evaluation mode, so that batch normalisation keeps its statistics; their order is that of groups."""

    def __init__(self, groups: Sequence[Sequence[nn.Module]], enough: int = ENOUGH) -> None:
        """A group is models of one architecture; `enough` of them run as one call, if they can."""
        self._groups: list[_Loop | _Stack] = []
        for models in groups:
            for model in models:
                model.eval()
            together = len(models) >= enough and all(type(part) in BATCHED for part in models[0].modules())
            self._groups.append(_Stack(models) if together else _Loop(models))

    def __call__(self, images: Tensor) -> Tensor:
        """The logits of every model, `[models, B, C]`."""
        return torch.cat([group(images) for group in self._groups])

    def parameters(self) -> list[Tensor]:
        """What an optimiser steps: the weights of all models."""
        return [weight for group in self._groups for weight in group.parameters()]

    def settle(self) -> None:
        """Put trained weights back into the models they belong to."""
        for group in self._groups:
            group.settle()


class _Loop:
    """One model after another."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._models = models

    def __call__(self, images: Tensor) -> Tensor:
        return torch.stack([model(images) for model in self._models])

    def parameters(self) -> list[Tensor]:
        return [weight for model in self._models for weight in model.parameters() if weight.requires_grad]

    def settle(self) -> None:
        """The models were trained where they are."""


class _Stack:
    """All models in one call; their weights are stacked, `[models, ...]`."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._models = models
        self._weights, self._buffers = stack_module_state(list(models))

    def __call__(self, images: Tensor) -> Tensor:
        def one(weights: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
            return functional_call(self._models[0], (weights, buffers), (images,))  # type: ignore[no-any-return]

        logits: Tensor = torch.vmap(one)(self._weights, self._buffers)
        return logits

    def parameters(self) -> list[Tensor]:
        return [weight for weight in self._weights.values() if weight.requires_grad]

    @torch.no_grad()
    def settle(self) -> None:
        for number, model in enumerate(self._models):
            for name, weight in model.named_parameters():
                weight.copy_(self._weights[name][number])
