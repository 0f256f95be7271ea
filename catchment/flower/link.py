"""The link between a run and its devices: the HTTP server that they connect to, in a thread of the server routine.

A request passes the gate, then Flower's handlers (`superlink`), which work on the store.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import uvicorn
from flwr.app import Message

from catchment.errors import RunError
from catchment.flower.gate import Gate
from catchment.flower.listening import Listener, Loop
from catchment.flower.store import Store
from catchment.flower.superlink import be_server, fleet_api, put_together, taken_apart

STARTING = 30.0  # seconds for the thread to listen
SILENCE = 100  # tenths of a second for the head of a request to arrive


class _Server(uvicorn.Server):
    """Closes connections that do not finish the head of a request, so that nobody can use up all of them."""

    _silent: frozenset[object] = frozenset()

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second."""
        if counter % SILENCE == 0:
            silent = {one for one in self.server_state.connections if _owes_a_head(one)}
            for connection in silent & self._silent:
                connection.transport.abort()
            self._silent = frozenset(silent - self._silent)
        return await super().on_tick(counter)


def _owes_a_head(connection: Any) -> bool:
    """Whether somebody has yet to ask for something, or has begun to ask again; to rest in between is allowed."""
    if connection.cycle is None:
        return True
    return connection.cycle.response_complete and bool(connection.conn.trailing_data[0])


class Link:
    """Serves devices on a socket that already listens, and is the grid of the run's transport."""

    def __init__(self, listener: socket.socket, clients: int, certificate: tuple[Path, Path] | None = None) -> None:
        """`certificate` is that of the server and its key; without it nothing is encrypted."""
        run = int.from_bytes(os.urandom(7))
        be_server(run)
        self.store = Store(run, 16 + 4 * clients)
        self._server = _Server(
            uvicorn.Config(
                Gate(fleet_api(self.store), self.store),
                http="h11",  # the parser that limits heads
                lifespan="off",
                ws="none",
                interface="asgi3",
                log_level="error",
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=2,
                h11_max_incomplete_event_size=16_384,
                ssl_certfile=certificate and certificate[0],
                ssl_keyfile=certificate and certificate[1],
                ssl_version=ssl.PROTOCOL_TLS_SERVER,
            )
        )
        self._thread = threading.Thread(target=self._serve, args=(listener,), name="link", daemon=True)

    def _serve(self, listener: socket.socket) -> None:
        with asyncio.Runner(loop_factory=Loop) as runner, Listener(listener) as counted:
            runner.run(self._server.serve([counted]))

    def __enter__(self) -> Link:
        self._thread.start()
        until = time.monotonic() + STARTING
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > until:
                raise RunError("the link for devices could not be started; its log says why")
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self.store.wake()
        self._thread.join(5)

    def wait(self, seconds: float) -> None:
        """Wait until something has arrived, for at most that many seconds."""
        self.store.arrived.wait(seconds)
        self.store.arrived.clear()

    # ---- what the transport needs of Flower's Grid ----

    def get_node_ids(self) -> list[int]:
        """The connected nodes."""
        return self.store.nodes()

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages; "" stands for one whose node is not connected."""
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        identity, exchange = taken_apart(message)
        return identity if self.store.send(identity, exchange) else ""

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Replies that have arrived, and errors in place of those that never will."""
        exchanges = (self.store.take(identity) for identity in message_ids)
        return [put_together(exchange) for exchange in exchanges if exchange is not None]
