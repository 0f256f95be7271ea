"""The socket that devices connect to: connections are counted from `accept` on, and files are left for the run."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

CONNECTIONS = 2000  # at a time, at most; from one address at most half of what there is room for
RESERVE = 256  # open files that are left for the run
HANDSHAKE = 10.0  # seconds for TLS


def raise_open_files() -> None:
    """Let this process open as many files as the system allows."""
    if os.name == "posix":
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def room() -> int:
    """How many connections this process has room for."""
    if os.name != "posix":
        return CONNECTIONS
    import resource

    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS if files == resource.RLIM_INFINITY else min(CONNECTIONS, max(files - RESERVE, files // 2))


class Listener(socket.socket):
    """Hangs up on connections for which there is no room, in all or for their address."""

    def __init__(self, listener: socket.socket) -> None:
        """Take over a socket that listens."""
        super().__init__(fileno=listener.detach())
        self._room = room()
        self._lines: list[tuple[socket.socket, str]] = []  # and whose they are

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection, if there is room for it.

        After one without room the event loop goes on, as if nobody waited: a flood of them holds up nobody else.
        """
        line, address = super().accept()
        self._lines = [(other, whose) for other, whose in self._lines if other.fileno() >= 0]
        own = sum(whose == address[0] for _, whose in self._lines)
        if len(self._lines) >= self._room or own >= self._room // 2:
            line.close()
            raise BlockingIOError("there is no room for this connection")
        self._lines.append((line, address[0]))
        return line, address


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose servers give TLS less time than a minute."""

    async def create_server(self, *arguments: Any, **options: Any) -> asyncio.Server:
        """Listen."""
        if options.get("ssl") is not None:
            options["ssl_handshake_timeout"] = HANDSHAKE
        return await super().create_server(*arguments, **options)
