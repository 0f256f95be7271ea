"""The gate before Flower's handlers: eight endpoints are reachable, and with keys only for signed requests.

A request must be a POST to an endpoint that a device needs, signed with an admitted key, with a body of the length that
its header states and the endpoint allows. Everything else is refused with a status and no body.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from catchment.flower.store import Store, ThreadSafeEvent

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

BASE = "/v1/fleet/"
ACTIVATE, PULL = BASE + "activate-node", BASE + "pull-messages"
SMALL, CHUNK = 64_000, 5_300_000  # bytes; Flower cuts arrays into chunks of 5 MiB
LONGEST = {  # path -> bytes of the longest body
    ACTIVATE: SMALL,
    PULL: SMALL,
    BASE + "deactivate-node": SMALL,
    BASE + "send-node-heartbeat": SMALL,
    BASE + "pull-object": SMALL,
    BASE + "confirm-message-received": SMALL,
    BASE + "push-messages": SMALL,
    BASE + "push-object": CHUNK,
}
KEY, SIGNATURE, TIMESTAMP = b"flwr-public-key", b"flwr-signature", b"flwr-timestamp"
OLDEST = 300.0  # seconds; an older signature is refused
SLOWEST = 240.0  # seconds for a body to arrive
PATIENCE = 10.0  # seconds that a node waits for a message before it asks again
AT_ONCE = 8  # requests of one node

current_node: ContextVar[int] = ContextVar("current_node")  # the node whose request is being answered


class Gate:
    """Passes on to `app` what an admitted device needs, and nothing else."""

    def __init__(self, app: App, store: Store) -> None:
        self._app = app
        self._store = store
        self._busy: Counter[bytes] = Counter()  # key -> requests that are being answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        longest = LONGEST.get(scope["path"])
        if longest is None:
            return await _refuse(scope, send, 404)
        if scope["method"] != "POST":
            return await _refuse(scope, send, 405)
        headers = _headers(scope)
        if headers is None:
            return await _refuse(scope, send, 400)
        length = headers.get(b"content-length", b"")
        if not length.isdigit() or b"transfer-encoding" in headers:
            return await _refuse(scope, send, 411)
        if len(length) > 9 or int(length) > longest:
            return await _refuse(scope, send, 413)
        key = _decoded(headers.get(KEY, b""))
        if not self._store.may_join(key):
            return await _refuse(scope, send, 403)
        if not _is_signed(key, headers):
            return await _refuse(scope, send, 401)
        if self._busy[key] >= AT_ONCE:
            return await _refuse(scope, send, 429)
        self._busy[key] += 1
        try:
            await self._admitted(scope, receive, send, key, int(length))
        finally:
            self._busy[key] -= 1
            if not self._busy[key]:
                del self._busy[key]

    async def _admitted(self, scope: Scope, receive: Receive, send: Send, key: bytes, length: int) -> None:
        """A request with an admitted key."""
        body = await _body(receive, length)
        if body is None:
            return await _refuse(scope, send, 400)
        node = self._store.begin(key, ThreadSafeEvent()) if scope["path"] == ACTIVATE else self._store.touch(key)
        if node is None:  # the server was restarted, or has no room
            return await _refuse(scope, send, 503 if scope["path"] == ACTIVATE else 401)
        if scope["path"] == PULL and node.active and self._store.next(node.number) is None:
            await node.message.wait(PATIENCE)
        current_node.set(node.number)
        rest = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def whole() -> MutableMapping[str, Any]:
            return next(rest, None) or await receive()

        await self._app(scope, whole, send)


def _headers(scope: Scope) -> dict[bytes, bytes] | None:
    """Headers by their names; None if one of those that matter here is given twice."""
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in found and name in (KEY, SIGNATURE, TIMESTAMP, b"content-length"):
            return None
        found[name] = value
    return found


def _decoded(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _is_signed(key: bytes, headers: dict[bytes, bytes]) -> bool:
    """Whether the time in the headers is about now, and signed with the key."""
    timestamp = headers.get(TIMESTAMP, b"")
    try:
        age = datetime.now(UTC) - datetime.fromisoformat(timestamp.decode("ascii"))
        public = load_pem_public_key(key)
        if abs(age.total_seconds()) > OLDEST or not isinstance(public, ec.EllipticCurvePublicKey):
            return False
        public.verify(_decoded(headers.get(SIGNATURE, b"")), timestamp, ec.ECDSA(SHA256()))
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


async def _body(receive: Receive, length: int) -> bytes | None:
    """A body of this length; None if its length differs, or it does not arrive in time."""
    parts: list[bytes] = []
    size, more = 0, True
    try:
        async with asyncio.timeout(SLOWEST):
            while more:
                message = await receive()
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if message["type"] != "http.request" or size > length:
                    return None
                more = message.get("more_body", False)
    except TimeoutError:
        return None
    return b"".join(parts) if size == length else None


async def _refuse(scope: Scope, send: Send, status: int) -> None:
    """Answer with a status, and close the connection if a body is still to come."""
    sent = dict(scope["headers"])
    headers = [(b"content-length", b"0")]
    if b"transfer-encoding" in sent or sent.get(b"content-length", b"0") != b"0":
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
