"""Where ranks connect: strangers are kept out, and hold up nobody."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client

import pytest

from catchment.simulation import listening
from catchment.simulation.listening import Listener

KEY = b"k" * 32


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener("127.0.0.1", KEY)
    yield made
    made.close()


def connect(listener: Listener, key: bytes = KEY) -> None:
    """Be let in, and say so; within 20 seconds, or not at all."""

    def work() -> None:
        with Client(("127.0.0.1", listener.port), authkey=key) as connection:
            connection.send_bytes(b"here")
            done.set()

    done = threading.Event()
    threading.Thread(target=work, daemon=True).start()
    assert done.wait(20)


def test_a_rank_is_let_in_beside_strangers_who_say_nothing_or_nonsense(listener: Listener) -> None:
    with contextlib.ExitStack() as stack:
        for said in (b"", b"\x00", b"\x00\x00\x00\x05hello", b"\xff" * 300, b"GET / HTTP/1.1\r\n\r\n"):
            stranger = stack.enter_context(socket.create_connection(("127.0.0.1", listener.port)))
            stranger.sendall(said)
        connect(listener)
        assert listener.accept().recv_bytes() == b"here"


def test_who_does_not_know_the_key_is_not_let_in(listener: Listener) -> None:
    with pytest.raises(AuthenticationError):
        Client(("127.0.0.1", listener.port), authkey=b"another")
    connect(listener)
    assert listener.accept().recv_bytes() == b"here"
    assert listener._admitted.empty()


def test_silent_strangers_are_hung_up_on_so_that_there_is_room_again(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "PATIENCE", 0.1)
    with contextlib.ExitStack() as stack:
        lines = [
            stack.enter_context(socket.create_connection(("127.0.0.1", listener.port), timeout=20))
            for _ in range(listening.STRANGERS + 1)
        ]
        connect(listener)
        assert listener.accept().recv_bytes() == b"here"
        for line in lines:
            with contextlib.suppress(ConnectionResetError):
                while line.recv(1000):
                    pass


def test_a_listener_that_is_closed_lets_nobody_in(listener: Listener) -> None:
    listener.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", listener.port), timeout=20)
