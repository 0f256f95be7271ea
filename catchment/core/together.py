"""Clients that are trained in one call: who can be, and how a group of requests is answered.

A method offers it with a second form of a handler: beside `def train(self, client, request: Q) -> R` it has
`def train_together(self, clients, request: Q) -> list[R]`.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence

from catchment.core.client import Client
from catchment.core.method import Method, contract, handlers
from catchment.core.session import Session
from catchment.core.worker import WorkerCache
from catchment.core.world import World
from catchment.errors import ExperimentError, ProtocolError
from catchment.exchange.request import Request, Response
from catchment.learning.optimizers import set_rate
from catchment.learning.together import Loss, SideBySide
from catchment.learning.training import Weights

TOGETHER = "_together"
LARGEST = 20_000  # parameters; larger models gain less than 3 times


def has_together(method: type[Method], handler: str) -> bool:  # type: ignore[type-arg]
    """Whether a handler has a form for many clients."""
    return hasattr(method, handler + TOGETHER)


def check_together(world: World) -> None:
    """Refuse `batched = true` where clients cannot be trained in one call, or would gain too little."""
    method = type(world.method)
    if not any(has_together(method, handler) for handler in handlers(method)):
        raise ExperimentError(
            f"batched is true, and {method.__name__} trains clients one by one; use fedavg, or batched = false"
        )
    architecture = world.one_architecture(method.__name__)
    facts = architecture.facts
    parameters = {name for name, _ in architecture.build().named_parameters()}
    if facts.parameters > LARGEST or facts.spatial or facts.draws or parameters != facts.initial.keys():
        raise ExperimentError(
            f"batched is true, which is for models of at most {LARGEST:,} parameters without convolutions, batch "
            f'normalisation and dropout; "{architecture.name}" is not one of them'
        )
    if world.remembers or world.wire.touches("down"):
        raise ExperimentError("batched is true, which does not go with codecs that remember, nor with codecs down")


def alike(world: World, request: Request) -> Hashable:
    """Requests with the same key can be answered together."""
    samples = int(world.data.clients.sizes[request.client])
    return request.handler, request.purpose, request.round, id(request.body), samples


def serve_together(world: World, requests: Sequence[Request], cache: WorkerCache) -> list[Response]:
    """Answer requests that are alike; an exception is one of the group, whose requests can then be served singly."""
    began = time.perf_counter()
    cache.macs = 0
    first, method = requests[0], world.method
    kinds = contract(type(method), first.handler)
    decoded = Session(world.wire).decode_request(first)
    clients = [Client(world, request, {}, cache) for request in requests]
    replies = getattr(method, first.handler + TOGETHER)(clients, kinds.request.unpack(decoded))
    if len(replies) != len(clients) or not all(isinstance(reply, kinds.reply) for reply in replies):
        raise ProtocolError(
            f"{first.handler}{TOGETHER} returned {len(replies)} replies to {len(clients)} clients; one "
            f"{kinds.reply.__name__} for each is expected"
        )
    bodies = [
        Session(world.wire).encode_reply(request, decoded, reply.pack(cache.settle))
        for request, reply in zip(requests, replies)
    ]
    seconds = (time.perf_counter() - began) / len(requests)  # of one of them, as the multiply-accumulates are
    return [Response(r.client, r.sequence, body, cache.macs, seconds) for r, body in zip(requests, bodies)]


def fit_together(clients: Sequence[Client], weights: Weights, epochs: int, loss: Loss) -> list[tuple[Weights, float]]:
    """Train a model with these weights on each client's data; its weights and mean loss, for each client."""
    first = clients[0]
    models = SideBySide(first.model(weights), len(clients))
    optimizer = first.world.client_optimizer.build(models.parameters)
    set_rate(optimizer, first.rate)
    losses = models.fit(optimizer, zip(*(client.batches(epochs=epochs) for client in clients)), loss)
    return list(zip(models.weights(), losses))
