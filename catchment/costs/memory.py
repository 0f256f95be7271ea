"""Peak memory of a client's work, measured tensor by tensor.

PyTorch keeps no such count on CPUs, and the memory of the process says little about one client in it. So every
storage that an operation allocates is counted until it is freed: weights, gradients, optimiser state, batches and the
activations saved for the backward pass. Scratch space inside an operation is not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PeakMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of tensors allocated while it is active; `peak` is the most at any time."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._live: dict[weakref.ref[torch.UntypedStorage], int] = {}
        self._now = 0

    def __torch_dispatch__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {leaf.untyped_storage() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.untyped_storage() not in given:  # a view makes no storage
                self._see(leaf.untyped_storage())
        return result

    def _see(self, storage: torch.UntypedStorage) -> None:
        reference = weakref.ref(storage, self._forget)
        if reference in self._live:
            return
        self._live[reference] = storage.nbytes()
        self._now += storage.nbytes()
        self.peak = max(self.peak, self._now)

    def _forget(self, reference: weakref.ref[torch.UntypedStorage]) -> None:
        self._now -= self._live.pop(reference, 0)
