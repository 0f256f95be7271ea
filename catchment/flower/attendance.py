"""Which of Flower's nodes is which client: nodes are greeted, say who they are, leave, and return under other ids."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from flwr.app import Message as Envelope

from catchment.core.transport import Greeting
from catchment.errors import printable
from catchment.flower.messages import EXPIRED, GONE, Fields, Grid, pack, read_reply, send, size_of

LOOK = 0.5  # seconds between two checks for nodes
GREETING = 600.0  # seconds that a node has to answer a greeting; it may read its data first
AGAIN = 30.0  # seconds after which a node that refused is greeted again


class Excuse(NamedTuple):
    """Why a node does not take part, and which client it is, if that is known."""

    client: int | None
    why: str


class Attendance:
    """The clients that are connected, and the events of their coming and going.

    `client_of` says which client's key a node has (without it, any node may be any client), `admits` whether a client
    may come back, `wait` for how many seconds one that left is expected back.
    """

    def __init__(
        self,
        grid: Grid,
        greeting: Fields,
        clients: int,
        wait: float,
        client_of: Callable[[int], int | None] | None,
        admits: Callable[[int], bool],
    ) -> None:
        self.nodes: dict[int, int] = {}  # client -> node
        self.excuses: dict[int, Excuse] = {}  # of nodes that do not take part
        self.events: list[dict[str, Any]] = []
        self.greetings: list[Greeting] = []  # and the answers to them
        self._grid = grid
        self._greeting = greeting
        self._clients = clients
        self._wait = wait
        self._client_of = client_of
        self._admits = admits
        self._began = time.monotonic()
        self._looked = float("-inf")
        self._left: dict[int, float] = {}  # client -> when it left
        self._greeted: dict[int, float] = {}  # node -> when
        self._greetings: dict[str, int] = {}  # message -> node
        self._trained: set[int] = set()  # clients that have answered since the server started

    def look(self) -> list[tuple[int, int | None]]:
        """Greet new nodes, learn who they are, forget those that left; returns who came, and the node it was before."""
        if time.monotonic() - self._looked >= LOOK:
            self._looked = time.monotonic()
            self._compare(set(self._grid.get_node_ids()))
        came = []
        for message, node in list(self._greetings.items()):
            for reply in self._grid.pull_messages([message]):
                del self._greetings[message]
                came += self._welcome(node, reply)
        return came

    def is_expected(self, client: int) -> bool:
        """Whether a client is connected, or may be back in time."""
        if client in self.nodes:
            return True
        return self._admits(client) and time.monotonic() - self._left.get(client, self._began) < self._wait

    def absent(self) -> dict[int, str]:
        """What is known of clients that are not connected: why they do not take part, or "" before their answer."""
        owner = self._client_of or (lambda node: None)
        unanswered = {client: "" for node in self._greetings.values() if (client := owner(node)) is not None}
        known = {excuse.client: excuse.why for excuse in self.excuses.values() if excuse.client is not None}
        return {client: why for client, why in (unanswered | known).items() if client not in self.nodes}

    def has_key(self, client: int) -> bool:
        """Whether a device may come as this client."""
        return self._admits(client)

    def is_being_greeted(self, client: int) -> bool:
        """Whether a client's node has yet to answer a greeting."""
        return self.nodes.get(client) in self._greetings.values()

    def greet(self, node: int) -> None:
        """Send a node the announcement of the run, and ask who it is."""
        message = send(self._grid, node, "query.hello", pack(self._greeting), GREETING)
        if message:
            self._greeted[node] = time.monotonic()
            self._greetings[message] = node

    def has_trained(self, client: int) -> None:
        """Remember that a client has answered, and so should have a state of this run."""
        self._trained.add(client)

    def timed_out(self, client: int, node: int) -> None:
        """A node has not answered in time: it is asked again once it has answered a greeting."""
        if self.nodes.get(client) == node:
            self.note("left", client, "it has not answered in time")
            self._leave(client, float("-inf"))
            self._greeted.pop(node, None)

    def note(self, what: str, client: int | None, why: str) -> None:
        """An event for the record of the current round."""
        self.events.append({"what": what, "client": client, "handler": "", "why": why})

    def _compare(self, present: set[int]) -> None:
        """Note who left, and greet who is new."""
        for client, node in list(self.nodes.items()):
            if node not in present:
                self.note("left", client, "its node is not connected any more")
                self._leave(client, time.monotonic())
        for node in self._greeted.keys() - present:  # it is greeted again when it comes back
            del self._greeted[node]
            self.excuses.pop(node, None)
        for node in self.excuses:  # its owner may have changed their mind
            if self._looked - self._greeted.get(node, 0.0) > AGAIN and node not in self._greetings.values():
                self._greeted.pop(node, None)
        for node in sorted(present - self._greeted.keys()):
            self.greet(node)

    def _leave(self, client: int, when: float) -> None:
        del self.nodes[client]
        self._left[client] = when

    def _welcome(self, node: int, reply: Envelope) -> list[tuple[int, int | None]]:
        """Take a node's answer to a greeting; returns the client that it is, if that is new."""
        said = read_reply(reply)
        if said.code in (EXPIRED, GONE):
            self._greeted.pop(node, None)  # and is greeted again, if it is there
            return []
        client, samples = said.fields.get("client"), said.fields.get("samples", 0)
        if (owner := self._who(node, client)) is not None:
            self.greetings.append(Greeting(owner, "down", size_of(self._greeting)))
            self.greetings.append(Greeting(owner, "up", size_of(said.fields)))
        why = said.error or self._objection(node, client, samples)
        if why:
            excuse = Excuse(owner, why)
            if self.excuses.get(node) != excuse:
                self.note("declined", excuse.client, f"node {node} may not join: {why}")
            self.excuses[node] = excuse
            return []
        assert isinstance(client, int)
        self.excuses.pop(node, None)
        before = self.nodes.get(client)
        self.nodes[client] = node
        if before == node:
            return []  # it was greeted again
        self.note("joined", client, f"node {node} has {samples} samples")
        if client in self._trained and said.fields.get("states") == 0:
            self.note("forgot", client, "the device came back without the state of this run, and starts over")
        return [(client, before)]

    def _who(self, node: int, client: object) -> int | None:
        """The client whose key a node has; without keys, the one that it says it is."""
        if self._client_of is not None:
            return self._client_of(node)
        return client if type(client) is int and 0 <= client < self._clients else None

    def _objection(self, node: int, client: object, samples: object) -> str:
        """Why a node cannot be the client that it says it is; "" if it can."""
        if type(client) is not int or not 0 <= client < self._clients:
            return f"says that it is client {printable(client, 40)}; there are clients 0 to {self._clients - 1}"
        if self._client_of is not None and (owner := self._client_of(node)) != client:
            return f"says that it is client {client}, but its key is that of client {owner}"
        if type(samples) is not int:
            return f"says that it has {printable(samples, 40)} samples"
        return ""
