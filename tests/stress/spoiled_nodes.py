"""The transport over Flower with a liar in it: nodes are functions, and one of them spoils what it says."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message as Envelope, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from spoiling import Liar, Spoil

from catchment.client.state import Versions
from catchment.core.expectations import Expectations
from catchment.core.transport import PART
from catchment.core.worker import WorkerCache
from catchment.core.world import World
from catchment.device.answering import HELLO_FIRST
from catchment.exchange.request import Request, Response
from catchment.flower.messages import pack, unpack
from catchment.flower.transport import Flower
from catchment.runtimes.torch import serve

HELLO = "hello"  # stands for a handler: what a node says when it is greeted
Fields = dict[str, Any]
Said = RecordDict | Error


def _with(**fields: Any) -> Callable[[Fields, bytes], Said]:
    return lambda said, raw: pack({**said, **fields}, raw)


def _with_bytes(change: Callable[[bytes], bytes]) -> Callable[[Fields, bytes], Said]:
    return lambda said, raw: pack(said, change(raw))


def _array(*given: Any) -> Callable[[Fields, bytes], Said]:
    return lambda said, raw: RecordDict(
        {"fields": ConfigRecord(said), "wire": ArrayRecord({"raw": Array(*given, raw)})}
    )


def _error(code: int) -> Callable[[Fields, bytes], Said]:
    return lambda said, raw: Error(code, "x" * 1000)


FIELDS: dict[str, Callable[[Fields, bytes], Said]] = {
    **{f"{value!r} parts": _with(parts=value) for value in (0, -1, 2, 7, 10**9, 2**62, 1.5, "x", True, b"", [1], [])},
    **{f"error {value!r:.20}": _with(error=value) for value in ("no", "x" * 10**6, "\x1b[31m", 5, b"no", HELLO_FIRST)},
    **{f"client {value!r}": _with(client=value) for value in (1, -1, "x", 2**62)},
    **{f"Flower's error {code}": _error(code) for code in (0, 1, 2, 3, 4, 5, 99)},
    "no parts": lambda said, raw: pack({k: v for k, v in said.items() if k != "parts"}, raw),
    "a thousand fields": _with(**{f"field-{number}": number for number in range(1000)}),
    "no bytes": _with_bytes(lambda raw: b""),
    "half the bytes": _with_bytes(lambda raw: raw[: len(raw) // 2]),
    "a byte less": _with_bytes(lambda raw: raw[:-1]),
    "a byte more": _with_bytes(lambda raw: raw + b"x"),
    "the bytes twice": _with_bytes(lambda raw: raw + raw),
    "the bytes backwards": _with_bytes(lambda raw: raw[::-1]),
    "other bytes in the header": _with_bytes(lambda raw: raw[:20] + b"\xff\x00\xfe" + raw[23:]),
    "another envelope": _with_bytes(lambda raw: raw.replace(b'"envelope":"00000000', b'"envelope":"00000001')),
    "four million bytes": _with_bytes(lambda raw: raw + bytes(4_000_000)),
    "a number for bytes": lambda said, raw: RecordDict({"fields": ConfigRecord({**said, "raw": 5})}),
    "a text for bytes": lambda said, raw: RecordDict({"fields": ConfigRecord({**said, "raw": "text"})}),
    "a list for bytes": lambda said, raw: RecordDict({"fields": ConfigRecord({**said, "raw": [b"a", b"b"]})}),
    "no raw": lambda said, raw: RecordDict({"fields": ConfigRecord(said)}),
    "nothing": lambda said, raw: RecordDict({}),
    "other records": lambda said, raw: RecordDict({"x": ConfigRecord(said), "fields": MetricRecord({"a": 1})}),
    "an array of floats": _array("float32", (10**9,), "catchment"),
    "an array of NumPy": _array("uint8", (3,), "numpy.ndarray"),
}  # fmt: skip

GREETINGS: dict[str, Callable[[Fields, bytes], Said]] = {
    **{f"client {value!r}": _with(client=value) for value in (1, -1, 10**9, 2**62, "x", 1.0, True, b"", [0])},
    **{f"samples {value!r}": _with(samples=value) for value in (-1, 2**62, "x", 1.5, [1])},
    **{f"states {value!r}": _with(states=value) for value in (-1, "x", [1])},
    **{what: FIELDS[what] for what in ("no raw", "nothing", "other records", "a thousand fields", "a byte more")},
    **{what: change for what, change in FIELDS.items() if what.startswith(("error", "Flower's error"))},
    "no client": lambda said, raw: pack({}, raw),
}


def field_ways(handlers: Iterable[str]) -> list[Spoil]:
    """All ways to spoil what is around a reply, and a greeting."""
    found = [Spoil(handler, "field", what) for handler in handlers for what in FIELDS]
    return found + [Spoil(HELLO, "field", what) for what in GREETINGS]


class Nodes:
    """A grid of clients that answer at once; a node has the number of its client, and ten more."""

    def __init__(self, world: World, liar: Liar) -> None:
        self.world, self.liar = world, liar
        self.benches = {client: WorkerCache() for client in range(world.clients)}
        self.versions = {client: Versions() for client in range(world.clients) if world.remembers}
        self.replies: dict[str, Envelope] = {}
        self.numbers = itertools.count()

    def get_node_ids(self) -> list[int]:
        return [10 + client for client in range(self.world.clients)]

    def push_messages(self, messages: Iterable[Envelope]) -> list[str]:
        names = []
        for message in messages:
            names.append(f"message {next(self.numbers)}")
            self.replies[names[-1]] = Envelope(self._answer(message), reply_to=message)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> list[Envelope]:
        return [self.replies.pop(name) for name in message_ids if name in self.replies]

    def _answer(self, message: Envelope) -> Said:
        client, kind = message.metadata.dst_node_id - 10, message.metadata.message_type
        if kind == "query.hello":
            return self._said(client, HELLO, {"client": client, "samples": len(self.world.private(client))}, b"")
        if kind == "query.bye":
            return pack({})
        raw = unpack(message.content)[1]
        if kind == "train.fetch":  # the response was one part, and more were announced
            return pack({"client": client, "parts": 2}, b"")
        request = Request.from_bytes(raw)
        response = serve(self.world, request, self.versions.get(client), self.benches[client])
        raw = self.liar.answer(request, response) or response.to_bytes()
        return self._said(client, request.handler, {"client": client, "parts": 1}, raw)

    def _said(self, client: int, handler: str, fields: Fields, raw: bytes) -> Said:
        wanted = self.liar.wanted
        honest = client != self.liar.client or self.liar.spoiled or wanted is None or wanted.kind != "field"
        if honest or wanted.handler != handler:
            return pack(fields, raw)
        self.liar.spoiled = True
        return (GREETINGS if handler == HELLO else FIELDS)[wanted.what](fields, raw)


def over_flower(world: World, liar: Liar, directory: Path | None) -> Flower:
    """The transport over such nodes; a liar that is not there any more is not waited for."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # Flower makes messages inside of tasks only
    return Flower(
        Nodes(world, liar),
        experiment="",
        form="",
        federation="f" * 16,
        version="1",
        clients=world.clients,
        wait=0.05,
        largest=Expectations.of(world.method, world).largest,
        client_of=lambda node: node - 10,
        sleep=lambda seconds: None,
    )


FIELD_VALUES = (0, 1, 2, -1, 2**40, 1.5, "", "x" * 3000, HELLO_FIRST, b"", b"x", True, [], [1], ["x"], [b"x", b"y"])


class Post:
    """One client that says the same to everything but greetings."""

    def __init__(self) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self.said = pack({})
        self.replies: list[Envelope] = []
        self.transport = Flower(
            self, experiment="", form="", federation="f" * 16, version="1", clients=1, wait=0.05,
            largest=lambda request: PART, sleep=lambda seconds: None,
        )  # fmt: skip

    def get_node_ids(self) -> list[int]:
        return [10]

    def push_messages(self, messages: Iterable[Envelope]) -> list[str]:
        for message in messages:
            greeted = message.metadata.message_type == "query.hello"
            self.replies.append(Envelope(pack({"client": 0}) if greeted else self.said, reply_to=message))
        return ["message"]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Envelope]:
        return [self.replies.pop()] if self.replies else []

    def read(self, request: Request, raw: bytes, changes: Fields) -> Response | None:
        """What the transport makes of these bytes, with changes to the fields around them."""
        self.said = RecordDict({"fields": ConfigRecord({"client": 0, "parts": 1, "raw": raw, **changes})})
        self.transport.roster(1)
        self.transport.push([request])
        return self.transport.pull(float("inf"))
