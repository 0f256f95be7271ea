"""`serve` answers one request: the whole client side, on every transport.

A handler is a function of (declared state, message, data, derived seed).
"""

from __future__ import annotations

import time
import traceback
from contextlib import nullcontext
from pathlib import Path

from catchment.core.client import AVERAGE, Client
from catchment.core.method import contract
from catchment.core.versions import ClientState, Versions
from catchment.core.worker import WorkerCache
from catchment.core.world import World
from catchment.errors import CatchmentError, ProtocolError
from catchment.exchange.request import Request, Response
from catchment.randomness import seeded_globals

WIRE = "(wire)"  # the part of a client's state that belongs to the codecs


def serve(world: World, request: Request, versions: Versions | None, cache: WorkerCache) -> Response:
    """Answer one request: the whole client side, on every transport.

    `versions` is where the client remembers; None if the method declares nothing persistent. An exception in the
    handler is a failed reply with its reason, and leaves the state as it was.
    """
    began = time.perf_counter()
    cache.macs = 0
    method = world.method
    state: ClientState = {}
    if versions is not None:
        state = versions.newest(request.sequence) if request.aside else versions.before(request)
    watched = [*request.body.tensors.values(), *(t for tensors in state.values() for t in tensors.values())]
    before = [t._version for t in watched]
    wire, memory = world.wire, state.pop(WIRE, {})
    client = Client(world, request, state, cache, state.pop(AVERAGE, {}))
    try:
        kinds = contract(type(method), request.handler)
        draws = world.client_architecture(request.client).facts.draws
        decoded = request.body if request.aside else wire.decode(request.body, "down")
        with seeded_globals(client.seed("global")) if draws else nullcontext():
            reply = getattr(method, request.handler)(client, kinds.request.unpack(decoded))
        if not isinstance(reply, kinds.reply):
            raise ProtocolError(
                f"{request.handler} returned a {type(reply).__name__}; it is declared to return {kinds.reply.__name__}"
            )
        if before != [t._version for t in watched]:
            raise ProtocolError(
                f"{request.handler} changed a tensor of its request or of client.state in place; clone it first"
            )
        body = reply.pack(cache.settle)
        if not request.aside:
            body, memory = wire.encode(body, "up", memory, decoded)
        if versions is not None and not request.aside:
            kept = _declared(client.state, method.persistent, cache)
            own = {WIRE: memory, AVERAGE: {name: cache.settle(t) for name, t in client.average.items()}}
            versions.keep(request, kept | {name: tensors for name, tensors in own.items() if tensors})
        elif client.state and versions is None:
            raise ProtocolError(f"{request.handler} filled client.state, but persistent declares nothing")
    except Exception as error:
        seconds = time.perf_counter() - began
        return Response(request.client, request.sequence, None, 0, seconds, _reason(error), True, request.aside)
    seconds = time.perf_counter() - began
    return Response(request.client, request.sequence, body, cache.macs, seconds, aside=request.aside)


def _declared(state: ClientState, persistent: tuple[str, ...], cache: WorkerCache) -> ClientState:
    extra = sorted(set(state) - set(persistent))
    if extra:
        raise ProtocolError(f"client.state has {', '.join(extra)}; persistent declares {', '.join(persistent)}")
    return {group: {name: cache.settle(tensor) for name, tensor in tensors.items()} for group, tensors in state.items()}


def _reason(error: Exception) -> str:
    """One line: the text of an error of ours; of any other, also its class and where it was raised."""
    if isinstance(error, CatchmentError):
        return str(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(frame.filename).name}, line {frame.lineno})"
