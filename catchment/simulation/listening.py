"""Where the other ranks connect to rank 0: whoever knows the key of the job is let in, strangers hold up nobody."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

STRANGERS = 64  # that are listened to at once; the next ones wait
PATIENCE = 10.0  # seconds to prove that one knows the key
FULL = 0.1  # seconds until the next try where this process has no room for another connection


class Listener:
    """Lets those in who know the key, each in a thread of its own, so that nobody waits for one who says nothing."""

    def __init__(self, host: str, key: bytes) -> None:
        self._socket = socket.create_server((host, 0), backlog=512)
        self.port: int = self._socket.getsockname()[1]
        self._key = key
        self._open = True
        self._admitted: queue.SimpleQueue[Connection] = queue.SimpleQueue()
        self._room = threading.BoundedSemaphore(STRANGERS)
        threading.Thread(target=self._listen, name="listener", daemon=True).start()

    def accept(self) -> Connection:
        """The next connection of one who knows the key."""
        return self._admitted.get()

    def close(self) -> None:
        """Let nobody in any more."""
        self._open = False
        with contextlib.suppress(OSError):  # wakes the thread, where the system allows it
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _listen(self) -> None:
        while self._open:
            self._room.acquire()
            try:
                line, _ = self._socket.accept()
            except OSError:  # it was closed, or there are too many open files
                self._room.release()
                time.sleep(FULL)
                continue
            threading.Thread(target=self._examine, args=(line,), name="stranger", daemon=True).start()

    def _examine(self, line: socket.socket) -> None:
        """Let one in who proves in time to know the key."""
        late = threading.Timer(PATIENCE, _hang_up, (line,))
        late.daemon = True
        try:
            late.start()
            connection = Connection(line.dup().detach())
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)
        except Exception:  # strangers may say anything
            return
        finally:
            late.cancel()
            line.close()
            self._room.release()
        self._admitted.put(connection)


def _hang_up(line: socket.socket) -> None:
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)
