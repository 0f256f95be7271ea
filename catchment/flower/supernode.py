"""What is used of Flower's SuperNode: the calls of a device to the server, and what their failures mean.

With `superlink.py` and `inflating.py` one of the three files with private names of Flower's.
"""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import pull_objects, push_objects
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_client import FleetHttpClient

from catchment.core.transport import PART
from catchment.flower.inflating import inflated

T = TypeVar("T")

BEAT = 10  # seconds between two heartbeats; Flower takes no less
STEADY = 25.0  # seconds for which one call is tried again before the connection counts as lost
LONGEST_PAUSE = 10.0  # seconds
HANDSHAKE = 5.0  # seconds to find out whether a server speaks TLS
LARGEST = PART + PART // 20  # bytes of one message, with what Flower adds
OBJECTS = 64  # of one message
LONGEST = 5_300_000  # bytes of one answer; Flower cuts arrays into chunks of 5 MiB
NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")


class Refused(Exception):
    """The server does not want this device, or cannot be trusted."""


class Away(Exception):
    """The server cannot be reached, or does not know this device any more."""


class NotAdmitted(Away):
    """The server does not admit this device's key: not yet, not any more, or it cannot tell at the moment."""


class _Unknown(Away):
    """The server does not know this node: it was restarted, or the node was silent for too long."""


class FleetClient:
    """A server as one device calls it; `certificate` is that of the authority, without which there is no TLS."""

    def __init__(self, address: str, certificate: bytes | None, key: ec.EllipticCurvePrivateKey) -> None:
        self._address = address
        self._plain = certificate is None
        self._signature = _Signature(key)
        self._http = FleetHttpClient.from_server_address(
            address, self._plain, certificate, interceptors=[self._signature]
        )
        self._http._client.follow_redirects = False
        self._http._client.event_hooks = {"response": [_check_answer]}

    def __enter__(self) -> FleetClient:
        self._http.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._http.__exit__(*error)

    @contextlib.contextmanager
    def connected(self) -> Iterator[Connection]:
        """Be a node for a while, with heartbeats from a thread of their own."""
        http, node = self._http, self._activate()
        TaskIdentity.task_id, TaskIdentity.node_id = 0, node.node_id
        over = threading.Event()

        def beat() -> None:
            request = SendNodeHeartbeatRequest(node=node, heartbeat_interval=BEAT)
            while not over.wait(BEAT):
                with contextlib.suppress(Away, Refused):  # the next call says so
                    _called(partial(http.SendNodeHeartbeat, request))

        threading.Thread(target=beat, name="heartbeat", daemon=True).start()
        try:
            yield Connection(http, node)
        except Away:
            raise
        except BaseException:
            with contextlib.suppress(Away, Refused):
                _called(partial(http.DeactivateNode, DeactivateNodeRequest(node_id=node.node_id)))
            raise
        finally:
            over.set()

    def _activate(self) -> Node:
        request = ActivateNodeRequest(public_key=self._signature.public, heartbeat_interval=BEAT)
        try:
            return Node(node_id=_called(partial(self._http.ActivateNode, request)).node_id)
        except _Unknown:
            raise Refused("it does not accept the signature of this device; is this device's clock right?") from None
        except Away:
            if self._plain and speaks_tls(self._address):
                raise Refused(
                    "it speaks TLS, and this device does not; give root_certificate, key and federation in place of "
                    "insecure"
                ) from None
            raise


class Connection:
    """The calls of one connected node."""

    def __init__(self, http: FleetHttpClient, node: Node) -> None:
        self.node = node
        self._http = http

    def receive(self) -> Message | None:
        """The next message; None if there is none for a while."""
        found = _steady(partial(self._http.PullMessages, PullMessagesRequest(node=self.node)))
        if not found.messages_list:
            return None
        try:
            tree = found.message_object_trees[0]
            run = TaskIdentity.run_id = message_from_proto(found.messages_list[0]).metadata.run_id
            message = inflated(tree.object_id, self._fetch(run, tree), LARGEST)
            message.metadata.__dict__["_message_id"] = tree.object_id
        except (Away, Refused):
            raise
        except Exception as error:  # bytes of a server that may send anything
            raise Away(f"it sends what cannot be read: {type(error).__name__}") from None
        confirm = ConfirmMessageReceivedRequest(node=self.node, run_id=run, message_object_id=tree.object_id)
        _steady(partial(self._http.ConfirmMessageReceived, confirm))
        return message

    def _fetch(self, run: int, tree: ObjectTree) -> dict[str, bytes]:
        """All objects of a message, up to the largest that a message may be."""
        names = list({part.object_id for part in iterate_object_tree(tree)})
        if len(names) > OBJECTS:
            raise Away(f"it sends a message of {len(names):,} objects; at most {OBJECTS} are expected")
        size = 0

        def fetch(name: str) -> bytes:
            nonlocal size
            request = PullObjectRequest(node=self.node, run_id=run, object_id=name)
            found = _steady(partial(self._http.PullObject, request))
            if not found.object_found:
                raise Away("it does not have the message any more")
            size += len(found.object_content)
            if size > LARGEST:
                raise Away(f"it sends more than {LARGEST:,} bytes in one message")
            return found.object_content

        return pull_objects(names, fetch)

    def send(self, reply: Message) -> None:
        """Upload a reply."""
        reply.metadata.__dict__["_message_id"] = reply.object_id
        run = reply.metadata.run_id
        with no_object_id_recompute():
            request = PushMessagesRequest(
                node=self.node,
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[get_object_tree(reply)],
            )
            wanted = _steady(partial(self._http.PushMessages, request))

            def push(name: str, content: bytes) -> None:
                request = PushObjectRequest(
                    node=self.node, run_id=run, object_id=name, object_content=content, session_id=wanted.session_id
                )
                if not _steady(partial(self._http.PushObject, request)).stored:
                    raise Away("it does not take the reply any more")

            push_objects(get_all_nested_objects(reply), push, object_ids_to_push=set(wanted.objects_to_push))


class _Signature:
    """Who this is, in the headers of every request: a public key, and the time signed with the private one."""

    def __init__(self, private: ec.EllipticCurvePrivateKey) -> None:
        self._private = private
        self.public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        """Called by Flower's client for every request."""
        now = datetime.now(UTC).isoformat()
        context.request.headers.update(
            {
                "accept-encoding": "identity",
                "flwr-public-key": b64encode(self.public).decode(),
                "flwr-timestamp": now,
                "flwr-signature": b64encode(self._private.sign(now.encode(), ec.ECDSA(SHA256()))).decode(),
            }
        )
        return call_next(context)


def _check_answer(answer: httpx.Response) -> None:
    """Refuse, before it is read, an answer that is longer than it says, or might become so."""
    length = answer.headers.get("content-length", "")
    if "content-encoding" in answer.headers:
        raise httpx.DecodingError("its answer is encoded, which was not asked for", request=answer.request)
    if not re.fullmatch("[0-9]{1,9}", length) or int(length) > LONGEST:
        raise httpx.DecodingError(f"its answer is not of at most {LONGEST:,} bytes", request=answer.request)


# ---- what a failure means ---------------------------------------------------------------------------------------


def _steady(call: Callable[[], T]) -> T:
    """One call, tried again for a while if the network fails."""
    until, wait = time.monotonic() + STEADY, 0.1
    while True:
        try:
            return _called(call)
        except (_Unknown, NotAdmitted):
            raise
        except Away:
            if time.monotonic() > until:
                raise
            time.sleep(wait)
            wait = min(2 * wait, LONGEST_PAUSE)


def _called(call: Callable[[], T]) -> T:
    """One call, whose errors say whether to try again."""
    try:
        return call()
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        if status == httpx.codes.UNAUTHORIZED:
            raise _Unknown("it does not know this device any more") from None
        if status == httpx.codes.FORBIDDEN:
            raise NotAdmitted("the key of this device is not admitted") from None
        if status == httpx.codes.NOT_FOUND:
            raise Refused("it is not a server of Catchment's") from None
        raise Away(f"it answers {status}") from None
    except (httpx.HTTPError, ValueError) as error:
        for cause in _causes(error):
            if isinstance(cause, ssl.SSLCertVerificationError):
                raise Refused(f"its certificate is not to be trusted: {cause.verify_message}") from None
            if isinstance(cause, ssl.SSLError) and cause.reason in NOT_TLS:
                raise Refused("it does not speak TLS") from None
        raise Away(str(error) or type(error).__name__) from None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def speaks_tls(address: str) -> bool:
    """Whether a server completes a TLS handshake; its certificate is not checked."""
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), HANDSHAKE) as connection,
            context.wrap_socket(connection),
        ):
            return True
    except (OSError, ValueError):
        return False
