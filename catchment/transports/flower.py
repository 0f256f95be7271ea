"""Clients that joined over Flower: requests and responses as raw bytes in Flower's messages.

Only Flower's public names are used here. A client is known by its number, which its node tells when it is greeted; a
node may come, go and come back under another id at any time. One message is on its way to a client at a time. What a
client had in hand when it left is sent again when it is back; it is lost only when it stays away, or when the time for
an answer is over. Nothing that a node says is an exception here.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.app import Message as Envelope

from catchment.errors import RunError, WireError, printable
from catchment.message import Request, Response
from catchment.transports.base import PART, Snapshot, Transport, parts, pause

LOOK = 0.5  # seconds between two looks for nodes
GREETING = 600.0  # seconds that a node has to answer a greeting; it may read its data first
FAREWELL = 3.0  # seconds to wait for nodes to hear that the run is over
AGAIN = 30.0  # seconds after which a node that refused is greeted again
GREETINGS = 3  # so often is a client greeted again for one request that it cannot place
LARGEST = 2**31  # bytes of a response where nothing else is said
SMALL = 250_000  # bytes
STYPE = "catchment"
HELLO_FIRST = "hello first"  # what a device says that does not know the run
FAILED, EXPIRED, GONE = (
    2,
    3,
    5,
)  # Flower's codes of errors: the app failed, no answer in time, the node is not connected
Fields = Mapping[str, str | int]


class Grid(Protocol):
    """The part of Flower's Grid that is used."""

    def get_node_ids(self) -> Iterable[int]:
        """Who is connected."""

    def push_messages(self, messages: Iterable[Envelope]) -> Iterable[str]:
        """Send messages; returns their names."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Envelope]:
        """Replies to messages, of those that are there."""


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
        raw = record.array_records["wire"]["raw"].data if raw is None else raw
    except (KeyError, TypeError, AttributeError) as error:
        raise WireError(f"this is not a message of Catchment's ({type(error).__name__}: {error})") from None
    if not isinstance(raw, bytes):
        raise WireError(f"this is not a message of Catchment's ({type(raw).__name__} in place of bytes)")
    return fields, raw


@dataclass
class _Errand:
    """A request on its way to a client and its response on the way back, part by part."""

    request: Request
    raw: bytes = b""
    expires: float = float("inf")  # set when it is first sent
    greetings: int = 0
    sent: int = 0  # parts
    expected: int = 0  # parts of the response
    received: list[bytes] = field(default_factory=list)

    @property
    def key(self) -> str:
        """What tells it from the client's other requests."""
        r = self.request
        return f"{r.life}-{r.sequence}-{r.purpose}-{r.round}-{r.turn}"

    def begin(self) -> None:
        """Nothing of it has crossed."""
        self.sent = self.expected = 0
        self.received = []


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
        signature: str = "",
        wait: float = 300.0,
        least: int = 1,
        answer: float = 3600.0,
        deadline: float | None = None,
        largest: Callable[[Request], int] = lambda request: LARGEST,
        client_of: Callable[[int], int | None] | None = None,
        admits: Callable[[int], bool] = lambda client: True,
        notices: Callable[[], list[dict[str, Any]]] = list,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`experiment` is its TOML, `form` that of its data, `federation` the name of the run on the devices' disks.

        `signature` is that of the run by the federation's key. `largest` says how many bytes the response to a request
        may have, `client_of` which client's key a node has (without it, any may speak for any), `admits` whether a
        client may come back. `notices` gives events that others saw, `sleep` waits until something may have arrived, or
        for so many seconds.
        """
        self._grid = grid
        self._greeting: Fields = {
            "version": version,
            "experiment": experiment,
            "form": form,
            "federation": federation,
            "signature": signature,
        }
        self._told: dict[str, str | int] = {"federation": federation}
        self._clients = clients
        self._wait = wait
        self._least = least
        self._answer = answer if deadline is None else min(answer, 2 * deadline + 60)  # a late reply is still a reply
        self._largest = largest
        self._client_of = client_of
        self._admits = admits
        self._notices = notices
        self._sleep = sleep
        self._news: list[dict[str, Any]] = []
        self._began = time.monotonic()
        self._offset = 0.0  # of the clock, by the lives before this one
        self._looked = float("-inf")
        self._waited = False  # for everybody, before the first round
        self._nodes: dict[int, int] = {}  # client -> node
        self._left: dict[int, float] = {}  # client -> when it left
        self._greeted: dict[int, float] = {}  # node -> when
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
        """The clients that are connected, or left a moment ago; waits for all before the first round, later for a few.

        Whoever is back within `wait` seconds misses nothing, so that a restart does not change what is computed.
        """
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
            self._sleep(pause(time.monotonic() - began))
        self._waited = True
        return [client for client in range(self._clients) if self._is_expected(client)]

    def _is_expected(self, client: int) -> bool:
        """Whether a client is connected, or may be back in time."""
        if client in self._nodes:
            return True
        return self._admits(client) and time.monotonic() - self._left.get(client, self._began) < self._wait

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
                    self._part(client, time.monotonic())
            for node in self._greeted.keys() - present:  # it is greeted again when it comes back
                del self._greeted[node]
                self._excuses.pop(node, None)
            for node in self._excuses:  # its owner may have thought better of it
                if self._looked - self._greeted.get(node, 0.0) > AGAIN and node not in self._greetings.values():
                    self._greeted.pop(node, None)
            for node in sorted(present - self._greeted.keys()):
                self._greet(node)
        for message, node in list(self._greetings.items()):
            for reply in self._grid.pull_messages([message]):
                del self._greetings[message]
                self._heard(node, reply)

    def _part(self, client: int, when: float) -> None:
        """A client is not there any more since some time."""
        del self._nodes[client]
        self._left[client] = when

    def _greet(self, node: int) -> None:
        message = self._push(node, "query.hello", content(self._greeting), GREETING)
        if message:
            self._greeted[node] = time.monotonic()
            self._greetings[message] = node

    def _heard(self, node: int, reply: Envelope) -> None:
        """What a node said of itself."""
        fields, _, why, code = _opened(reply)
        if code in (EXPIRED, GONE):
            self._greeted.pop(node, None)  # and is greeted again, if it is there
            return
        client, samples = fields.get("client"), fields.get("samples", 0)
        own = client if self._client_of is None else self._client_of(node)
        if not why and (type(client) is not int or not 0 <= client < self._clients):
            why = f"says that it is client {printable(client, 40)}; there are clients 0 to {self._clients - 1}"
        if not why and own != client:
            why = f"says that it is client {client}, but its key is that of client {own}"
        if not why and type(samples) is not int:
            why = f"says that it has {printable(samples, 40)} samples"
        if why or not isinstance(client, int):
            known = client if type(client) is int and 0 <= client < self._clients else None
            if self._excuses.get(node) != why:
                self._note("refused", known, f"node {node} may not join: {why}")
            self._excuses[node] = why
            return
        self._excuses.pop(node, None)
        before = self._nodes.get(client)
        self._nodes[client] = node
        if before == node:
            return  # it was greeted again
        self._note("joined", client, f"node {node} has {samples} samples")
        if client in self._trained and fields.get("states") == 0:
            self._note("forgot", client, "the device came back without the state of this run, and begins anew")
        for message, (_, at, errand) in list(self._flying.items()):
            if at == before:  # what it had in hand is sent again, unless it is answered already
                del self._flying[message]
                replies = list(self._grid.pull_messages([message]))
                self._arrived(client, at, errand, replies[0]) if replies else self._again(client, errand)

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
            for message in list(self._flying):
                for reply in self._grid.pull_messages([message]):
                    self._arrived(*self._flying.pop(message), reply)
            self._look()
            self._feed()
            if not self._ready:
                if self.now >= until:
                    return None
                self._sleep(min(pause(self.now - began), max(0.0, until - self.now)))
        return self._ready.popleft()

    def _feed(self) -> None:
        """Send the next part of whatever waits for a client that is free."""
        busy = {client for client, _, _ in self._flying.values()}
        for client in [client for client in self._waiting if client not in busy]:
            errands = self._waiting[client]
            node = self._nodes.get(client)
            over = time.monotonic() >= errands[0].expires
            if not over and (node in self._greetings.values() or (node is None and self._is_expected(client))):
                continue
            errand = errands.popleft()
            if not errands:
                del self._waiting[client]
            if over:
                self._ready.append(_lost(errand.request, "the time for an answer is over"))
            elif node is None:
                self._ready.append(_lost(errand.request, "the client is not connected"))
            else:
                self._go(client, node, errand)

    def _go(self, client: int, node: int, errand: _Errand) -> None:
        """Send the next message of an errand: a part of the request, or a wish for a part of the response."""
        now = time.monotonic()
        errand.expires = min(errand.expires, now + self._answer)
        errand.raw = errand.raw or errand.request.to_bytes()
        count = parts(len(errand.raw))
        fields = {"key": errand.key, **self._told}
        if errand.sent < count:
            fields |= {"part": errand.sent, "parts": count}
            start = errand.sent * PART
            errand.sent += 1
            kind, body = "train.ask", content(fields, memoryview(errand.raw)[start : start + PART])
        else:
            fields |= {"part": len(errand.received)}
            kind, body = "train.fetch", content(fields)
        message = self._push(node, kind, body, max(0.001, errand.expires - now))
        if message:
            self._flying[message] = (client, node, errand)
        else:
            self._again(client, errand)

    def _again(self, client: int, errand: _Errand) -> None:
        """Send an errand once more, before what else waits for the client."""
        errand.begin()
        self._waiting.setdefault(client, deque()).appendleft(errand)

    def _push(self, node: int, kind: str, body: RecordDict, ttl: float) -> str:
        """The name of a message that was sent; "" if its node is not connected."""
        sent = list(self._grid.push_messages([Envelope(body, node, kind, ttl=ttl)]))
        return sent[0] if sent and sent[0] else ""

    def _arrived(self, client: int, node: int, errand: _Errand, reply: Envelope) -> None:
        """A reply to a message of an errand: send the next one, or hand over the response."""
        fields, raw, why, code = _opened(reply)
        if code == GONE:
            self._again(client, errand)
        elif why == HELLO_FIRST and errand.greetings < GREETINGS:
            errand.greetings += 1
            self._greet(node)
            self._again(client, errand)
        elif code == EXPIRED:
            self._ready.append(_lost(errand.request, why))
            if self._nodes.get(client) == node:  # it hangs: it is asked again when it has answered a greeting
                self._note("left", client, "it has not answered in time")
                self._part(client, float("-inf"))
                self._greeted.pop(node, None)
        elif why:
            self._ready.append(_lost(errand.request, why)._replace(failed=code in (0, FAILED)))
        else:
            self._accept(client, node, errand, fields.get("parts", errand.expected), raw)

    def _accept(self, client: int, node: int, errand: _Errand, count: object, raw: bytes) -> None:
        """One more part of a response, or the word that the next of the request may come."""
        request = errand.request
        if type(count) is int and count == 0 and errand.sent < parts(len(errand.raw)):
            self._go(client, node, errand)
            return
        most = parts(self._largest(request))
        if type(count) is not int or not 1 <= count <= most or errand.expected not in (0, count) or len(raw) > PART:
            said = f"{printable(count, 40)} parts, {len(raw)} bytes in this one"
            self._ready.append(_failed(request, f"a response of {said}; at most {most} of {PART} are expected"))
            return
        errand.expected = count
        errand.received.append(raw)
        if len(errand.received) < count:
            self._go(client, node, errand)
            return
        whole = raw if count == 1 else b"".join(errand.received)
        try:
            response = Response.from_bytes(whole)
        except Exception as error:  # bytes of a stranger
            response = _failed(request, f"the response cannot be read: {printable(error)}")
        if (response.client, response.sequence, response.aside) != (request.client, request.sequence, request.aside):
            response = _failed(request, f"client {client} answered another request")
        elif not request.aside:
            self._trained.add(client)
        self._ready.append(response)

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
        messages = {self._push(node, "query.bye", body, FAREWELL) for node in self._nodes.values()} - {""}
        until = time.monotonic() + FAREWELL
        while messages and time.monotonic() < until:
            messages -= {message for message in messages if list(self._grid.pull_messages([message]))}
            self._sleep(pause(0))


def _opened(reply: Envelope) -> tuple[dict[str, Any], bytes, str, int]:
    """Fields, bytes, and what went wrong, if anything: in words, and as Flower's code where it is Flower's word."""
    if reply.has_error():
        code = reply.error.code
        return {}, b"", f"{printable(reply.error.reason or 'no reason given')} (Flower's code {code})", code
    try:
        fields, raw = opened(reply.content)
    except Exception as error:  # content of a stranger
        return {}, b"", f"the reply cannot be read: {printable(error)}", 0
    return fields, raw, printable(fields.get("error", "")), 0


def _lost(request: Request, why: str) -> Response:
    return Response(request.client, request.sequence, None, error=why, aside=request.aside)


def _failed(request: Request, why: str) -> Response:
    return _lost(request, why)._replace(failed=True)
