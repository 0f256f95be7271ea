"""Seats: workers in other processes, which serve clients as the threads of this one do.

A request goes there with its client's state, and the response comes back with the state after it, in the forms that
they have on the wire. None of it is traffic of the federation. Nothing stays there, so a run can be resumed with more
or fewer seats.
"""

from __future__ import annotations

import contextlib
import os
import socket
from multiprocessing.connection import Connection

from catchment.client.answer import Runtime, answer
from catchment.client.state import Versions, state_from_message, state_to_message
from catchment.codecs import Codecs
from catchment.errors import RunError
from catchment.exchange.message import Message
from catchment.exchange.request import Request, Response

GONE = (EOFError, OSError)  # what a connection raises when its other end is not there


class Seat:
    """This end of a connection to a worker elsewhere."""

    def __init__(self, connection: Connection, whose: str) -> None:
        self._connection = connection
        self._whose = whose

    def answer(self, request: Request, versions: Versions | None) -> Response:
        """As `client.answer.answer`."""
        try:
            self._connection.send_bytes(request.to_bytes())
            if versions is not None:
                state = versions.newest(request.sequence) if request.aside else versions.before(request)
                self._connection.send_bytes(state_to_message(state).to_bytes())
            response = Response.from_bytes(self._connection.recv_bytes())
            if versions is not None and _changes(request, response):
                after, _ = Message.from_bytes(self._connection.recv_bytes())
                versions.keep(request, state_from_message(after))
        except GONE:
            raise RunError(f"{self._whose} is gone") from None
        return response

    def close(self) -> None:
        """Send the worker home, and wake whoever waits for it."""
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)


def work(connection: Connection, runtime: Runtime, codecs: Codecs, remembers: bool) -> None:
    """The other end of a seat: answer requests until it is closed; clients may remember something between them."""
    with contextlib.suppress(*GONE), connection:
        while True:
            request = Request.from_bytes(connection.recv_bytes())
            versions = None
            if remembers:
                versions = Versions()
                versions.restore(state_from_message(Message.from_bytes(connection.recv_bytes())[0]))
            response = answer(runtime, codecs, request, versions)
            connection.send_bytes(response.to_bytes())
            if versions is not None and _changes(request, response):
                connection.send_bytes(state_to_message(versions.newest(request.sequence + 1)).to_bytes())


def _changes(request: Request, response: Response) -> bool:
    """Whether the client has a new state."""
    return response.body is not None and not request.aside
