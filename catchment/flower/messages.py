"""The content of Flower's messages between the two sides: some fields, and bytes of our own wire format.

Only Flower's public names are used here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from flwr.app import Array, ArrayRecord, ConfigRecord, Message as Envelope, RecordDict

from catchment.errors import WireError, printable

SMALL = 250_000  # bytes
STYPE = "catchment"
FAILED, EXPIRED, GONE = 2, 3, 5  # Flower's error codes: the app failed, no answer in time, the node is not connected
Fields = Mapping[str, str | int]


class Grid(Protocol):
    """The part of Flower's Grid that is used."""

    def get_node_ids(self) -> Iterable[int]:
        """The connected nodes."""

    def push_messages(self, messages: Iterable[Envelope]) -> Iterable[str]:
        """Send messages; returns their names."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Envelope]:
        """The replies to these messages that have arrived."""


def pack(fields: Fields, raw: bytes | memoryview = b"") -> RecordDict:
    """The content of one message: bytes as one raw array, or among the fields if they are few.

    Flower sends every part of a message by itself, and an array has three.
    """
    if len(raw) <= SMALL:
        return RecordDict({"fields": ConfigRecord({**fields, "raw": bytes(raw)})})
    array = Array("uint8", (len(raw),), STYPE, bytes(raw))
    return RecordDict({"fields": ConfigRecord(dict(fields)), "wire": ArrayRecord({"raw": array})})


def unpack(record: RecordDict) -> tuple[dict[str, Any], bytes]:
    """The inverse of `pack`."""
    try:
        fields: dict[str, Any] = dict(record.config_records["fields"])
        raw = fields.pop("raw", None)
        raw = record.array_records["wire"]["raw"].data if raw is None else raw
    except (KeyError, TypeError, AttributeError) as error:
        raise WireError(f"this is not a message of Catchment's ({type(error).__name__}: {error})") from None
    if not isinstance(raw, bytes):
        raise WireError(f"this is not a message of Catchment's ({type(raw).__name__} in place of bytes)")
    return fields, raw


def reply_to(message: Envelope, answer: Callable[[str, Fields, bytes], tuple[Fields, bytes]]) -> tuple[str, Envelope]:
    """What kind of message it is, and the reply that a device's `answer` gives."""
    kind = message.metadata.message_type.partition(".")[2]
    try:
        fields, raw = unpack(message.content)
    except Exception:  # content of a server that may send anything
        return kind, Envelope(pack({"error": "the message cannot be read"}), reply_to=message)
    return kind, Envelope(pack(*answer(kind, fields, raw)), reply_to=message)


class ReplyContent(NamedTuple):
    """What a node replied: fields and bytes, or an error in words and, if it comes from Flower, Flower's code."""

    fields: dict[str, Any]
    raw: bytes = b""
    error: str = ""
    code: int = 0


def read_reply(reply: Envelope) -> ReplyContent:
    """The content of a node's reply, which may be anything."""
    if reply.has_error():
        code = reply.error.code
        return ReplyContent(
            {}, error=f"{printable(reply.error.reason or 'no reason given')} (Flower's code {code})", code=code
        )
    try:
        fields, raw = unpack(reply.content)
    except Exception as error:  # untrusted content
        return ReplyContent({}, error=f"the reply cannot be read: {printable(error)}")
    return ReplyContent(fields, raw, printable(fields.get("error", "")))


def size_of(fields: Fields) -> int:
    """The bytes of the names and values of fields."""
    return sum(len(f"{name}{value}".encode(errors="replace")) for name, value in fields.items())


def send(grid: Grid, node: int, kind: str, body: RecordDict, seconds: float) -> str:
    """Send a message with a time limit in seconds for its answer; returns its name, or "" if its node is gone."""
    names = list(grid.push_messages([Envelope(body, node, kind, ttl=seconds)]))
    return names[0] if names and names[0] else ""
