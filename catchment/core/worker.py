"""What a worker keeps between requests: modules and optimisers, built once and reused.

Nothing of a request stays in them, because `client.model()` overwrites every weight.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from catchment.core.architecture import Architecture
from catchment.core.world import World
from catchment.errors import RunError
from catchment.exchange.message import plain
from catchment.learning.optimizers import in_groups
from catchment.learning.training import Weights, tensors_of


class BuiltModel(NamedTuple):
    """A built module and its live tensors."""

    module: nn.Module
    tensors: Weights
    parameters: tuple[nn.Parameter, ...]


class WorkerCache:
    """Modules and optimisers of one worker thread, built once and reused, and its count of work."""

    def __init__(self, stop: threading.Event | None = None, batches: int | None = None) -> None:
        self.macs = 0
        self.batches = batches  # at most this many per epoch; None: all
        self._built: dict[Architecture, BuiltModel] = {}
        self._optimizers: dict[nn.Module, tuple[torch.optim.Optimizer, list[dict[str, Any]]]] = {}
        self._hooks: dict[torch.optim.Optimizer, RemovableHandle] = {}
        self._storages: set[int] = set()
        self._stop = stop

    def built(self, architecture: Architecture) -> BuiltModel:
        """The worker's module of an architecture."""
        if architecture not in self._built:
            module = architecture.build()
            for child, macs in architecture.facts.macs.items():
                module.get_submodule(child).register_forward_hook(self._counter(macs))
            tensors = tensors_of(module)
            self._storages |= {t.untyped_storage().data_ptr() for t in tensors.values()}
            self._built[architecture] = BuiltModel(module, tensors, tuple(module.parameters()))
        return self._built[architecture]

    def optimizer(self, model: nn.Module, world: World) -> torch.optim.Optimizer:
        """The worker's optimiser of a module, reset."""
        if model not in self._optimizers:
            optimizer = world.client_optimizer.build(in_groups(model, world.method.rate_shares))
            groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
            self._optimizers[model] = optimizer, groups
        optimizer, groups = self._optimizers[model]
        if optimizer in self._hooks:
            self._hooks.pop(optimizer).remove()
        optimizer.state.clear()
        for group, first in zip(optimizer.param_groups, groups):
            group.update(first)
        return optimizer

    def after_steps(self, optimizer: torch.optim.Optimizer, do: Callable[[], None]) -> None:
        """Do something after every step of an optimiser, until it is given out again."""
        self._hooks[optimizer] = optimizer.register_step_post_hook(lambda *_: do())

    def settle(self, tensor: Tensor) -> Tensor:
        """A tensor that may outlive the request: plain, and copied out of the worker's memory."""
        tensor = plain(tensor)
        return tensor.clone() if tensor.untyped_storage().data_ptr() in self._storages else tensor

    def between_batches(self) -> None:
        """Stop here if the run was stopped."""
        if self._stop is not None and self._stop.is_set():
            raise RunError("the run was stopped")

    def _counter(self, macs: int) -> Any:
        def count(module: nn.Module, inputs: tuple[Tensor, ...], output: object) -> None:
            # A backward pass costs about two forward passes.
            self.macs += macs * len(inputs[0]) * (3 if torch.is_grad_enabled() else 1)

        return count
