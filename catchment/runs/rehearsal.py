"""What one request costs a client, measured by serving it once more with the result thrown away."""

from __future__ import annotations

from catchment.client.state import Versions
from catchment.core.worker import WorkerCache
from catchment.core.world import World
from catchment.costs.memory import PeakMemory
from catchment.exchange.request import Request
from catchment.runtimes.torch import serve

BATCHES = 2  # of an epoch; the peak is reached in the second, when the optimiser has its state


def peak_memory(world: World, request: Request) -> int | None:
    """Peak bytes of a client's work on a request, activations included; None if it cannot be repeated on its own."""
    with PeakMemory() as memory:
        versions = Versions() if world.remembers else None
        response = serve(world, request, versions, WorkerCache(batches=BATCHES))
    return memory.peak if response.body is not None else None
