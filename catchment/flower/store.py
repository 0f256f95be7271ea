"""What the link holds in memory: who is connected, one message for each, and what came back.

Flower's own handlers of its fleet API call the methods of `Store` as those of a LinkState and an ObjectStore. Unlike
Flower's, it keeps apart what belongs to different nodes, and stores nothing that was not asked for: a node may upload
one reply for each message that it got, of a bounded size.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from catchment.transports.base import PART
from catchment.transports.flower import EXPIRED, FAILED, GONE

ABSENCE = 30.0  # seconds without a word after which a node counts as gone
LARGEST = PART + PART // 20  # bytes of one reply, with what Flower adds
OBJECTS = 64  # of one reply; a part of the largest size has 25
PLAIN = 600_000  # bytes of a reply's objects that are not chunks of an array: these take far more room once read
CHUNK = b"ArrayChunk "  # how the object of a chunk begins

speaking: ContextVar[int] = ContextVar("speaking")  # the node whose request is being answered


@dataclass
class Exchange:
    """A message to a node, and the reply: envelopes, and objects by the hash of their bytes."""

    node: int
    message: Any
    tree: Any
    objects: dict[str, bytes]
    expires: float
    lost: str = ""  # why there will be no reply
    code: int = 0  # and in the numbers of Flower's errors
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

    def age(self, now: float) -> None:
        """There will be no reply if its time is over."""
        if now >= self.expires and not self.complete and not self.lost:
            self.lose("the time for an answer is over", EXPIRED)

    def lose(self, why: str, code: int) -> None:
        """There will be no reply."""
        self.lost, self.code, self.objects, self.received = why, code, {}, {}


class Bell:
    """Made and waited for in a loop's own thread, rung from any."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Wake who waits."""
        self._loop.call_soon_threadsafe(self._rung.set)

    async def wait(self, seconds: float) -> None:
        """Until it rings, or for so long."""
        self._rung.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._rung.wait(), seconds)


@dataclass
class Node:
    """A device that is connected: one life of its process."""

    number: int
    key: bytes
    bell: Bell  # rung when there is a message
    heard: float
    active: bool = False


class Store:
    """Nodes and messages of one run. `most` is how many nodes there may be where anybody may join."""

    def __init__(self, run: int, most: int, status: object) -> None:
        self.run = run
        self.arrived = threading.Event()  # set whenever a reply is whole, or a node comes or goes
        self._most = most
        self._status = status  # of the run, as Flower's handlers want to have it
        self._clients: Mapping[bytes, int] | None = None  # who may join; None: anybody
        self._lock = threading.RLock()
        self._keys: dict[bytes, int] = {}
        self._nodes: dict[int, Node] = {}
        self._exchanges: dict[str, Exchange] = {}

    # ---- who may join ----

    def admit(self, clients: Mapping[bytes, int]) -> list[int]:
        """Let the holders of these public keys join, each as its client, and nobody else; returns who was sent away."""
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

    @property
    def open(self) -> bool:
        """Whether anybody may join."""
        return self._clients is None

    # ---- the server's side ----

    def nodes(self) -> list[int]:
        """Who is connected."""
        with self._lock:
            now = time.monotonic()
            for node in list(self._nodes.values()):
                if now - node.heard > ABSENCE:
                    self._forget(node.key, "the device has not been heard of for a while")
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
            node.bell.ring()
            return True

    def take(self, identity: str) -> Exchange | None:
        """The exchange of a message once it is over, one way or the other; it is forgotten here."""
        with self._lock:
            exchange = self._exchanges[identity]
            exchange.age(time.monotonic())
            return self._exchanges.pop(identity) if exchange.complete or exchange.lost else None

    def ring(self) -> None:
        """Let nobody wait for a message any longer."""
        with self._lock:
            for node in self._nodes.values():
                node.bell.ring()

    # ---- one node, by its key ----

    def begin(self, key: bytes, bell: Bell) -> Node | None:
        """A new life of whoever has this key; what it had in hand in an earlier one is lost. None if it is too full."""
        with self._lock:
            self._forget(key, "the device was restarted")
            if self.open and len(self._nodes) >= self._most:
                return None
            node = Node(2 + int.from_bytes(os.urandom(7)), key, bell, time.monotonic())
            self._keys[key], self._nodes[node.number] = node.number, node
            return node

    def heard(self, key: bytes) -> Node | None:
        """The node that has this key, if any; it is there."""
        with self._lock:
            node = self._nodes.get(self._keys.get(key, 0))
            if node is not None:
                node.heard = time.monotonic()
            return node

    def next(self, number: int) -> Exchange | None:
        """The oldest message that a node has not answered."""
        with self._lock:
            mine = (exchange for exchange in self._exchanges.values() if exchange.node == number)
            return next((exchange for exchange in mine if not exchange.complete and not exchange.lost), None)

    def _forget(self, key: bytes, why: str) -> None:
        node = self._nodes.pop(self._keys.pop(key, 0), None)
        if node is not None:
            for exchange in self._exchanges.values():
                if exchange.node == node.number and not exchange.complete:
                    exchange.lose(why, GONE)
            self.arrived.set()

    def _own(self) -> Iterator[tuple[str, Exchange]]:
        """Exchanges with the node that speaks."""
        number = speaking.get()
        return ((name, exchange) for name, exchange in self._exchanges.items() if exchange.node == number)

    # ---- as Flower's handlers call it ----

    @property
    def object_store(self) -> Store:
        """This, too."""
        return self

    def get_node_id_by_public_key(self, public_key: bytes) -> int | None:
        """The node that has this key."""
        with self._lock:
            return self._keys.get(public_key)

    def activate_node(self, node_id: int, heartbeat_interval: float) -> bool:
        """The node is ready for messages."""
        with self._lock:
            self._nodes[node_id].active = True
            self.arrived.set()
            return True

    def deactivate_node(self, node_id: int) -> bool:
        """The node leaves."""
        with self._lock:
            self._forget(self._nodes[node_id].key, "the device left")
            return True

    def acknowledge_node_heartbeat(self, node_id: int, heartbeat_interval: float) -> bool:
        """Whether the node is known."""
        with self._lock:
            return node_id in self._nodes

    def get_run_status(self, run_ids: set[int]) -> dict[int, object]:
        """There is one run, and it runs."""
        return {self.run: self._status}

    def get_message_ins(self, node_id: int, limit: int) -> list[Any]:
        """The message that a node is to answer next; one that it had and asks beyond is lost, and can be sent again."""
        with self._lock:
            while exchange := self.next(node_id):
                if exchange.objects:
                    return [exchange.message]
                exchange.lose("the device lost the message", GONE)
                self.arrived.set()
            return []

    def get_object_tree(self, object_id: str) -> Any:
        """The objects of a message."""
        with self._lock:
            return self._exchanges[object_id].tree

    def get_object(self, run_id: int, object_id: str) -> bytes | None:
        """An object of a message to the node that asks."""
        with self._lock:
            return next((e.objects[object_id] for _, e in self._own() if object_id in e.objects), None)

    def delete(self, object_id: str) -> None:
        """The node has all of a message."""
        with self._lock:
            for name, exchange in self._own():
                if name == object_id:
                    exchange.objects = {}

    def start_session(self, run_id: int) -> str:
        """A name for an upload."""
        return os.urandom(16).hex()

    def store_message_and_object_tree(self, message: Any, object_tree: Any, session_id: str) -> tuple[bool, list[str]]:
        """The beginning of a reply; says which objects are to follow. Until it is whole, it may begin anew."""
        with self._lock:
            exchange = dict(self._own()).get(message.metadata.reply_to_message_id)
            wanted = set(_names(object_tree, OBJECTS + 1))
            if exchange is None or exchange.complete or exchange.lost or len(wanted) > OBJECTS:
                return False, []
            exchange.reply, exchange.session, exchange.wanted = message, session_id, wanted
            exchange.received, exchange.size, exchange.plain = {}, 0, 0
            return True, sorted(wanted)

    def store_object(self, run_id: int, session_id: str, object_id: str, object_content: bytes) -> bool:
        """One object of a reply; False if it was not announced, is not what its name says, or is too much."""
        if hashlib.sha256(object_content).hexdigest() != object_id:
            return False
        with self._lock:
            exchange = next((e for _, e in self._own() if e.session == session_id), None)
            if exchange is None or object_id not in exchange.wanted:
                return exchange is not None and object_id in exchange.received
            exchange.size += len(object_content)
            exchange.plain += 0 if object_content.startswith(CHUNK) else len(object_content)
            if exchange.size > LARGEST or exchange.plain > PLAIN:
                exchange.lose("the reply is larger than a reply may be", FAILED)
                self.arrived.set()
                return False
            exchange.received[object_id] = object_content
            exchange.wanted.discard(object_id)
            if exchange.complete:
                self.arrived.set()
            return True

    def delete_messages(self, message_ins_ids: set[str]) -> None:
        """A message without objects; there is none."""

    def store_traffic(self, run_id: int, *, bytes_sent: int, bytes_recv: int) -> None:
        """Not counted here."""

    def add_clientapp_runtime(self, run_id: int, runtime: float) -> None:
        """Not counted here."""


def _names(tree: Any, most: int) -> list[str]:
    """The names in a tree of objects, of which more than `most` are not looked at."""
    found: list[str] = []
    left = [tree]
    while left and len(found) < most:
        node = left.pop()
        found.append(node.object_id)
        left.extend(node.children)
    return found
