"""The coded exchange of both sides, message by message."""

from __future__ import annotations

import torch

from catchment.codecs import Wire
from catchment.core import session
from catchment.core.session import HOLDS, LARGE, Session, Sessions, uncoded_request
from catchment.exchange.message import Message
from catchment.exchange.request import Request

DELTA = Wire.parse(["x=delta+fp16"])
HALF = Wire.parse(["x=fp16"])


def message(value: float, size: int = 4096) -> Message:
    return Message({"x": torch.full((size,), value)})


def request(body: Message, sequence: int, purpose: str = "training", client: int = 0) -> Request:
    return Request(client, "train", 1, 0, sequence, body, purpose)


def value(body: Message) -> float:
    return float(body.tensors["x"][0])


def never(name: str, dtype: torch.dtype, shape: torch.Size) -> str:
    return ""


def exchange(server: Session, client: Session, number: int, down: float, up: float) -> tuple[Message, Message]:
    """What travels of a request and of its reply; both sides must understand each other."""
    asked = request(server.encode_request(message(down), number), number)
    decoded = client.decode_request(asked)
    assert value(decoded) == down
    reply = client.encode_reply(asked, decoded, message(up))
    server.peer_holds = number
    assert value(server.decode_reply(asked, reply)) == up
    return asked.body, reply


def test_differences_go_both_ways_as_soon_as_each_side_knows_what_the_other_holds():
    """All numbers and their differences are exact in float16."""
    server, client = Session(DELTA), Session(DELTA)
    first, _ = exchange(server, client, 0, 1.5, 0.5)
    assert HOLDS not in first.scalars
    second, reply = exchange(server, client, 1, 2.5, 1.5)
    assert second.scalars[HOLDS] == 0
    assert '"against":0' in second.scalars["(codecs)"]
    assert '"against":0' in reply.scalars["(codecs)"]


def test_after_a_lost_reply_both_sides_send_against_what_the_other_surely_holds():
    server, client = Session(DELTA), Session(DELTA)
    exchange(server, client, 0, 1.5, 0.5)
    lost = request(server.encode_request(message(2.5), 1), 1)
    client.encode_reply(lost, client.decode_request(lost), message(1.5))  # never comes
    third, reply = exchange(server, client, 2, 3.5, 2.5)
    assert third.scalars[HOLDS] == 0
    assert '"against"' not in third.scalars["(codecs)"]  # whether the client has request 1 is not known
    assert '"against"' not in reply.scalars["(codecs)"]  # the server has reply 0, the client remembers reply 1


def test_an_aside_is_not_coded_and_changes_no_memory():
    client = Session(DELTA)
    aside = request(message(1.5), 3, "evaluation")
    assert client.decode_request(aside) is aside.body
    body = message(0.5)
    assert client.encode_reply(aside, aside.body, body) is body
    assert Session(DELTA).decode_reply(aside, body) is body
    assert client.memory == {}


def test_what_the_server_notes_beside_a_body_is_not_part_of_it():
    body = Message({"x": torch.ones(1)}, {"rate": 0.5, HOLDS: 7})
    client = Session(Wire())
    assert client.decode_request(request(body, 8)).scalars == {"rate": 0.5}
    assert client.peer_holds == 7
    assert client.decode_request(request(Message({}, {"rate": 0.5}), 9)).scalars == {"rate": 0.5}
    assert client.peer_holds is None


def test_a_request_without_memory_can_be_read_again():
    coded = Sessions(HALF).encode_for_all(message(1.5))
    assert coded.tensors.keys() == {"x:values"}
    assert value(uncoded_request(HALF, request(coded, 0))) == 1.5
    remembered = request(Session(DELTA).encode_request(message(1.5), 0), 0)
    assert uncoded_request(DELTA, remembered) is remembered.body


# ---- the server's sessions with all clients ---------------------------------------------------------------------


def test_clients_have_a_session_each_and_what_is_new_and_large_in_it_goes_to_the_disk(monkeypatch, tmp_path):
    written = []

    def on_disk(tensor, directory):
        written.append((tensor.nbytes, directory))
        return tensor.clone()

    monkeypatch.setattr(session, "on_disk", on_disk)
    sessions = Sessions(DELTA, tmp_path)
    sessions.encode_for(0, message(1.5), 0)
    sessions.encode_for(1, message(1.5, LARGE // 4), 1)
    sessions.answered(request(message(0.0), 1, client=1))
    assert written == [(LARGE, tmp_path)]
    assert {client: float(memory["sent/x"][0]) for client, memory in sessions.memories.items()} == {0: 1.5, 1: 1.5}
    assert sessions.held == {1: 1}


def test_a_restored_server_goes_on_with_the_same_client():
    before, client = Sessions(DELTA), Session(DELTA)
    asked = request(before.encode_for(3, message(1.5), 0), 0, client=3)
    reply = client.encode_reply(asked, client.decode_request(asked), message(0.5))
    before.answered(asked)
    before.decode_reply(asked, reply, never)
    after = Sessions(DELTA)
    after.restore(before.memories, before.held)
    again = request(after.encode_for(3, message(2.5), 1), 1, client=3)
    assert '"against":0' in again.body.scalars["(codecs)"]
    assert value(client.decode_request(again)) == 2.5


def test_without_codecs_bodies_are_handed_on_and_nothing_is_remembered():
    sessions, body = Sessions(Wire()), message(1.5)
    assert sessions.encode_for_all(body) is body
    assert sessions.encode_for(0, body, 0) is body
    assert sessions.decode_reply(request(body, 0), body, never) is body
    sessions.answered(request(body, 0))
    assert (sessions.memories, sessions.held) == ({}, {})
