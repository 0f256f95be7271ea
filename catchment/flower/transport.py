"""The transport over Flower: requests and responses as raw bytes in Flower's messages.

At most one message per client is in flight. What a client was working on when it left is sent again when it is back. It
is lost only if the client stays away, or when the time for an answer is over. Nothing that a node sends raises here.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flwr.app import Message as Envelope

from catchment.core.transport import Greeting, Snapshot, Transport, pause
from catchment.device.answering import HELLO_FIRST, NOT_APPROVED
from catchment.errors import RunError
from catchment.exchange.request import Request, Response
from catchment.flower.attendance import Attendance
from catchment.flower.delivery import Delivery
from catchment.flower.messages import EXPIRED, FAILED, GONE, Fields, Grid, pack, read_reply, send
from catchment.runs.presence import AWAY, CONNECTED, KEYLESS, REFUSES, UNANSWERED, UNAPPROVED, WORKING

FAREWELL = 3.0  # seconds to wait for nodes to confirm that the run is over
GREETINGS = 3  # how often a client is greeted again for one request of a run that it does not know
LARGEST = 2**31  # bytes of a response where nothing else is said


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
        expect: Callable[[str, int], None] = lambda message, size: None,
        client_of: Callable[[int], int | None] | None = None,
        admits: Callable[[int], bool] = lambda client: True,
        helps: Callable[[Mapping[int, str]], list[str]] = lambda states: [],
        notices: Callable[[], list[dict[str, Any]]] = list,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`experiment` is its TOML, `form` that of its data, `federation` the name of the run on the devices' disks.

        `signature` is that of the run by the federation's key. `largest` says how many bytes the response to a request
        may have, `expect` is told how many the reply to a message may have. `client_of` and `admits` are those of
        `Attendance`. `helps` says in sentences what keeps clients from taking part, by their states. `notices` gives
        events of other processes, `sleep` waits until something may have arrived, or for that many seconds.
        """
        greeting: Fields = {
            "version": version,
            "experiment": experiment,
            "form": form,
            "federation": federation,
            "signature": signature,
        }
        self._attendance = Attendance(grid, greeting, clients, wait, client_of, admits)
        self._grid = grid
        self._federation: Fields = {"federation": federation}
        self._clients = clients
        self._wait = wait
        self._least = least
        self._answer = answer if deadline is None else min(answer, 2 * deadline + 60)  # a late reply is still a reply
        self._largest = largest
        self._expect = expect
        self._helps = helps
        self._notices = notices
        self._sleep = sleep
        self._began = time.monotonic()
        self._offset = 0.0  # of the clock: the time before the last resume
        self.waits = False  # for clients to connect
        self._waited = False  # for everybody, before the first round
        self._waiting: dict[int, deque[Delivery]] = {}  # client -> deliveries
        self._in_flight: dict[str, tuple[int, int, Delivery]] = {}  # message -> client, node, delivery
        self._ready: deque[Response] = deque()

    @property
    def now(self) -> float:
        """Seconds of real time that the run has taken, resumes included, but not the wait for everybody."""
        return self._offset + time.monotonic() - self._began

    # ---- who is there ----

    def roster(self, round: int) -> Sequence[int]:
        """The connected clients and those that just left; waits for all before the first round, later for the minimum.

        Whoever is back within `wait` seconds misses nothing, so that a restart does not change what is computed.
        """
        enough = self._least if self._waited else self._clients
        began = time.monotonic()
        until = began + self._wait
        while True:
            self._look()
            connected = len(self._attendance.nodes)
            if connected >= enough:
                break
            if time.monotonic() >= until:
                if connected >= self._least:
                    break
                raise RunError(self._too_few(round))
            self.waits = True
            self._sleep(pause(time.monotonic() - began))
        self.waits = False
        if not self._waited:
            self._waited = True
            self._began += time.monotonic() - began  # what takes long is people
        return [client for client in range(self._clients) if self._attendance.is_expected(client)]

    def states(self) -> dict[int, str]:
        """What every client does, in the words of `catchment.runs.presence`."""
        attendance = self._attendance
        states = {client: AWAY if attendance.has_key(client) else KEYLESS for client in range(self._clients)}
        for client, why in attendance.absent().items():
            states[client] = UNANSWERED if not why else UNAPPROVED if why == NOT_APPROVED else REFUSES + why
        states |= dict.fromkeys(attendance.nodes, CONNECTED)
        busy = {client for client, _, _ in self._in_flight.values()}
        return states | dict.fromkeys(busy & attendance.nodes.keys(), WORKING)

    def _too_few(self, round: int) -> str:
        helps = self._helps(self.states())
        excuses = self._attendance.excuses.items()
        return "; ".join(
            [
                f"round {round}: {len(self._attendance.nodes)} of {self._clients} clients are connected after "
                f"{self._wait:.0f} s, {self._least} are needed (flower.least, flower.wait)",
                *helps,
                *(f"node {node}: {excuse.why}" for node, excuse in excuses if not helps or excuse.client is None),
            ]
        )

    def _look(self) -> None:
        """Learn who came and left; a returning client gets its request again, unless it has answered already."""
        for client, before in self._attendance.look():
            for message, (_, node, delivery) in list(self._in_flight.items()):
                if node == before:
                    del self._in_flight[message]
                    replies = list(self._grid.pull_messages([message]))
                    self._arrived(client, node, delivery, replies[0]) if replies else self._start_over(client, delivery)

    # ---- requests and responses ----

    def push(self, requests: Sequence[Request]) -> None:
        """Send requests to clients that are free; the others get theirs in turn."""
        for request in requests:
            self._waiting.setdefault(request.client, deque()).append(Delivery(request))
        self._feed()

    def pull(self, until: float) -> Response | None:
        """The next response; polls for one."""
        began = self.now
        while not self._ready:
            if not self._in_flight and not self._waiting:
                return None
            for message in list(self._in_flight):
                for reply in self._grid.pull_messages([message]):
                    self._arrived(*self._in_flight.pop(message), reply)
            self._look()
            self._feed()
            if not self._ready:
                if self.now >= until:
                    return None
                self._sleep(min(pause(self.now - began), max(0.0, until - self.now)))
        return self._ready.popleft()

    def _feed(self) -> None:
        """Send the next message of whatever waits for a client that is free."""
        busy = {client for client, _, _ in self._in_flight.values()}
        for client in [client for client in self._waiting if client not in busy]:
            deliveries = self._waiting[client]
            node = self._attendance.nodes.get(client)
            over = time.monotonic() >= deliveries[0].expires
            if not over and self._is_on_its_way(client):
                continue
            delivery = deliveries.popleft()
            if not deliveries:
                del self._waiting[client]
            if over:
                self._ready.append(delivery.lost("the time for an answer is over"))
            elif node is None:
                self._ready.append(delivery.lost("the client is not connected"))
            else:
                self._send_next(client, node, delivery)

    def _is_on_its_way(self, client: int) -> bool:
        """Whether a client cannot be asked now, but may be soon."""
        if client in self._attendance.nodes:
            return self._attendance.is_being_greeted(client)
        return self._attendance.is_expected(client)

    def _send_next(self, client: int, node: int, delivery: Delivery) -> None:
        """Send the next message of a delivery."""
        now = time.monotonic()
        delivery.expires = min(delivery.expires, now + self._answer)
        kind, fields, raw = delivery.next_message()
        body = pack({**fields, **self._federation}, raw)
        message = send(self._grid, node, kind, body, max(0.001, delivery.expires - now))
        if message:
            self._expect(message, delivery.remaining(self._largest(delivery.request)))
            self._in_flight[message] = (client, node, delivery)
        else:
            self._start_over(client, delivery)

    def _start_over(self, client: int, delivery: Delivery) -> None:
        """Restart a delivery, before anything else that waits for the client."""
        delivery.restart()
        self._waiting.setdefault(client, deque()).appendleft(delivery)

    def _arrived(self, client: int, node: int, delivery: Delivery, reply: Envelope) -> None:
        """Take the reply to a message of a delivery: send the next message, or pass on the response."""
        said = read_reply(reply)
        if said.code == GONE:
            self._start_over(client, delivery)
        elif said.error == HELLO_FIRST and delivery.greetings < GREETINGS:
            delivery.greetings += 1
            self._attendance.greet(node)
            self._start_over(client, delivery)
        elif said.code == EXPIRED:
            self._ready.append(delivery.lost(said.error))
            self._attendance.timed_out(client, node)
        elif said.error:
            self._ready.append(delivery.lost(said.error)._replace(failed=said.code in (0, FAILED)))
        else:
            response = delivery.accept(said.fields.get("parts"), said.raw, self._largest(delivery.request))
            if response is None:
                self._send_next(client, node, delivery)
                return
            if not response.failed and not response.aside:
                self._attendance.has_trained(client)
            self._ready.append(response)

    # ---- checkpoints and the end ----

    def snapshot(self, before: Callable[[int], int]) -> Snapshot:
        """The clock; states are on the devices."""
        return Snapshot(self.now)

    def restore(self, snapshot: Snapshot) -> None:
        """Let the clock go on from where it stopped."""
        self._offset = snapshot.now
        self._attendance.note("resumed", None, "the server went on from its last checkpoint")

    def news(self) -> list[dict[str, Any]]:
        """Who came, who left, and what was restarted."""
        events, self._attendance.events = self._attendance.events, []
        return [*events, *self._notices()]

    def greetings(self) -> list[Greeting]:
        """Announcements of the run, and the answers to them."""
        found, self._attendance.greetings = self._attendance.greetings, []
        return found

    def close(self) -> None:
        """Tell the nodes that the run is over, and wait a moment for their replies."""
        nodes = self._attendance.nodes.values()
        messages = {send(self._grid, node, "query.bye", pack(self._federation), FAREWELL) for node in nodes} - {""}
        until = time.monotonic() + FAREWELL
        while messages and time.monotonic() < until:
            messages -= {message for message in messages if list(self._grid.pull_messages([message]))}
            self._sleep(pause(0))
