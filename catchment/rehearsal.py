"""What one request costs a client, measured by serving it once more with the result thrown away."""

from __future__ import annotations

from catchment.client import Versions, Workbench, serve
from catchment.costs.memory import PeakMemory
from catchment.message import Request
from catchment.world import World

BATCHES = 2  # of an epoch; the peak is reached in the second, when the optimiser has its state


def peak_memory(world: World, request: Request) -> int | None:
    """Bytes of a client's work on a request, activations included; None if it cannot be rehearsed alone."""
    with PeakMemory() as memory:
        versions = Versions() if world.remembers else None
        response = serve(world, request, versions, Workbench(batches=BATCHES))
    return memory.peak if response.body is not None else None
