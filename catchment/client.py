"""The client side: what a handler sees, and `serve`, which is the whole client for every transport.

A handler is a function of (declared state, message, data, derived seed). Modules and optimisers are built once for
each worker and reused; nothing of a request stays in them, because `client.model()` overwrites every weight.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from catchment.codecs import Memory, Wire
from catchment.data import Batch, Samples, batches
from catchment.data.batching import batch_sizes
from catchment.errors import CatchmentError, DataError, ProtocolError, RunError
from catchment.evaluate import Score, evaluate
from catchment.message import TRAINING, Message, Request, Response, plain
from catchment.method import contract
from catchment.randomness import derive, seeded_globals
from catchment.training import Weights, load_weights, tensors_of
from catchment.world import Architecture, World

ClientState = dict[str, dict[str, Tensor]]  # by the names a method declares in `persistent`
WIRE = "(wire)"  # the part of a client's state that belongs to the codecs


class Client:
    """One client while it answers one request."""

    def __init__(self, world: World, request: Request, state: ClientState, workbench: Workbench) -> None:
        self.id = request.client
        self.round = request.round
        self.state = state
        self.world = world
        self._request = request
        self._workbench = workbench

    @cached_property
    def train(self) -> Samples:
        """The client's private training data."""
        return self.world.private(self.id)

    @property
    def test(self) -> Samples:
        """The global test set."""
        return self.world.data.test

    @property
    def public(self) -> Samples | None:
        """The public data that everybody has, if the experiment has any."""
        return self.world.data.public

    def model(self, weights: Mapping[str, Tensor] | None = None) -> nn.Module:
        """The client's model in training mode, with these weights; without any, with the first weights of the run."""
        return self._module(self.world.client_architecture(self.id), weights)

    def server_model(self, weights: Mapping[str, Tensor]) -> nn.Module:
        """The server's model with these weights, for clients that run it."""
        return self._module(self.world.server_architecture, weights)

    def _module(self, architecture: Architecture, weights: Mapping[str, Tensor] | None) -> nn.Module:
        made = self._workbench.made(architecture)
        load_weights(made.tensors, architecture.probe.initial if weights is None else weights, architecture.name)
        for parameter in made.parameters:
            parameter.grad = None
        if not made.module.training:
            made.module.train()
        return made.module

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """A fresh optimiser for a model, as `[optimizer.client]` says."""
        return self._workbench.optimizer(model, self.world)

    def batches(
        self, samples: Samples | None = None, *, epochs: int = 1, shuffle: bool = True, augment: bool = True
    ) -> Iterator[Batch]:
        """Training batches of the client's data (or of `samples`), normalised, on the compute device."""
        samples = self.train if samples is None else samples
        for epoch in range(epochs):
            seed = self.seed("shuffle", epoch) if shuffle else None
            for batch in islice(self._epoch(samples, epoch, seed, augment), self._workbench.batches):
                self._workbench.between_batches()
                yield batch.to(self.world.device)

    @property
    def batches_per_epoch(self) -> int:
        """How many batches an epoch of the client's data has."""
        return len(batch_sizes(len(self.train), self.world.client_optimizer.batch_size))

    def batch(self, number: int) -> Batch:
        """One batch of the client's data by its number in the round, counted over epochs.

        For methods that ask once a batch: it does not depend on the request, and those before it are not made.
        """
        if not len(self.train):
            raise DataError(f"client {self.id} has no samples to train on; another data.partition may give it some")
        epoch, place = divmod(number, self.batches_per_epoch)
        # As in the client's first request of the round: there `batches` gives the same ones in the same order.
        seed = derive(self.world.seed, "shuffle", epoch, TRAINING, self.id, self.round, 0)
        self._workbench.between_batches()
        return next(self._epoch(self.train, epoch, seed, augment=True, start=place)).to(self.world.device)

    def _epoch(self, samples: Samples, epoch: int, seed: int | None, augment: bool, start: int = 0) -> Iterator[Batch]:
        world = self.world
        return batches(
            samples,
            world.client_optimizer.batch_size,
            normalise=world.normalise,
            seed=seed,
            augment=world.augment if augment else (),
            augment_seed=derive(world.seed, "augment", self.id, self.round, epoch) if world.augment else 0,
            channels_last=world.client_architecture(self.id).probe.spatial,
            start=start,
        )

    def evaluate(self, model: nn.Module, samples: Samples | None = None) -> Score:
        """Score a model on the test set (or on `samples`)."""
        samples = self.test if samples is None else samples
        if not len(samples):
            raise DataError(f"client {self.id} has no samples to test on; put a test split beside its train split")
        return evaluate(model, samples, self.world.normalise, self.world.device)

    def seed(self, *purpose: str | int) -> int:
        """A seed for one purpose of this request."""
        r = self._request
        return derive(self.world.seed, *purpose, r.purpose, r.client, r.round, r.turn)


# ---- what a worker keeps between requests -----------------------------------------------------------------------


class Made(NamedTuple):
    """A built module and its live tensors."""

    module: nn.Module
    tensors: Weights
    parameters: tuple[nn.Parameter, ...]


class Workbench:
    """Modules and optimisers of one worker thread, built once and reused, and its count of work."""

    def __init__(self, stop: threading.Event | None = None, batches: int | None = None) -> None:
        self.macs = 0
        self.batches = batches  # of an epoch; None: all
        self._made: dict[Architecture, Made] = {}
        self._optimizers: dict[nn.Module, tuple[torch.optim.Optimizer, list[dict[str, Any]]]] = {}
        self._storages: set[int] = set()
        self._stop = stop

    def made(self, architecture: Architecture) -> Made:
        """The worker's module of an architecture."""
        if architecture not in self._made:
            module = architecture.build()
            for child, macs in architecture.probe.macs.items():
                module.get_submodule(child).register_forward_hook(self._counter(macs))
            tensors = tensors_of(module)
            self._storages |= {t.untyped_storage().data_ptr() for t in tensors.values()}
            self._made[architecture] = Made(module, tensors, tuple(module.parameters()))
        return self._made[architecture]

    def optimizer(self, model: nn.Module, world: World) -> torch.optim.Optimizer:
        """The worker's optimiser of a module, as good as new."""
        if model not in self._optimizers:
            optimizer = world.client_optimizer.build(model.parameters())
            groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
            self._optimizers[model] = optimizer, groups
        optimizer, groups = self._optimizers[model]
        optimizer.state.clear()
        for group, first in zip(optimizer.param_groups, groups):
            group.update(first)
        return optimizer

    def settle(self, tensor: Tensor) -> Tensor:
        """A tensor that may outlive the request: plain, and not the worker's own memory."""
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


# ---- versions of a client's state -------------------------------------------------------------------------------


class Versions:
    """What one client remembers: a few versions of its state, so that a resumed run can go back.

    A version is named by the request that made it. A request starts from the newest version before itself. Kept are
    the newest, the one it was made from (a checkpoint may be written before the reply is seen), and the one that the
    last checkpoint relies on. Methods here replace the table and never change it, so another thread may read it.
    """

    def __init__(self) -> None:
        self._kept: dict[int, tuple[int, ClientState]] = {}  # sequence -> (life, state)

    def before(self, request: Request) -> ClientState:
        """The state that a request starts from; what disowned lives left is dropped."""
        self._kept = {s: v for s, v in self._kept.items() if v[0] >= request.life or s < request.start}
        return self.newest(request.sequence)

    def newest(self, before: int) -> ClientState:
        """The newest state made by a request with a number below `before`."""
        sequence = self._newest(before)
        return {} if sequence is None else dict(self._kept[sequence][1])

    def keep(self, request: Request, state: ClientState) -> None:
        """Keep the state after a request."""
        needed = (self._newest(request.base), self._newest(request.sequence))
        kept = {s: v for s, v in self._kept.items() if s in needed}
        self._kept = {**kept, request.sequence: (request.life, state)}

    def replace(self, change: Callable[[ClientState], ClientState]) -> None:
        """Put every version through a function (strict mode: to bytes and back)."""
        self._kept = {sequence: (life, change(state)) for sequence, (life, state) in self._kept.items()}

    def _newest(self, before: int) -> int | None:
        return max((s for s in self._kept if s < before), default=None)

    def restore(self, state: ClientState) -> None:
        """Start from a checkpointed state, older than any request to come."""
        self._kept = {-1: (-1, state)}


def state_to_message(state: ClientState) -> Message:
    """A client's state as one message, for disks and for strict mode."""
    return Message({f"{group}/{name}": t for group, tensors in state.items() for name, t in tensors.items()})


def state_from_message(message: Message) -> ClientState:
    """The inverse of `state_to_message`."""
    state: ClientState = {}
    for key, tensor in message.tensors.items():
        group, _, name = key.partition("/")
        state.setdefault(group, {})[name] = tensor
    return state


# ---- serve ------------------------------------------------------------------------------------------------------


def serve(world: World, request: Request, versions: Versions | None, workbench: Workbench) -> Response:
    """Answer one request: the whole client side, on every transport.

    `versions` is where the client remembers; None if the method declares nothing persistent. An exception in the
    handler is a failed reply with its reason, and leaves the state as it was.
    """
    began = time.perf_counter()
    workbench.macs = 0
    method = world.method
    state: ClientState = {}
    if versions is not None:
        state = versions.newest(request.sequence) if request.aside else versions.before(request)
    watched = [*request.body.tensors.values(), *(t for tensors in state.values() for t in tensors.values())]
    before = [t._version for t in watched]
    memory = state.pop(WIRE, {})
    client = Client(world, request, state, workbench)
    try:
        kinds = contract(type(method), request.handler)
        draws = world.client_architecture(request.client).probe.draws
        heard, holds, memory = decode_request(world.wire, request, memory)
        with seeded_globals(client.seed("global")) if draws else nullcontext():
            reply = getattr(method, request.handler)(client, kinds.request.unpack(heard))
        if not isinstance(reply, kinds.reply):
            raise ProtocolError(
                f"{request.handler} returned a {type(reply).__name__}; it is declared to return {kinds.reply.__name__}"
            )
        if before != [t._version for t in watched]:
            raise ProtocolError(
                f"{request.handler} changed a tensor of its request or of client.state in place; clone it first"
            )
        body = reply.pack()
        body = Message({name: workbench.settle(t) for name, t in body.tensors.items()}, body.scalars)
        if not request.aside and world.wire.touches("up"):
            body, memory = world.wire.encode(body, "up", memory, number=request.sequence, base=heard, peer_holds=holds)
        if versions is not None and not request.aside:
            kept = _declared(client.state, method.persistent, workbench)
            versions.keep(request, {**kept, WIRE: memory} if memory else kept)
        elif client.state and versions is None:
            raise ProtocolError(f"{request.handler} filled client.state, but persistent declares nothing")
    except Exception as error:
        seconds = time.perf_counter() - began
        return Response(request.client, request.sequence, None, 0, seconds, _reason(error), True, request.aside)
    seconds = time.perf_counter() - began
    return Response(request.client, request.sequence, body, workbench.macs, seconds, aside=request.aside)


HOLDS = "(holds)"  # a scalar of requests: the number of the last reply that the server can take differences against


def decode_request(wire: Wire, request: Request, memory: Memory) -> tuple[Message, int | None, Memory]:
    """What the server meant to say, which of our replies it holds, and what the codecs remember now."""
    body, holds = request.body, request.body.scalars.get(HOLDS)
    if holds is not None:
        body = Message(body.tensors, {name: value for name, value in body.scalars.items() if name != HOLDS})
    if not request.aside and wire.touches("down"):
        body, memory = wire.decode(body, "down", memory, number=request.sequence)
    return body, holds if isinstance(holds, int) else None, memory


def _declared(state: ClientState, persistent: tuple[str, ...], workbench: Workbench) -> ClientState:
    extra = sorted(set(state) - set(persistent))
    if extra:
        raise ProtocolError(f"client.state has {', '.join(extra)}; persistent declares {', '.join(persistent)}")
    return {
        group: {name: workbench.settle(tensor) for name, tensor in tensors.items()} for group, tensors in state.items()
    }


def _reason(error: Exception) -> str:
    """One line: an error of ours says it all, another one gets its class and its place."""
    if isinstance(error, CatchmentError):
        return str(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(frame.filename).name}, line {frame.lineno})"
