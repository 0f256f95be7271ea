"""The coded exchange of server and client: what the codecs of one side remember of its peer.

Requests go down, replies go up, and both have the number of the request. A codec that sends differences needs to know
which message its peer holds: the server learns it from the reply to a request, a client from the scalar `HOLDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from catchment.codecs import Memory, Wire
from catchment.core.spool import on_disk
from catchment.core.stopwatch import Stopwatch
from catchment.exchange.message import Message
from catchment.exchange.request import Request

HOLDS = "(holds)"  # a scalar of requests: the number of the last reply that the server can take differences against
LARGE = 2**20  # bytes of a tensor

Refuses = Callable[[str, torch.dtype, torch.Size], str]  # why a coded tensor must not be decoded; "" if it may be


@dataclass
class Session:
    """One side of the exchange with one peer. A client has one, the server one per client."""

    wire: Wire
    memory: Memory = field(default_factory=dict)
    peer_holds: int | None = None  # the number of the last message of this side that the peer surely decoded

    def encode_request(self, body: Message, number: int) -> Message:
        """On the server: the coded body of a request."""
        if self.wire.remembers("down"):
            body, self.memory = self.wire.encode(body, "down", self.memory, number=number, peer_holds=self.peer_holds)
        if self.wire.remembers("up") and "received" in self.memory:
            body = Message(body.tensors, {**body.scalars, HOLDS: int(self.memory["received"])})
        return body

    def decode_request(self, request: Request) -> Message:
        """On the client: the body of a request, decoded."""
        body, holds = request.body, request.body.scalars.get(HOLDS)
        if HOLDS in body.scalars:
            scalars = {name: value for name, value in body.scalars.items() if name != HOLDS}
            body = Message(body.tensors, scalars)
        self.peer_holds = holds if isinstance(holds, int) else None
        if not request.aside and self.wire.touches("down"):
            body, self.memory = self.wire.decode(body, "down", self.memory, number=request.sequence)
        return body

    def encode_reply(self, request: Request, decoded: Message, body: Message) -> Message:
        """On the client: the coded body of a reply; `decoded` is the body of its request."""
        if not request.aside and self.wire.touches("up"):
            body, self.memory = self.wire.encode(
                body, "up", self.memory, number=request.sequence, base=decoded, peer_holds=self.peer_holds
            )
        return body

    def decode_reply(self, request: Request, body: Message, refuses: Refuses | None = None) -> Message:
        """On the server: the body of a reply, decoded."""
        if not request.aside and self.wire.touches("up"):
            base = uncoded_request(self.wire, request)
            body, self.memory = self.wire.decode(
                body, "up", self.memory, number=request.sequence, base=base, refuses=refuses
            )
        return body


def uncoded_request(wire: Wire, request: Request) -> Message:
    """A request's body before it was coded; still coded where decoding needs the codecs' memory."""
    if request.aside or not wire.touches("down") or wire.remembers("down"):
        return request.body
    return wire.decode(request.body, "down", {}, number=request.sequence)[0]


class Sessions:
    """The server's sessions with all clients; large tensors of their memories are on disk."""

    def __init__(self, wire: Wire, directory: Path | None = None, stopwatch: Stopwatch | None = None) -> None:
        self._wire = wire
        self._stopwatch = stopwatch or Stopwatch()
        self._directory = directory
        self._by_client: dict[int, Session] = {}
        self._same_for_all = wire.touches("down") and not wire.remembers("down")
        self._remembers = wire.remembers("down") or wire.remembers("up")
        self._decodes = wire.touches("up")

    def encode_for_all(self, body: Message) -> Message:
        """A request's body, coded as far as that does not depend on the client."""
        if not self._same_for_all:
            return body
        with self._stopwatch.during("wire"):
            return self._wire.encode(body, "down", {}, number=0)[0]

    def encode_for(self, client: int, body: Message, number: int) -> Message:
        """What `encode_for_all` gave, coded for one client."""
        if not self._remembers:
            return body
        with self._session(client) as session:
            return session.encode_request(body, number)

    def decode_reply(self, request: Request, body: Message, refuses: Refuses) -> Message:
        """A reply's body, decoded."""
        if not self._decodes or request.aside:
            return body
        with self._session(request.client) as session:
            return session.decode_reply(request, body, refuses)

    def answered(self, request: Request) -> None:
        """A reply came, so its client has decoded the request."""
        if self._remembers and not request.aside:
            with self._session(request.client) as session:
                session.peer_holds = request.sequence

    @contextmanager
    def _session(self, client: int) -> Iterator[Session]:
        """The session with a client; new large tensors of its memory are moved to disk."""
        session = self._by_client.get(client) or Session(self._wire)
        before = session.memory
        with self._stopwatch.during("wire"):
            yield session
        if self._remembers:
            session.memory = {
                name: tensor
                if tensor is before.get(name) or tensor.nbytes < LARGE
                else on_disk(tensor, self._directory)
                for name, tensor in session.memory.items()
            }
            self._by_client[client] = session

    @property
    def memories(self) -> dict[int, Memory]:
        """What the codecs remember, by client."""
        return {client: session.memory for client, session in self._by_client.items() if session.memory}

    @property
    def held(self) -> dict[int, int]:
        """By client, the number of the last request that it has surely decoded."""
        found = {client: session.peer_holds for client, session in self._by_client.items()}
        return {client: number for client, number in found.items() if number is not None}

    def restore(self, memories: Mapping[int, Memory], held: Mapping[int, int]) -> None:
        """Go on from a checkpoint."""
        self._by_client = {
            client: Session(self._wire, dict(memories.get(client, {})), held.get(client))
            for client in dict.fromkeys([*memories, *held])
        }
