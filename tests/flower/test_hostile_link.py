"""A device and a server that sends it what no honest one would: damaged, coded, endless. The device lives on."""

from __future__ import annotations

import gzip
import http.server
import threading
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import ActivateNodeResponse, PullMessagesResponse
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse
from flwr.supercore.task_identity import TaskIdentity

from catchment.flower import supernode
from catchment.flower.supernode import Away, FleetClient

Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


def answer(body: bytes, length: str | None = "", **headers: str) -> Answer:
    """An answer; with another length than its own if one is given, or none."""

    def send(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        if length is not None:
            handler.send_header("content-length", length or str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return send


@pytest.fixture
def answers() -> Iterator[dict[str, Answer]]:
    """What a server answers, by the last word of the path; "address" is where it is."""
    found: dict = {"activate-node": answer(ActivateNodeResponse(node_id=5).SerializeToString())}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            word = self.path.rpartition("/")[2]
            found.setdefault("asked", []).append((word, self.headers["accept-encoding"]))
            found.get(word, answer(b""))(self)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        found["address"] = f"127.0.0.1:{server.server_address[1]}"
        yield found
        server.shutdown()


def received(answers: dict) -> Message | None:
    client = FleetClient(answers["address"], None, ec.generate_private_key(ec.SECP384R1()))
    with client, client.connected() as connection:
        return connection.receive()


def question(tree: ObjectTree | None) -> PullMessagesResponse:
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 7, 1
    message = Message(RecordDict({}), 5, "query.hello", ttl=100.0)
    message.metadata.__dict__["_message_id"] = message.object_id
    head = message_to_proto(remove_content_from_message(message))
    return PullMessagesResponse(messages_list=[head], message_object_trees=[tree] if tree else [])


@pytest.mark.parametrize(
    ("pulled", "why"),
    [
        (answer(b"\xff\xff nonsense"), "Invalid protobuf response payload"),
        (answer(question(None).SerializeToString()), "cannot be read: IndexError"),
        (answer(question(ObjectTree(object_id="a" * 64)).SerializeToString()), "cannot be read"),
        (answer(gzip.compress(bytes(1000)), content_encoding="gzip"), "its answer is encoded"),
        (answer(b"x", content_encoding="br"), "its answer is encoded"),
        (answer(b"x", None), "its answer is not of at most 5,300,000 bytes"),
        (answer(b"", "5300001"), "its answer is not of at most 5,300,000 bytes"),
        (answer(b"", "9" * 30), "Content-Length"),
    ],
)
def test_an_answer_that_cannot_be_used_is_a_server_that_is_away(answers, monkeypatch, pulled, why):
    monkeypatch.setattr(supernode, "STEADY", 0.0)
    answers["pull-messages"] = pulled
    answers["pull-object"] = answer(
        PullObjectResponse(object_found=True, object_content=b"Message  0\0").SerializeToString()
    )
    with pytest.raises(Away, match=why):
        received(answers)
    assert {coding for _, coding in answers["asked"]} == {"identity"}


def test_a_message_of_many_objects_is_not_fetched(answers):
    many = [ObjectTree(object_id=f"{number:064x}") for number in range(supernode.OBJECTS)]
    answers["pull-messages"] = answer(question(ObjectTree(object_id="f" * 64, children=many)).SerializeToString())
    with pytest.raises(Away, match="65 objects; at most 64 are expected"):
        received(answers)
    assert "pull-object" not in dict(answers["asked"])


def test_no_redirection_is_followed(answers):
    def elsewhere(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(307)
        handler.send_header("location", f"http://{answers['address']}/elsewhere")
        handler.send_header("content-length", "0")
        handler.end_headers()

    answers["activate-node"] = elsewhere
    with pytest.raises(Away, match="it answers 307"):
        received(answers)
    assert [word for word, _ in answers["asked"]] == ["activate-node"]
