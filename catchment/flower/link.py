"""The link between a run and its devices: Flower's fleet API, served by a thread of the server routine's own process.

This file and `node.py` are the two with private names of Flower's (1.41). Of its SuperLink there are only the handlers
that devices need: no control, no runtime, no apps, no database; nobody can start anything here. Before them stands the
gate, behind them the store.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import uvicorn
from fastapi import FastAPI
from flwr.app import Error, Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import SUPERLINK_NODE_ID, Status
from flwr.supercore.error import http_error_translator
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
from flwr.supercore.run import RunStatus
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
from flwr.superlink.routers.fleet.router import router
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware

from catchment.errors import RunError
from catchment.flower.gate import Gate
from catchment.flower.store import Exchange, Store
from catchment.transports.flower import FAILED

STARTING = 30.0  # seconds for the thread to listen
CONNECTIONS = 2000  # at a time
SILENCE = 100  # tenths of a second for the head of the first request to arrive


class _Server(uvicorn.Server):
    """Hangs up on whoever connects and says nothing, so that nobody can take all the connections there are."""

    _silent: frozenset[object] = frozenset()

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second."""
        if counter % SILENCE == 0:
            silent = {one for one in self.server_state.connections if getattr(one, "cycle", None) is None}
            for connection in silent & self._silent:
                connection.transport.abort()
            self._silent = frozenset(silent - self._silent)
        return await super().on_tick(counter)


class Link:
    """Serves devices on a socket that listens already, and is the run's grid."""

    def __init__(self, listener: socket.socket, clients: int, certificate: tuple[Path, Path] | None = None) -> None:
        """`certificate` is that of the server and its key; without it nothing is encrypted."""
        run = int.from_bytes(os.urandom(7))
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run, SUPERLINK_NODE_ID
        self.store = Store(run, 16 + 4 * clients, RunStatus(Status.RUNNING, "", ""))
        logging.getLogger("flwr").setLevel(logging.CRITICAL)  # what strangers send is not worth a line each
        self._server = _Server(
            uvicorn.Config(
                Gate(_app(self.store), self.store),
                lifespan="off",
                ws="none",
                interface="asgi3",
                log_level="error",
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                limit_concurrency=CONNECTIONS,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=2,
                h11_max_incomplete_event_size=16_384,
                ssl_certfile=certificate and certificate[0],
                ssl_keyfile=certificate and certificate[1],
                ssl_version=ssl.PROTOCOL_TLS_SERVER,
            )
        )
        self._thread = threading.Thread(target=self._server.run, args=([listener],), name="link", daemon=True)

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
        self.store.ring()
        self._thread.join(5)

    def wait(self, seconds: float) -> None:
        """Until something arrived, or for so long."""
        self.store.arrived.wait(seconds)
        self.store.arrived.clear()

    # ---- what the transport needs of Flower's Grid ----

    def get_node_ids(self) -> list[int]:
        """Who is connected."""
        return self.store.nodes()

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages; "" stands for one whose node is not connected."""
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        with no_object_id_recompute():
            identity = message.object_id
            message.metadata.__dict__["_message_id"] = identity
            exchange = Exchange(
                message.metadata.dst_node_id,
                remove_content_from_message(message),
                get_object_tree(message),
                {name: thing.deflate() for name, thing in get_all_nested_objects(message).items()},
                time.monotonic() + message.metadata.ttl,
            )
        return identity if self.store.send(identity, exchange) else ""

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Replies that are here, and errors in place of those that will never be."""
        return [_reply(exchange) for identity in message_ids if (exchange := self.store.take(identity)) is not None]


def _app(store: Store) -> FastAPI:
    """Flower's fleet API over a store, with no page and no path beside it."""
    app = FastAPI(
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        middleware=[
            Middleware(BaseHTTPMiddleware, dispatch=http_error_translator),
            Middleware(ProtobufTranslationMiddleware),
            Middleware(NodeAuthMiddleware),
        ],
    )
    app.state.linkstate_factory = SimpleNamespace(state=lambda: store)
    app.state.enable_supernode_auth = True
    app.include_router(router)
    return app


def _reply(exchange: Exchange) -> Message:
    """What came back, or why nothing did."""
    if exchange.lost:
        return Message(Error(exchange.code, exchange.lost), reply_to=exchange.message)
    try:
        reply = inflate_object_from_contents(exchange.reply.metadata.message_id, exchange.received)
        if isinstance(reply, Message) and reply.has_content():
            return reply
        why = "the device sent an error"
    except Exception as error:  # a node may have sent anything
        why = f"the reply cannot be read ({type(error).__name__})"
    return Message(Error(FAILED, why), reply_to=exchange.message)
