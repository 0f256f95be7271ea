"""What one request costs a client in memory: it is served once more, measured tensor by tensor, and thrown away.

PyTorch keeps no such count on CPUs, and the memory of the process says little about one client in it. So every
storage that an operation allocates is counted until it is freed: weights, gradients, optimiser state, batches and the
activations saved for the backward pass. Scratch space inside an operation is not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from catchment.client.state import Versions
from catchment.core.worker import WorkerCache
from catchment.core.world import World
from catchment.exchange.request import Request
from catchment.runtimes.torch import serve

BATCHES = 2  # of an epoch; the peak is reached in the second, when the optimiser has its state


def peak_memory(world: World, request: Request) -> int | None:
    """Peak bytes of a client's work on a request, activations included; None if it cannot be repeated on its own."""
    with PeakMemory() as memory:
        versions = Versions() if world.remembers else None
        response = serve(world, request, versions, WorkerCache(batches=BATCHES))
    return memory.peak if response.body is not None else None


# ---- counting ---------------------------------------------------------------------------------------------------


class PeakMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts bytes of tensors that are allocated while it is active: `now` those not freed yet, `peak` the most.

    Inside another one it takes the place of that, which counts nothing meanwhile.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._tokens: list[Token[PeakMemory | None]] = []
        self._live: dict[weakref.ref[torch.UntypedStorage], int] = {}
        self.now = 0

    def __enter__(self) -> Self:
        self._tokens.append(_counting.set(self))
        return super().__enter__()  # type: ignore[no-untyped-call, no-any-return]

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        _counting.reset(self._tokens.pop())

    def hold(self, tensor: Tensor, nbytes: int | None = None) -> None:
        """Count a tensor from elsewhere until it is freed, with `nbytes` in place of its own size if that is given."""
        self._see(tensor.untyped_storage(), tensor.nbytes if nbytes is None else nbytes)

    def pass_through(self, nbytes: int) -> None:
        """Count bytes that are needed for a moment."""
        self.peak = max(self.peak, self.now + nbytes)

    def __torch_dispatch__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _counting.get() is not self:
            return func(*args, **(kwargs or {}))
        given = {leaf.untyped_storage() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.untyped_storage() not in given:  # a view makes no storage
                self._see(leaf.untyped_storage(), leaf.untyped_storage().nbytes())
        return result

    def _see(self, storage: torch.UntypedStorage, nbytes: int) -> None:
        reference = weakref.ref(storage, self._forget)
        if reference in self._live:
            return
        self._live[reference] = nbytes
        self.now += nbytes
        self.peak = max(self.peak, self.now)

    def _forget(self, reference: weakref.ref[torch.UntypedStorage]) -> None:
        self.now -= self._live.pop(reference, 0)


_counting: ContextVar[PeakMemory | None] = ContextVar("counting", default=None)


def counting() -> PeakMemory | None:
    """What counts allocations now."""
    return _counting.get()


@contextmanager
def uncounted() -> Iterator[None]:
    """Nothing that is allocated meanwhile is counted."""
    token = _counting.set(None)
    try:
        with _disable_current_modes():
            yield
    finally:
        _counting.reset(token)
