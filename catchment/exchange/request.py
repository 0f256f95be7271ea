"""A request to one client and its response, as they are sent: a message with an envelope of fixed width."""

from __future__ import annotations

import re
from typing import NamedTuple

from catchment.errors import WireError
from catchment.exchange.message import LARGEST_HEADER, Message, Received, quoted_length

TRAINING = "training"  # the purpose of ordinary traffic; `Fleet.aside` names others
GREETING = "greeting"  # of what a transport sends by itself: the announcement of a run, and the answers to it
VALIDATION = "validation"  # an evaluation with validation samples in place of the test set


class Request(NamedTuple):
    """One request to one client, with what makes its response reproducible."""

    client: int
    handler: str
    round: int
    turn: int  # how many requests of this purpose the client had before in this round
    sequence: int  # number of the request in the run; a client's state is versioned by it
    body: Message
    purpose: str = TRAINING
    resumes: int = 0  # how often the run was resumed
    start: int = 0  # versions from number `start` on that were made before the last resume are discarded
    base: int = 0  # the last checkpoint needs the newest version before `base`
    rate_drops: int = 0  # how often the clients' learning rate dropped at a plateau

    @property
    def aside(self) -> bool:
        """Not part of training: reads the client's state, changes nothing, takes no virtual time."""
        return self.purpose != TRAINING

    @property
    def envelope(self) -> str:
        """The fields beside the body, in a width that does not depend on their values."""
        return (
            f"{self.client:08x}{self.round:08x}{self.turn:08x}{self.sequence:08x}{self.rate_drops:04x}"
            f"{self.resumes:04x}{self.start:08x}{self.base:08x}:{self.purpose}:{self.handler}"
        )

    def size(self) -> int:
        """Bytes on the wire."""
        return self.body.size_with(56 + quoted_length(f":{self.purpose}:{self.handler}"))

    def to_bytes(self) -> bytes:
        """The wire form."""
        return self.body.to_bytes(self.envelope)

    @staticmethod
    def from_bytes(raw: bytes) -> Request:
        """A request from its wire form."""
        body, envelope = Message.from_bytes(raw, LARGEST_HEADER)
        try:
            numbers, purpose, handler = envelope.split(":")
            if not re.fullmatch("[0-9a-f]{56}", numbers):
                raise ValueError("eight numbers expected")
            bounds = ((0, 8), (8, 16), (16, 24), (24, 32), (32, 36), (36, 40), (40, 48), (48, 56))
            client, round_, turn, sequence, drops, resumes, start, base = (int(numbers[a:b], 16) for a, b in bounds)
        except ValueError as error:
            raise WireError(f'not a request: envelope "{envelope[:80]}" ({error})') from None
        return Request(client, handler, round_, turn, sequence, body, purpose, resumes, start, base, drops)


class Response(NamedTuple):
    """The response to a request: a body, or the reason why there is none."""

    client: int
    sequence: int
    body: Message | None
    macs: int = 0  # multiply-accumulates the client spent on it
    seconds: float = 0.0  # wall time the client spent on it
    error: str = ""  # why there is no body
    failed: bool = False  # the handler raised; otherwise a missing body was lost on the way
    aside: bool = False  # answers a request that was aside

    @property
    def envelope(self) -> str:
        """The fields beside the body, in a width that does not depend on their values."""
        flags = (self.body is None) + 2 * self.failed + 4 * self.aside
        return f"{self.client:08x}{self.sequence:08x}{self.macs:016x}{round(self.seconds * 1e6):012x}{flags:x}"

    def size(self) -> int:
        """Bytes on the wire; 0 for a lost reply."""
        return self.body.size_with(45 + 2) if self.body is not None else 0

    def to_bytes(self) -> bytes:
        """The wire form."""
        body = self.body if self.body is not None else Message({}, {"error": self.error})
        return body.to_bytes(self.envelope)

    @staticmethod
    def from_bytes(raw: bytes) -> Response:
        """A response from its wire form."""
        body, envelope = Message.from_bytes(raw, LARGEST_HEADER)
        try:
            if not re.fullmatch("[0-9a-f]{45}", envelope):
                raise ValueError("four numbers and a flag expected")
            bounds = ((0, 8), (8, 16), (16, 32), (32, 44), (44, 45))
            client, sequence, macs, microseconds, flags = (int(envelope[a:b], 16) for a, b in bounds)
        except ValueError as error:
            raise WireError(f'not a response: envelope "{envelope[:80]}" ({error})') from None
        error_text = str(body.scalars.get("error", "")) if flags & 1 else ""
        kept = None if flags & 1 else Received(body.tensors, body.scalars, len(raw))
        return Response(client, sequence, kept, macs, microseconds / 1e6, error_text, bool(flags & 2), bool(flags & 4))
