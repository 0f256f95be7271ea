"""A warm client: one process that keeps PyTorch and the model, and speaks to the SuperLink as a SuperNode does.

This is the one file with private names of Flower's (1.41). Without them, `catchment join --stock` starts Flower's own
SuperNode, which runs `catchment.flower.apps:client` in a new process for each message: slower, the same results.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, push_objects
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_connection import http_request_response

from catchment.device import RealDevice
from catchment.errors import UserError
from catchment.flower.apps import reply_to
from catchment.process import return_freed_memory
from catchment.transports.base import pause


class Refused(Exception):
    """The SuperLink does not want this node, or cannot be trusted."""


def serve_node(
    address: str,
    device: RealDevice,
    root_certificate: Path | None,
    key: Path | None,
    *,
    once: bool,
    tell: Callable[[str], None],
) -> None:
    """Answer messages until the process is interrupted, or with `once` until a run is over."""
    keys = None if key is None else _keys(key)
    root = None if root_certificate is None else root_certificate.read_bytes()
    try:
        with http_request_response(address, root is None, root, keys) as connection:
            tell(f"client {device.client} is connected to {address} as node {connection[0]}")
            _serve(connection, device, once, tell)
    except SystemExit:  # how Flower ends a connection that could not be made; it has said why
        raise Refused("the connection was refused, as said above") from None


def _serve(connection: Any, device: RealDevice, once: bool, tell: Callable[[str], None]) -> None:
    node, receive, send, _, _, pull_object, push_object, confirm = connection
    TaskIdentity.task_id, TaskIdentity.node_id = 0, node
    answered = time.monotonic()
    while True:
        received = receive()
        if received is None:
            time.sleep(pause(time.monotonic() - answered))
            continue
        began = time.monotonic()
        run = TaskIdentity.run_id = received[0].metadata.run_id
        try:
            message = pull_and_inflate_object_from_tree(
                received[1], partial(pull_object, run), partial(confirm, run), return_type=Message, initial_backoff=0.05
            )
            message.metadata.__dict__["_message_id"] = received[1].object_id
            kind, reply = reply_to(message, device)
            reply.metadata.__dict__["_message_id"] = reply.object_id
            with no_object_id_recompute():
                wanted, session = send(reply, get_object_tree(reply), time.monotonic() - began)
                objects = get_all_nested_objects(reply)
                push_objects(objects, partial(push_object, run, session), object_ids_to_push=wanted)
        except RunNotRunningException:
            continue  # it ended while this was on its way
        del message, reply, objects, received
        return_freed_memory()  # a device may need it for something else until the next message
        answered = time.monotonic()
        tell(f"{kind} answered in {answered - began:.2f} s")
        if kind == "bye" and once:
            return


def _keys(path: Path) -> tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey]:
    try:
        private = load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not a private key that can be read: {error}") from None
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise UserError(f"{path} is a key of another kind; `catchment keys` makes the right ones")
    return private, private.public_key()
