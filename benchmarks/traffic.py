"""A method that only carries bytes, for `flower.py`: random tensors down and up, timed at the server."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch
from torch import Tensor

from catchment import Client, Fleet, Method, Metrics, Payload, Server, on_client


@dataclass(frozen=True)
class Load(Payload):
    wanted: int  # bytes
    cargo: Tensor


@dataclass(frozen=True)
class Cargo(Payload):
    cargo: Tensor
    seconds: float  # to make it


@dataclass
class State:
    seconds: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Traffic(Method[State]):
    """Round 1 warms up; round 2 sends empty requests, and then `megabytes` up and down, to one client."""

    megabytes: int = 1
    repeats: int = 3
    empty: int = 20

    def init(self, server: Server) -> State:
        return State()

    def round(self, server: Server, state: State, fleet: Fleet) -> None:
        self._time(state, "first", fleet, 0, 0)
        if server.round == 1:
            return
        size = self.megabytes * 1_000_000
        for _ in range(self.empty):
            self._time(state, "empty", fleet, 0, 0)
        for _ in range(self.repeats):
            self._time(state, "up", fleet, 0, size)
            self._time(state, "down", fleet, size, 0)

    def _time(self, state: State, name: str, fleet: Fleet, down: int, up: int) -> None:
        client = fleet.clients()[0]
        load = Load(up, _random(down))
        began = time.perf_counter()
        (reply,) = fleet.ask(self.carry, {client: load})
        if len(reply.body.cargo) != up:
            raise AssertionError(f"{len(reply.body.cargo)} bytes came, {up} were asked for")
        state.seconds.setdefault(name, []).append(time.perf_counter() - began - reply.body.seconds)

    @on_client
    def carry(self, client: Client, request: Load) -> Cargo:
        began = time.perf_counter()
        cargo = _random(request.wanted)
        return Cargo(cargo, time.perf_counter() - began)

    def evaluate(self, server: Server, state: State, fleet: Fleet) -> Metrics:
        numbered = {f"{name} {i}": s for name, found in state.seconds.items() for i, s in enumerate(found)}
        return Metrics(0.0, more=numbered)


def _random(size: int) -> Tensor:
    """Bytes that do not compress and are not met twice, as Flower sends equal chunks once."""
    generator = torch.Generator().manual_seed(time.perf_counter_ns())
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
