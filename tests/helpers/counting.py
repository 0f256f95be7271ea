"""A method that only counts: how often a client was asked, by what the client itself remembers."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from catchment import Client, Fleet, Method, Metrics, Payload, Server, on_client


@dataclass(frozen=True)
class Ask(Payload):
    seconds: float


@dataclass(frozen=True)
class Count(Payload):
    count: Tensor  # []


@dataclass
class State:
    counts: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Counting(Method[State]):
    persistent: ClassVar[tuple[str, ...]] = ("memory",)
    seconds: float = 0.0  # of a client's turn
    hangs: int = -1  # the client whose turn never ends
    held: int = 0  # the round whose turns do not end before the file `released` is in `folder`
    folder: str = ""  # where clients say that their turn in that round has begun: `begun-K`

    def init(self, server: Server) -> State:
        return State()

    def round(self, server: Server, state: State, fleet: Fleet) -> None:
        for reply in fleet.ask(self.count, dict.fromkeys(fleet.cohort(), Ask(self.seconds))):
            state.counts[reply.client] = int(reply.body.count)

    @on_client
    def count(self, client: Client, request: Ask) -> Count:
        before = client.state.get("memory", {"count": torch.zeros((), dtype=torch.int64)})["count"]
        until = time.monotonic() + request.seconds
        while time.monotonic() < until or client.id == self.hangs:
            time.sleep(0.05)
        if client.round == self.held:
            (Path(self.folder) / f"begun-{client.id}").touch()
            while not (Path(self.folder) / "released").exists():
                time.sleep(0.05)
        client.state = {"memory": {"count": before + 1}}
        return Count(before + 1)

    def evaluate(self, server: Server, state: State, fleet: Fleet) -> Metrics:
        return Metrics(0.0, more={f"client {client}": float(count) for client, count in state.counts.items()})
