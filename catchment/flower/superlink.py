"""What is used of Flower's SuperLink: the handlers of its fleet API, over our store, and messages as objects.

With `supernode.py` and `inflating.py` one of the three files with private names of Flower's. Of the SuperLink there are
only the handlers that devices need: no control, no runtime, no apps, no database; nobody can start anything here.
"""

from __future__ import annotations

import logging
import os
import time
from types import SimpleNamespace
from typing import Any

from fastapi import FastAPI
from flwr.app import Error, Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import SUPERLINK_NODE_ID, Status
from flwr.supercore.error import http_error_translator
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, no_object_id_recompute
from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
from flwr.supercore.run import RunStatus
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
from flwr.superlink.routers.fleet.router import router
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware

from catchment.flower.gate import current_node
from catchment.flower.inflating import inflated
from catchment.flower.messages import FAILED
from catchment.flower.store import LARGEST, OBJECTS, SMALL, Exchange, Store


def fleet_api(store: Store) -> FastAPI:
    """Flower's fleet API over a store, with no page and no path beside it."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)  # strangers could fill the log
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
    state = _LinkState(store)
    app.state.linkstate_factory = SimpleNamespace(state=lambda: state)
    app.state.enable_supernode_auth = True
    app.include_router(router)
    return app


def be_server(run: int) -> None:
    """Let this process make messages of the server in a run."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run, SUPERLINK_NODE_ID


def taken_apart(message: Message) -> tuple[str, Exchange]:
    """The name of a message and the exchange that it opens."""
    with no_object_id_recompute():
        identity = message.object_id
        message.metadata.__dict__["_message_id"] = identity
        return identity, Exchange(
            message.metadata.dst_node_id,
            remove_content_from_message(message),
            get_object_tree(message),
            {name: thing.deflate() for name, thing in get_all_nested_objects(message).items()},
            time.monotonic() + message.metadata.ttl,
            SMALL if message.metadata.message_type.startswith("query.") else LARGEST,
        )


def put_together(exchange: Exchange) -> Message:
    """The reply of an exchange that is over, or an error that says why there is none."""
    if exchange.lost:
        return Message(Error(exchange.code, exchange.lost), reply_to=exchange.message)
    try:
        reply = inflated(exchange.reply.metadata.message_id, exchange.received, exchange.most)
        if reply.has_content():
            return reply
        why = "the device sent an error"
    except Exception as error:  # a node may have sent anything
        why = f"the reply cannot be read ({type(error).__name__})"
    return Message(Error(FAILED, why), reply_to=exchange.message)


class _LinkState:
    """A store as Flower's handlers call it: the methods of its LinkState and its ObjectStore that they use."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._status = RunStatus(Status.RUNNING, "", "")
        self.object_store = self

    def get_node_id_by_public_key(self, public_key: bytes) -> int | None:
        return self._store.number(public_key)

    def activate_node(self, node_id: int, heartbeat_interval: float) -> bool:
        self._store.activate(node_id)
        return True

    def deactivate_node(self, node_id: int) -> bool:
        self._store.leave(node_id)
        return True

    def acknowledge_node_heartbeat(self, node_id: int, heartbeat_interval: float) -> bool:
        return self._store.knows(node_id)

    def get_run_status(self, run_ids: set[int]) -> dict[int, object]:
        return {self._store.run: self._status}

    def get_message_ins(self, node_id: int, limit: int) -> list[Any]:
        exchange = self._store.fetch(node_id)
        return [] if exchange is None else [exchange.message]

    def get_object_tree(self, object_id: str) -> Any:
        return self._store.tree(object_id)

    def get_object(self, run_id: int, object_id: str) -> bytes | None:
        return self._store.object(current_node.get(), object_id)

    def delete(self, object_id: str) -> None:
        self._store.confirm(current_node.get(), object_id)

    def start_session(self, run_id: int) -> str:
        return os.urandom(16).hex()

    def store_message_and_object_tree(self, message: Any, object_tree: Any, session_id: str) -> tuple[bool, list[str]]:
        names = set(_names(object_tree, OBJECTS + 1))
        to = message.metadata.reply_to_message_id
        taken = self._store.begin_upload(current_node.get(), to, message, session_id, names)
        return taken, sorted(names) if taken else []

    def store_object(self, run_id: int, session_id: str, object_id: str, object_content: bytes) -> bool:
        return self._store.upload(current_node.get(), session_id, object_id, object_content)

    def delete_messages(self, message_ins_ids: set[str]) -> None:
        """Called for messages without objects; there are none."""

    def store_traffic(self, run_id: int, *, bytes_sent: int, bytes_recv: int) -> None:
        """The ledger counts what is sent."""

    def add_clientapp_runtime(self, run_id: int, runtime: float) -> None:
        """The fleet measures time."""


def _names(tree: Any, most: int) -> list[str]:
    """The names in a tree of objects, of which more than `most` are not looked at."""
    found: list[str] = []
    left = [tree]
    while left and len(found) < most:
        node = left.pop()
        found.append(node.object_id)
        left.extend(node.children)
    return found
