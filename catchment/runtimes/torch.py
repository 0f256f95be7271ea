"""Handlers of methods in PyTorch: a handler is a function of (declared state, message, data, derived seed)."""

from __future__ import annotations

from contextlib import nullcontext

from catchment.client.answer import Work, answer
from catchment.client.state import ClientState, Versions
from catchment.core.client import AVERAGE, Client
from catchment.core.method import contract
from catchment.core.worker import WorkerCache
from catchment.core.world import World
from catchment.errors import ProtocolError
from catchment.exchange.message import Message
from catchment.exchange.request import Request, Response
from catchment.randomness import seeded_globals


class TorchRuntime:
    """The clients of a world; `cache` is what the worker reuses from request to request."""

    def __init__(self, world: World, cache: WorkerCache) -> None:
        self._world = world
        self._cache = cache

    def run(self, request: Request, message: Message, state: ClientState) -> Work:
        """Let the method's handler answer."""
        world, cache, method = self._world, self._cache, self._world.method
        cache.macs = 0
        watched = [*message.tensors.values(), *(t for tensors in state.values() for t in tensors.values())]
        before = [t._version for t in watched]
        state = dict(state)
        client = Client(world, request, state, cache, state.pop(AVERAGE, {}))
        kinds = contract(type(method), request.handler)
        draws = world.client_architecture(request.client).facts.draws
        with seeded_globals(client.seed("global")) if draws else nullcontext():
            reply = getattr(method, request.handler)(client, kinds.request.unpack(message))
        if not isinstance(reply, kinds.reply):
            raise ProtocolError(
                f"{request.handler} returned a {type(reply).__name__}; it is declared to return {kinds.reply.__name__}"
            )
        if before != [t._version for t in watched]:
            raise ProtocolError(
                f"{request.handler} changed a tensor of its request or of client.state in place; clone it first"
            )
        return Work(reply.pack(cache.settle), self._kept(client, request), cache.macs)

    def _kept(self, client: Client, request: Request) -> ClientState:
        """What the client keeps, as far as the method declares it, and the moving average of its own model."""
        persistent = self._world.method.persistent
        if client.state and not persistent:
            raise ProtocolError(f"{request.handler} filled client.state, but persistent declares nothing")
        if request.aside:
            return {}
        if extra := sorted(set(client.state) - set(persistent)):
            raise ProtocolError(f"client.state has {', '.join(extra)}; persistent declares {', '.join(persistent)}")
        groups = {**client.state, **({AVERAGE: client.average} if client.average else {})}
        settle = self._cache.settle
        return {group: {name: settle(t) for name, t in tensors.items()} for group, tensors in groups.items()}


def serve(world: World, request: Request, versions: Versions | None, cache: WorkerCache) -> Response:
    """Answer one request of a client of this world."""
    return answer(TorchRuntime(world, cache), world.codecs, request, versions)
