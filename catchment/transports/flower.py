"""Clients that joined over Flower: requests and responses as raw bytes in Flower's messages.

Only Flower's public names are used here. A client is known by its number, which its node tells when it is greeted; a
node may come, go and come back under another id at any time. One message is on its way to a client at a time, and every
error of Flower's becomes a lost reply with its reason.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.app import Message as Envelope
from flwr.serverapp import Grid

from catchment.errors import RunError, WireError
from catchment.message import Request, Response
from catchment.transports.base import PART, Snapshot, Transport, parts, pause

HALF_A_DAY = 43_200.0  # seconds that a message lives where nothing else is said
LOOK = 1.0  # seconds between two looks for nodes
GREETING = 600.0  # seconds that a node has to answer a greeting; it may read its data first
FAREWELL = 3.0  # seconds to wait for nodes to hear that the run is over
FEW = 4  # replies that are looked for at a time: each that is there takes memory of its own
SMALL = 250_000  # bytes
STYPE = "catchment"
Fields = Mapping[str, str | int]


def content(fields: Fields, raw: bytes | memoryview = b"") -> RecordDict:
    """What one message carries: bytes as one raw array, or beside the fields if they are few.

    Flower sends every part of a message by itself, and an array has three.
    """
    if len(raw) <= SMALL:
        return RecordDict({"fields": ConfigRecord({**fields, "raw": bytes(raw)})})
    array = Array("uint8", (len(raw),), STYPE, bytes(raw))
    return RecordDict({"fields": ConfigRecord(dict(fields)), "wire": ArrayRecord({"raw": array})})


def opened(record: RecordDict) -> tuple[dict[str, Any], bytes]:
    """The inverse of `content`."""
    try:
        fields: dict[str, Any] = dict(record.config_records["fields"])
        raw = fields.pop("raw", None)
        return fields, record.array_records["wire"]["raw"].data if raw is None else raw
    except (KeyError, TypeError, AttributeError) as error:
        raise WireError(f"this is not a message of Catchment's ({type(error).__name__}: {error})") from None


@dataclass
class _Errand:
    """A request on its way to a client and its response on the way back, part by part."""

    request: Request
    raw: bytes = b""
    sent: int = 0  # parts
    expected: int = 0  # parts of the response
    received: list[bytes] = field(default_factory=list)

    @property
    def key(self) -> str:
        """What tells it from the client's other requests."""
        r = self.request
        return f"{r.life}-{r.sequence}-{r.purpose}-{r.round}-{r.turn}"


class Flower(Transport):
    """Clients as nodes of a Flower federation."""

    def __init__(
        self,
        grid: Grid,
        *,
        experiment: str,
        form: str,
        federation: str,
        version: str,
        clients: int,
        wait: float = 300.0,
        least: int = 1,
        deadline: float | None = None,
        nodes: Mapping[int, int] | None = None,
        notices: Callable[[], list[dict[str, Any]]] = list,
    ) -> None:
        """`experiment` is its TOML, `form` that of its data, `federation` the name of the run on the devices' disks.

        `nodes` says which node may speak for a client (node -> client); without it, any may. `notices` gives events
        that others saw, such as a SuperLink that was restarted.
        """
        self._grid = grid
        self._told: dict[str, str | int] = {"experiment": experiment, "form": form, "federation": federation}
        self._version = version
        self._clients = clients
        self._wait = wait
        self._least = least
        self._ttl = HALF_A_DAY if deadline is None else 2 * deadline + 60  # a late reply is still a reply
        self._allowed = nodes
        self._notices = notices
        self._news: list[dict[str, Any]] = []
        self._began = time.monotonic()
        self._offset = 0.0  # of the clock, by the lives before this one
        self._looked = float("-inf")
        self._waited = False  # for everybody, before the first round
        self._nodes: dict[int, int] = {}  # client -> node
        self._greeted: dict[int, float] = {}  # node -> when its greeting was sent, or answered
        self._greetings: dict[str, int] = {}  # message -> node
        self._excuses: dict[int, str] = {}  # node -> why it does not take part
        self._waiting: dict[int, deque[_Errand]] = {}
        self._flying: dict[str, tuple[int, int, _Errand]] = {}  # message -> client, node, errand
        self._trained: set[int] = set()  # clients that have answered in this life of the server
        self._ready: deque[Response] = deque()

    @property
    def now(self) -> float:
        """Seconds of real time that the run has been on, over all its lives."""
        return self._offset + time.monotonic() - self._began

    # ---- nodes ----

    def roster(self, round: int) -> Sequence[int]:
        """The clients whose nodes are connected; waits for all before the first round, later for a few."""
        enough = self._least if self._waited else self._clients
        began = time.monotonic()
        until = began + self._wait
        while True:
            self._look()
            if len(self._nodes) >= enough:
                break
            if time.monotonic() >= until:
                if len(self._nodes) >= self._least:
                    break
                raise RunError(self._too_few(round))
            time.sleep(pause(time.monotonic() - began))
        self._waited = True
        return sorted(self._nodes)

    def _too_few(self, round: int) -> str:
        excuses = "; ".join(f"node {node}: {why}" for node, why in self._excuses.items())
        return (
            f"round {round}: {len(self._nodes)} of {self._clients} clients are connected after {self._wait:.0f} s, "
            f"{self._least} are needed (flower.least, flower.wait)" + (f"; {excuses}" if excuses else "")
        )

    def _look(self) -> None:
        """Greet nodes that are new, hear who they are, and forget those that left."""
        if time.monotonic() - self._looked >= LOOK:
            self._looked = time.monotonic()
            present = set(self._grid.get_node_ids())
            for client, node in list(self._nodes.items()):
                if node not in present:
                    self._note("left", client, "its node is not connected any more")
                    del self._nodes[client]
            for node in [node for node in self._greeted if node not in present]:
                del self._greeted[node]  # it is greeted again when it comes back
                self._excuses.pop(node, None)
            for node in sorted(present - self._greeted.keys()):
                self._greet(node)
        for group in _batched(list(self._greetings), FEW):
            for reply in self._grid.pull_messages(group):
                self._heard(self._greetings.pop(reply.metadata.reply_to_message_id), reply)

    def _greet(self, node: int) -> None:
        self._greeted[node] = time.monotonic()
        body = content({"version": self._version, **self._told})
        message = self._push(node, "query.hello", body, GREETING)
        if message is None:
            del self._greeted[node]
        else:
            self._greetings[message] = node

    def _heard(self, node: int, reply: Envelope) -> None:
        """What a node said of itself."""
        fields, _, why = _reply(reply)
        client = fields.get("client")
        if not why and (not isinstance(client, int) or not 0 <= client < self._clients):
            why = f"says that it is client {client}; there are clients 0 to {self._clients - 1}"
        if not why and self._allowed is not None and self._allowed.get(node) != client:
            why = f"says that it is client {client}, but its key is that of client {self._allowed.get(node)}"
        if why or not isinstance(client, int):
            self._excuses[node] = why
            self._note("refused", client if isinstance(client, int) else None, f"node {node} may not join: {why}")
            return
        before = self._nodes.get(client)
        self._nodes[client] = node
        self._note("joined", client, f"node {node} has {fields.get('samples', 0)} samples")
        if client in self._trained and fields.get("states") == 0:
            self._note("forgot", client, "the device came back without the state of this run, and begins anew")
        if before is not None and before != node:  # the device was started anew; what it had in hand is gone
            self._lose(before, "the device was restarted")

    # ---- requests and responses ----

    def push(self, requests: Sequence[Request]) -> None:
        """Send requests to clients that are free; the others get theirs in turn."""
        for request in requests:
            self._waiting.setdefault(request.client, deque()).append(_Errand(request))
        self._feed()

    def pull(self, until: float) -> Response | None:
        """The next response; looks for one now and then."""
        began = self.now
        while not self._ready:
            if not self._flying and not self._waiting:
                return None
            for group in _batched(list(self._flying), FEW):
                for reply in self._grid.pull_messages(group):
                    self._arrived(*self._flying.pop(reply.metadata.reply_to_message_id), reply)
            self._look()
            self._feed()
            if not self._ready:
                if self.now >= until:
                    return None
                time.sleep(min(pause(self.now - began), max(0.0, until - self.now)))
        return self._ready.popleft()

    def _feed(self) -> None:
        """Send the next part of whatever waits for a client that is free."""
        busy = {client for client, _, _ in self._flying.values()}
        for client in [client for client in self._waiting if client not in busy]:
            errands = self._waiting[client]
            node = self._nodes.get(client)
            if node is None and not self._waited and time.monotonic() - self._began < self._wait:
                continue  # asked again after a resume, and not yet back
            errand = errands.popleft()
            if not errands:
                del self._waiting[client]
            if node is None:
                self._ready.append(_lost(errand.request, "the client is not connected"))
            else:
                self._go(client, node, errand)

    def _go(self, client: int, node: int, errand: _Errand) -> None:
        """Send the next message of an errand: a part of the request, or a wish for a part of the response."""
        errand.raw = errand.raw or errand.request.to_bytes()
        count = parts(len(errand.raw))
        fields = {"key": errand.key, **self._told}
        if errand.sent < count:
            fields |= {"part": errand.sent, "parts": count}
            start = errand.sent * PART
            errand.sent += 1
            message = self._push(
                node, "train.ask", content(fields, memoryview(errand.raw)[start : start + PART]), self._ttl
            )
        else:
            fields |= {"part": len(errand.received)}
            message = self._push(node, "train.fetch", content(fields), self._ttl)
        if message is None:
            self._ready.append(_lost(errand.request, "the SuperLink did not take the message"))
        else:
            self._flying[message] = (client, node, errand)

    def _push(self, node: int, kind: str, body: RecordDict, ttl: float) -> str | None:
        sent = list(self._grid.push_messages([Envelope(body, node, kind, ttl=ttl)]))
        return sent[0] if sent and sent[0] else None

    def _arrived(self, client: int, node: int, errand: _Errand, reply: Envelope) -> None:
        """A reply to a message of an errand: send the next one, or hand over the response."""
        fields, raw, why = _reply(reply)
        if why:
            gone = reply.has_error()  # Flower's word, not the device's
            self._ready.append(_lost(errand.request, why) if gone else _failed(errand.request, why))
            return
        count = fields.get("parts", errand.expected)
        if count == 0:  # of the request, and there are more
            self._go(client, node, errand)
            return
        errand.expected = int(count)
        errand.received.append(raw)
        if len(errand.received) < errand.expected:
            self._go(client, node, errand)
            return
        whole = errand.received[0] if errand.expected == 1 else b"".join(errand.received)
        try:
            response = Response.from_bytes(whole)
        except WireError as error:
            response = _failed(errand.request, str(error))
        request = errand.request
        if (response.client, response.sequence, response.aside) != (request.client, request.sequence, request.aside):
            response = _failed(request, f"client {client} answered another request")
        elif not request.aside:
            self._trained.add(client)
        self._ready.append(response)

    def _lose(self, node: int, why: str) -> None:
        for message, (_, at, errand) in list(self._flying.items()):
            if at == node:
                del self._flying[message]
                self._ready.append(_lost(errand.request, why))

    # ---- checkpoints and the end ----

    def snapshot(self, before: Callable[[int], int]) -> Snapshot:
        """The clock; states are on the devices."""
        return Snapshot(self.now)

    def restore(self, snapshot: Snapshot) -> None:
        """Let the clock go on from where it stopped."""
        self._offset = snapshot.now
        self._note("resumed", None, "the server went on from its last checkpoint")

    def news(self) -> list[dict[str, Any]]:
        """Who came, who left, and what was restarted."""
        news, self._news = [*self._news, *self._notices()], []
        return news

    def _note(self, what: str, client: int | None, why: str) -> None:
        self._news.append({"what": what, "client": client, "handler": "", "why": why})

    def close(self) -> None:
        """Tell the nodes that the run is over; who does not listen for a moment is not waited for."""
        body = content(self._told)
        messages = {self._push(node, "query.bye", body, FAREWELL) for node in self._nodes.values()} - {None}
        until = time.monotonic() + FAREWELL
        while messages and time.monotonic() < until:
            messages -= {m for m in messages if m is not None and list(self._grid.pull_messages([m]))}
            time.sleep(pause(0))


def _batched(items: list[str], size: int) -> Iterator[list[str]]:
    """Items, so many at a time."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _reply(reply: Envelope) -> tuple[dict[str, Any], bytes, str]:
    """Fields, bytes, and what went wrong, if anything."""
    if reply.has_error():
        return {}, b"", f"{reply.error.reason or 'no reason given'} (Flower's code {reply.error.code})"
    try:
        fields, raw = opened(reply.content)
    except WireError as error:
        return {}, b"", str(error)
    return fields, raw, str(fields.get("error", ""))


def _lost(request: Request, why: str) -> Response:
    return Response(request.client, request.sequence, None, error=why, aside=request.aside)


def _failed(request: Request, why: str) -> Response:
    return _lost(request, why)._replace(failed=True)
