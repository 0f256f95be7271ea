"""What the link holds in memory: who is connected, one message for each node, and what came back.

It keeps apart what belongs to different nodes, and stores nothing that was not asked for: a node may upload one reply
for each message that it got, of a bounded size. Envelopes and trees of objects are Flower's, and only passed on here.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from catchment.core.transport import PART
from catchment.flower.inflating import CHUNK, PLAIN
from catchment.flower.messages import EXPIRED, FAILED, GONE

ABSENCE = 30.0  # seconds of silence after which a node counts as disconnected
LARGEST = PART + PART // 20  # bytes of one reply, with what Flower adds, where less is not expected
OBJECTS = 64  # of one reply; a part of the largest size has 25
SMALL = 64_000  # bytes of the reply to a greeting or a farewell, and what Flower adds to any reply


@dataclass
class Exchange:
    """A message to a node, and the reply: envelopes, and objects by the hash of their bytes."""

    node: int
    message: Any
    tree: Any
    objects: dict[str, bytes]
    expires: float
    most: int  # bytes of the reply
    lost: str = ""  # why there will be no reply
    code: int = 0  # of Flower's errors, for the same
    reply: Any = None
    session: str = ""
    wanted: set[str] = field(default_factory=set)
    received: dict[str, bytes] = field(default_factory=dict)
    size: int = 0  # bytes received
    plain: int = 0  # of them, in objects that are no chunks

    @property
    def complete(self) -> bool:
        """Whether all of the reply is here."""
        return self.reply is not None and not self.wanted and not self.lost

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return self.complete or bool(self.lost)

    def age(self, now: float) -> None:
        """Give the reply up if its time is over."""
        if now >= self.expires and not self.over:
            self.lose("the time for an answer is over", EXPIRED)

    def lose(self, why: str, code: int) -> None:
        """Give the reply up."""
        self.lost, self.code, self.objects, self.received = why, code, {}, {}


class ThreadSafeEvent:
    """An event of asyncio, made and waited for in a loop's own thread, that any thread may set."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def set(self) -> None:
        """Wake whoever waits."""
        self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, seconds: float) -> None:
        """Wait until it is set, for at most that many seconds."""
        self._event.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._event.wait(), seconds)


@dataclass
class Node:
    """A connected device; a restarted process is another node."""

    number: int
    key: bytes
    message: ThreadSafeEvent  # set when there is one for it
    last_seen: float
    active: bool = False


class Store:
    """Nodes and messages of one run. `most` is how many nodes there may be where anybody may join."""

    def __init__(self, run: int, most: int) -> None:
        self.run = run
        self.arrived = threading.Event()  # set whenever a reply is complete, or a node comes or goes
        self._most = most
        self._clients: Mapping[bytes, int] | None = None  # who may join; None: anybody
        self._lock = threading.RLock()
        self._keys: dict[bytes, int] = {}
        self._nodes: dict[int, Node] = {}
        self._exchanges: dict[str, Exchange] = {}

    # ---- who may join ----

    def admit(self, clients: Mapping[bytes, int]) -> list[int]:
        """Admit the holders of these public keys, each as its client, and nobody else; returns who was disconnected."""
        with self._lock:
            before, self._clients = self._clients or {}, dict(clients)
            for key in [key for key in self._keys if key not in clients]:
                self._forget(key, "its key is not admitted any more")
            return sorted(client for key, client in before.items() if clients.get(key) != client)

    def may_join(self, key: bytes) -> bool:
        """Whether the holder of a public key may join."""
        with self._lock:
            return self._clients is None or key in self._clients

    def client(self, node: int) -> int | None:
        """Whose key a node has; None if it is nobody's."""
        with self._lock:
            return None if self._clients is None or node not in self._nodes else self._clients[self._nodes[node].key]

    def admits(self, client: int) -> bool:
        """Whether somebody may join as a client."""
        with self._lock:
            return self._clients is None or client in self._clients.values()

    # ---- the server's side ----

    def nodes(self) -> list[int]:
        """The connected nodes."""
        with self._lock:
            now = time.monotonic()
            for node in list(self._nodes.values()):
                if now - node.last_seen > ABSENCE:
                    self._forget(node.key, "the device has been silent for too long")
            for exchange in self._exchanges.values():
                exchange.age(now)
            return [node.number for node in self._nodes.values() if node.active]

    def send(self, identity: str, exchange: Exchange) -> bool:
        """Put a message where its node fetches it; False if the node is not connected."""
        with self._lock:
            node = self._nodes.get(exchange.node)
            if node is None:
                return False
            self._exchanges[identity] = exchange
            node.message.set()
            return True

    def expect(self, identity: str, size: int) -> None:
        """Take no more than a reply of this many bytes, with what Flower adds to it."""
        with self._lock:
            if (exchange := self._exchanges.get(identity)) is not None:
                exchange.most = min(LARGEST, size + size // 20 + SMALL)

    def take(self, identity: str) -> Exchange | None:
        """The exchange of a message once it is over, in success or failure; it is forgotten here."""
        with self._lock:
            exchange = self._exchanges[identity]
            exchange.age(time.monotonic())
            return self._exchanges.pop(identity) if exchange.over else None

    def wake(self) -> None:
        """Let no node wait for a message any longer."""
        with self._lock:
            for node in self._nodes.values():
                node.message.set()

    # ---- nodes, by their keys ----

    def begin(self, key: bytes, message: ThreadSafeEvent) -> Node | None:
        """A new node for the device with this key; what it was working on is lost. None if there is no room."""
        with self._lock:
            self._forget(key, "the device was restarted")
            if self._clients is None and len(self._nodes) >= self._most:
                return None
            node = Node(2 + int.from_bytes(os.urandom(7)), key, message, time.monotonic())
            self._keys[key], self._nodes[node.number] = node.number, node
            return node

    def touch(self, key: bytes) -> Node | None:
        """The node with this key, if there is one, marked as seen now."""
        with self._lock:
            node = self._nodes.get(self._keys.get(key, 0))
            if node is not None:
                node.last_seen = time.monotonic()
            return node

    def number(self, key: bytes) -> int | None:
        """The number of the node with this key."""
        with self._lock:
            return self._keys.get(key)

    def _forget(self, key: bytes, why: str) -> None:
        node = self._nodes.pop(self._keys.pop(key, 0), None)
        if node is not None:
            for exchange in self._exchanges.values():
                if exchange.node == node.number and not exchange.complete:
                    exchange.lose(why, GONE)
            self.arrived.set()

    # ---- one node, by its number ----

    def activate(self, node: int) -> None:
        """The node is ready for messages."""
        with self._lock:
            self._nodes[node].active = True
            self.arrived.set()

    def leave(self, node: int) -> None:
        """The node leaves."""
        with self._lock:
            self._forget(self._nodes[node].key, "the device left")

    def knows(self, node: int) -> bool:
        """Whether the node is connected."""
        with self._lock:
            return node in self._nodes

    def next(self, node: int) -> Exchange | None:
        """The oldest exchange with a node that is not over."""
        with self._lock:
            return next((exchange for exchange in self._own(node).values() if not exchange.over), None)

    def fetch(self, node: int) -> Exchange | None:
        """The next message for a node; if it has fetched one and asks again, that one is lost and can be resent."""
        with self._lock:
            while exchange := self.next(node):
                if exchange.objects:
                    return exchange
                exchange.lose("the device lost the message", GONE)
                self.arrived.set()
            return None

    def tree(self, identity: str) -> Any:
        """The tree of a message's objects."""
        with self._lock:
            return self._exchanges[identity].tree

    def object(self, node: int, name: str) -> bytes | None:
        """An object of a message to a node."""
        with self._lock:
            return next((e.objects[name] for e in self._own(node).values() if name in e.objects), None)

    def confirm(self, node: int, identity: str) -> None:
        """The node has all of a message."""
        with self._lock:
            if (exchange := self._own(node).get(identity)) is not None:
                exchange.objects = {}

    def begin_upload(self, node: int, identity: str, reply: Any, session: str, objects: Collection[str]) -> bool:
        """Expect these objects of a node's reply to a message. Until the reply is complete, it may begin again."""
        with self._lock:
            exchange = self._own(node).get(identity)
            if exchange is None or exchange.over or len(objects) > OBJECTS:
                return False
            exchange.reply, exchange.session, exchange.wanted = reply, session, set(objects)
            exchange.received, exchange.size, exchange.plain = {}, 0, 0
            return True

    def upload(self, node: int, session: str, name: str, content: bytes) -> bool:
        """Take one object of a reply; False if it was not announced, is not what its name says, or is too much."""
        if hashlib.sha256(content).hexdigest() != name:
            return False
        with self._lock:
            exchange = next((e for e in self._own(node).values() if e.session == session), None)
            if exchange is None or name not in exchange.wanted:
                return exchange is not None and name in exchange.received
            exchange.size += len(content)
            exchange.plain += 0 if content.startswith(CHUNK) else len(content)
            if exchange.size > exchange.most or exchange.plain > PLAIN:
                exchange.lose("the reply is too large", FAILED)
                self.arrived.set()
                return False
            exchange.received[name] = content
            exchange.wanted.discard(name)
            if exchange.complete:
                self.arrived.set()
            return True

    def _own(self, node: int) -> dict[str, Exchange]:
        return {name: exchange for name, exchange in self._exchanges.items() if exchange.node == node}
