"""`answer` answers one request: the whole client side, on every transport. The work itself is a runtime's."""

from __future__ import annotations

import time
import traceback
from pathlib import Path
from typing import NamedTuple, Protocol

from catchment.client.state import ClientState, Versions
from catchment.codecs import Codecs
from catchment.errors import CatchmentError
from catchment.exchange.message import Message
from catchment.exchange.request import Request, Response

WIRE = "(wire)"  # the part of a client's state that belongs to the codecs


class Work(NamedTuple):
    """What a runtime did for a request."""

    reply: Message
    state: ClientState  # what the client keeps; of no use after an aside
    macs: int  # multiply-accumulates


class Runtime(Protocol):
    """Where handlers run."""

    def run(self, request: Request, message: Message, state: ClientState) -> Work:
        """What a request asks for: a function of its decoded message and of the state, neither of which is changed."""


def answer(runtime: Runtime, codecs: Codecs, request: Request, versions: Versions | None) -> Response:
    """Answer one request.

    `versions` is where the client remembers; None if neither method nor codecs need it. An exception is a failed reply
    with its reason, and leaves the state as it was.
    """
    began = time.perf_counter()
    state: ClientState = {}
    if versions is not None:
        state = versions.newest(request.sequence) if request.aside else versions.before(request)
    memory = state.pop(WIRE, {})
    try:
        message = request.body if request.aside else codecs.decode(request.body, "down")
        work = runtime.run(request, message, state)
        body = work.reply
        if not request.aside:
            body, memory = codecs.encode(body, "up", memory, message)
            if versions is not None:
                versions.keep(request, {**work.state, WIRE: memory} if memory else work.state)
    except Exception as error:
        seconds = time.perf_counter() - began
        return Response(request.client, request.sequence, None, 0, seconds, _reason(error), True, request.aside)
    seconds = time.perf_counter() - began
    return Response(request.client, request.sequence, body, work.macs, seconds, aside=request.aside)


def _reason(error: Exception) -> str:
    """One line: the text of an error of ours; of any other, also its class and where it was raised."""
    if isinstance(error, CatchmentError):
        return str(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(frame.filename).name}, line {frame.lineno})"
