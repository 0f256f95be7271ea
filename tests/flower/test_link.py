"""The link for devices from outside: what strangers, liars and revoked devices can reach, and what devices survive."""

from __future__ import annotations

import base64
import contextlib
import json
import queue
import select
import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("flwr")

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from federations import until
from flwr.app import Message, RecordDict
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from catchment.flower import gate, inflating, link as link_module, listening, node, store, supernode
from catchment.flower.federation import listen
from catchment.flower.link import Link
from catchment.flower.messages import EXPIRED, FAILED, GONE, pack, unpack
from catchment.keys.keys import make_keys

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
PAGES = (
    "/",
    "/docs",
    "/openapi.json",
    "/redoc",
    "/health",
    "/v1/health",
    "/v1/fleet",
    "/v1/fleet/",
    "/v1/fleet/../control",
)
PATHS = sorted({path for _, path in PROTOBUF_REQUEST_TYPES} | set(PAGES))


def key_pair():
    private = ec.generate_private_key(ec.SECP384R1())
    return private, private.public_key()


def pem(keys):
    return public_key_to_bytes(keys[1])


def signed(keys, when=None, **more):
    """The headers by which a device says who it is."""
    timestamp = (when or datetime.now(UTC)).isoformat()
    signature = keys[0].sign(timestamp.encode(), ec.ECDSA(SHA256()))
    return {
        "flwr-public-key": base64.b64encode(pem(keys)).decode(),
        "flwr-timestamp": timestamp,
        "flwr-signature": base64.b64encode(signature).decode(),
        "content-type": "application/protobuf",
        **more,
    }


class Place:
    """A link that listens, and who may join."""

    def __init__(self, link, address, keys):
        self.link, self.address, self.keys = link, address, keys
        self.store = link.store

    def post(self, path, body=b"", headers=None):
        with httpx.Client(base_url=f"http://{self.address}") as http:
            return http.post(path, content=body, headers=headers)

    @contextlib.contextmanager
    def device(self, keys):
        with FleetHttpClient.from_server_address(self.address, True, None, [NodeAuthHttpInterceptor(*keys)]) as http:
            yield http

    def activate(self, http, keys):
        return Node(node_id=http.ActivateNode(ActivateNodeRequest(public_key=pem(keys), heartbeat_interval=10)).node_id)

    def asked(self, http, keys):
        """A node that was asked something, the name of the question, and the head of a reply to it."""
        number = self.activate(http, keys)
        name = self.ask(number.node_id)
        (message,) = http.PullMessages(PullMessagesRequest(node=number)).messages_list
        message.metadata.reply_to_message_id = name
        return number, name, message

    def ask(self, number, raw=b"question"):
        (name,) = self.link.push_messages([Message(pack({"key": "k"}, raw), number, "train.ask", ttl=60.0)])
        return name


@contextlib.contextmanager
def opened_link(keys=None, certificate=None):
    listener = listen("127.0.0.1", 0)
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    link = Link(listener, 2, certificate)
    if keys is not None:
        link.store.admit({pem(pair): client for client, pair in enumerate(keys)})
    with link:
        yield Place(link, address, keys)


@pytest.fixture
def place(monkeypatch):
    monkeypatch.setattr(gate, "PATIENCE", 0.5)
    with opened_link([key_pair(), key_pair()]) as found:
        yield found


# ---- strangers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [True, False], ids=["TLS and keys", "anybody may join"])
def test_every_path_and_method_of_flowers_apis_is_refused_to_a_stranger(keys, tmp_path):
    with contextlib.ExitStack() as stack:
        if keys:
            make_keys(tmp_path / "keys", 1, [])
            certificate = (tmp_path / "keys" / "server.crt", tmp_path / "keys" / "server.key")
            place = stack.enter_context(opened_link([key_pair()], certificate))
            base = f"https://{place.address}"
            trust = ssl.create_default_context(cafile=str(tmp_path / "keys" / "ca.crt"))
        else:
            place, trust = stack.enter_context(opened_link()), True
            base = f"http://{place.address}"
        http = stack.enter_context(httpx.Client(base_url=base, verify=trust))
        for headers in ({}, signed(key_pair())):
            for path in PATHS:
                for method in METHODS:
                    answer = http.request(method, path, content=b"", headers=headers)
                    allowed = not keys and headers and method == "POST" and path in gate.LONGEST
                    # a device that nobody knows yet: it is told so, and may activate
                    expected = {400, 401, 412} if allowed else {403, 401, 404, 405}
                    assert answer.status_code in expected, (method, path, answer.status_code)
                    assert allowed or answer.content == b""
                    assert "server" not in answer.headers
        assert place.link.get_node_ids() == []


def test_a_key_that_may_not_join_and_a_false_signature_are_refused_before_the_body_is_read(place):
    stranger = key_pair()
    old, early = datetime.now(UTC) - timedelta(seconds=400), datetime.now(UTC) + timedelta(seconds=400)
    for headers, status in (
        (signed(stranger), 403),
        (signed(place.keys[0]) | {"flwr-signature": base64.b64encode(b"x" * 100).decode()}, 401),
        (signed(place.keys[0]) | {"flwr-signature": "%%%"}, 401),
        (signed(place.keys[0], when=old), 401),
        (signed(place.keys[0], when=early), 401),
        (signed(place.keys[0], when=datetime.now()), 401),
        (signed(place.keys[0]) | {"flwr-public-key": base64.b64encode(pem(stranger)).decode()}, 403),
        ({}, 403),
    ):
        assert told(place, headers, 1_000) == status


def test_a_device_that_begins_many_requests_and_ends_none_is_not_heard_any_more(place):
    head = "".join(f"{name}: {value}\r\n" for name, value in signed(place.keys[0]).items())
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(stranger(place)) for _ in range(gate.AT_ONCE + 1)]
        for line in lines:
            line.sendall(f"POST {gate.PULL} HTTP/1.1\r\nHost: here\r\n{head}Content-Length: 100\r\n\r\n".encode())
        (answered,), _, _ = select.select(lines, [], [], 60)
        assert answered.recv(100).startswith(b"HTTP/1.1 429")
        assert place.post(gate.PULL, headers=signed(place.keys[1])).status_code == 401  # another device is heard


def told(place, headers, length, path="/v1/fleet/push-object"):
    """The status that comes back to a request of which only the head is sent."""
    head = [f"POST {path} HTTP/1.1", "Host: here"]
    head += [f"{name}: {value}" for name, value in headers.items()]
    head += [] if length is None else [f"Content-Length: {length}"]
    host, port = place.address.split(":")
    with socket.create_connection((host, int(port)), timeout=20) as line:
        line.sendall("\r\n".join([*head, "", ""]).encode())
        answer = line.recv(1000)
    return int(answer.split()[1])


@pytest.mark.parametrize(
    ("path", "length", "status"),
    [
        ("push-object", 5_300_001, 413),
        ("push-object", 10**15, 413),
        ("push-object", "9" * 400, 400),
        ("push-object", None, 411),
        ("push-object", "-5", 400),
        ("push-messages", 64_001, 413),
        ("pull-messages", 10**9, 413),
    ],
)
def test_a_body_that_is_too_long_or_of_no_length_is_refused_by_its_head_even_to_a_device(place, path, length, status):
    assert told(place, signed(place.keys[0]), length, f"/v1/fleet/{path}") == status


def test_a_body_in_chunks_is_refused(place):
    def endless():
        while True:
            yield b"x" * 1000

    with httpx.Client(base_url=f"http://{place.address}") as http, contextlib.suppress(httpx.TransportError):
        answer = http.post("/v1/fleet/push-object", content=endless(), headers=signed(place.keys[0]))
        assert answer.status_code == 411


HEAD = b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: he"


@pytest.mark.parametrize(("asked", "said"), [(False, b""), (False, HEAD), (True, HEAD), (True, b"G")])
def test_whoever_connects_and_does_not_finish_a_head_is_hung_up_on(monkeypatch, asked, said):
    monkeypatch.setattr(link_module, "SILENCE", 1)
    with opened_link() as place, stranger(place) as line:
        if asked:
            line.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
            assert line.recv(1000).startswith(b"HTTP/1.1 404")
        line.sendall(said)
        with contextlib.suppress(ConnectionResetError):
            assert line.recv(100) == b""


def stranger(place):
    host, port = place.address.split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def test_a_head_without_end_is_refused(place):
    with stranger(place) as line, contextlib.suppress(ConnectionResetError, BrokenPipeError):
        line.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n")
        for number in range(2000):
            line.sendall(b"%x:y\r\n" % number * 10)
        assert line.recv(100).startswith(b"HTTP/1.1 400")


def test_connections_for_which_there_is_no_room_are_hung_up_on_and_there_is_room_again(monkeypatch):
    monkeypatch.setattr(listening, "CONNECTIONS", 6)  # of which one address has half
    monkeypatch.setattr(link_module, "SILENCE", 10**6)  # nobody is hung up on for saying nothing
    with opened_link() as place, contextlib.ExitStack() as stack:
        lines = [stack.enter_context(stranger(place)) for _ in range(3)]
        for _ in range(2):
            with stranger(place) as line, contextlib.suppress(ConnectionResetError):
                assert line.recv(100) == b""
        lines[0].close()

        def answered():
            with contextlib.suppress(httpx.TransportError):
                return place.post("/").status_code == 404

        until(answered, "room", 60)


def test_whoever_floods_the_link_with_connections_does_not_hold_up_its_loop(monkeypatch):
    monkeypatch.setattr(listening, "CONNECTIONS", 2)
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(listening.Listener(listen("127.0.0.1", 0)))
        listener.setblocking(False)
        lines = [stack.enter_context(socket.create_connection(listener.getsockname(), 60)) for _ in range(3)]
        stack.enter_context(listener.accept()[0])
        with pytest.raises(BlockingIOError):
            listener.accept()
        assert lines[1].recv(1) == b""
        assert select.select(lines[2:], [], [], 0.2)[0] == []


def test_files_are_left_for_the_run(monkeypatch):
    resource = pytest.importorskip("resource")
    for files, expected in ((1_000_000, 2000), (1024, 768), (300, 150), (resource.RLIM_INFINITY, 2000)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, files=files: (files, files))
        assert listening.room() == expected


def test_the_server_routine_opens_as_many_files_as_it_may(monkeypatch):
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 5000))
    limits = []
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limit: limits.append(limit))
    listening.raise_open_files()
    assert limits == [(5000, 5000)]


def test_tls_has_to_begin_soon(monkeypatch, tmp_path):
    monkeypatch.setattr(listening, "HANDSHAKE", 0.2)
    make_keys(tmp_path / "keys", 1, [])
    certificate = (tmp_path / "keys" / "server.crt", tmp_path / "keys" / "server.key")
    with opened_link([], certificate) as place, stranger(place) as line, contextlib.suppress(ConnectionResetError):
        line.settimeout(30)  # half of what it would have otherwise
        assert line.recv(100) == b""


def test_where_anybody_may_join_there_is_room_for_a_number_of_nodes_only():
    with opened_link() as place:
        for _ in range(16 + 4 * 2):
            keys = key_pair()
            with place.device(keys) as http:
                place.activate(http, keys)
        keys = key_pair()
        with place.device(keys) as http, pytest.raises(httpx.HTTPStatusError, match="503"):
            place.activate(http, keys)


# ---- liars ------------------------------------------------------------------------------------------------------


def test_a_device_reaches_neither_the_messages_nor_the_replies_of_another(place):
    honest, liar = place.keys
    with place.device(honest) as one, place.device(liar) as other:
        first, second = place.activate(one, honest), place.activate(other, liar)
        name = place.ask(first.node_id)
        with pytest.raises(httpx.HTTPStatusError, match="401"):
            other.PullMessages(PullMessagesRequest(node=first))
        (message,) = one.PullMessages(PullMessagesRequest(node=first)).messages_list
        fetch = PullObjectRequest(node=second, run_id=place.store.run, object_id=name)
        assert not other.PullObject(fetch).object_found
        fetch.node.node_id = first.node_id
        assert one.PullObject(fetch).object_found
        message.metadata.reply_to_message_id = name
        message.metadata.src_node_id = first.node_id
        push = PushMessagesRequest(
            node=second, messages_list=[message], message_object_trees=[ObjectTree(object_id="a" * 64)]
        )
        assert not other.PushMessages(push).objects_to_push
        assert list(place.link.pull_messages([name])) == []


def test_a_reply_may_not_be_larger_than_it_is_expected_to_be_nor_hold_what_was_not_announced(place, monkeypatch):
    monkeypatch.setattr(store, "SMALL", 100)  # what Flower adds
    keys = place.keys[0]
    with place.device(keys) as http:
        number, name, message = place.asked(http, keys)
        place.store.expect(name, 800)
        contents = [b"ArrayChunk  600\0" + bytes([k]) * 600 for k in range(2)]
        names = [store.hashlib.sha256(one).hexdigest() for one in contents]
        tree = ObjectTree(object_id=names[0], children=[ObjectTree(object_id=names[1])])
        answer = http.PushMessages(
            PushMessagesRequest(node=number, messages_list=[message], message_object_trees=[tree])
        )
        assert set(answer.objects_to_push) == set(names)

        def push(object_id, raw, session=answer.session_id):
            return http.PushObject(
                PushObjectRequest(
                    node=number, run_id=place.store.run, object_id=object_id, object_content=raw, session_id=session
                )
            ).stored

        assert not push(names[0], b"other bytes")
        assert not push(store.hashlib.sha256(b"uninvited").hexdigest(), b"uninvited")
        assert not push(names[0], contents[0], "another session")
        assert push(names[0], contents[0])
        assert push(names[0], contents[0])  # once more, as the answer may have been lost
        assert not push(names[1], contents[1])
        (reply,) = place.link.pull_messages([name])
        assert reply.error.code == FAILED


@pytest.mark.parametrize("raw", [b"nonsense", b"Message  0\0", b"ConfigRecord  3\0xyz", b"ArrayChunk  1\0x"])
def test_a_reply_that_cannot_be_read_is_an_error_and_no_exception(place, raw):
    keys = place.keys[0]
    with place.device(keys) as http:
        number, name, message = place.asked(http, keys)
        message.metadata.message_id = identity = store.hashlib.sha256(raw).hexdigest()
        announced = PushMessagesRequest(
            node=number, messages_list=[message], message_object_trees=[ObjectTree(object_id=identity)]
        )
        session = http.PushMessages(announced).session_id
        pushed = PushObjectRequest(
            node=number, run_id=place.store.run, object_id=identity, object_content=raw, session_id=session
        )
        assert http.PushObject(pushed).stored
        (reply,) = place.link.pull_messages([name])
        assert reply.error.code == FAILED


@pytest.mark.parametrize("kind", ["query.hello", "query.bye", "train.ask", "train.fetch"])
def test_greetings_and_farewells_have_short_replies(place, kind):
    keys = place.keys[0]
    with place.device(keys) as http:
        number = place.activate(http, keys)
        (name,) = place.link.push_messages([Message(pack({}), number.node_id, kind, ttl=60.0)])
        assert place.store._exchanges[name].most == (store.SMALL if "query" in kind else store.LARGEST)


def upload(place, contents, top, most=100_000):
    """What becomes of a reply of these objects, of which the last is the message."""
    keys = place.keys[0]
    with place.device(keys) as http:
        number, name, message = place.asked(http, keys)
        place.store.expect(name, most)
        message.metadata.message_id = top
        tree = ObjectTree(object_id=top, children=[ObjectTree(object_id=one) for one in contents if one != top])
        announced = PushMessagesRequest(node=number, messages_list=[message], message_object_trees=[tree])
        session = http.PushMessages(announced).session_id
        for one, content in contents.items():
            pushed = PushObjectRequest(
                node=number, run_id=place.store.run, object_id=one, object_content=content, session_id=session
            )
            assert http.PushObject(pushed).stored
        (found,) = place.link.pull_messages([name])
        return found


def objects_of(place, raw, alter=lambda content: content):
    """The objects of a reply by their names, the message last; `alter` changes an array, and names change with it."""
    supernode.TaskIdentity.task_id, supernode.TaskIdentity.run_id, supernode.TaskIdentity.node_id = (
        0,
        place.store.run,
        1,
    )
    record = pack({"client": 0, "parts": 1}, raw)
    objects, renamed = {}, {}
    for old, thing in get_all_nested_objects(Message(record, 1, "train.ask")).items():
        content = thing.deflate()
        for before, after in renamed.items():
            content = content.replace(before.encode(), after.encode())
        content = alter(content) if content.startswith(inflating.ARRAY) else content
        renamed[old] = store.hashlib.sha256(content).hexdigest()
        objects[renamed[old]] = content
    return objects, renamed[old]


def with_chunks(chunks):
    def alter(content):
        head, _, body = content.partition(b"\0")
        body = json.dumps(json.loads(body) | {"arraychunk_ids": chunks}).encode()
        return b"%s %d\0%s" % (head.rpartition(b" ")[0], len(body), body)

    return alter


def test_equal_chunks_of_an_honest_reply_are_joined(place):
    raw = bytes(11_000_000)  # three chunks, of which two are one object
    objects, top = objects_of(place, raw)
    assert len([one for one in objects.values() if one.startswith(inflating.CHUNK)]) == 2
    assert unpack(upload(place, objects, top, len(raw)).content)[1] == raw


@pytest.mark.parametrize("chunks", [[0] * 1000, [-1] * 1000, [0] * 10_000])
def test_an_array_that_names_one_chunk_many_times_is_not_put_together(place, monkeypatch, chunks):
    objects, top = objects_of(place, bytes(300_000), with_chunks(chunks))
    monkeypatch.setattr(inflating, "inflate_object_from_contents", None)
    reply = upload(place, objects, top, 300_000)
    assert (reply.error.code, reply.error.reason) == (FAILED, "the reply cannot be read (ValueError)")


@pytest.mark.parametrize("chunks", [[1], "0", None, [0.5], {"0": 0}, [[0]]])
def test_a_list_of_chunks_that_is_none_is_an_error_and_no_exception(place, chunks):
    objects, top = objects_of(place, bytes(300_000), with_chunks(chunks))
    assert upload(place, objects, top, 300_000).error.code == FAILED


def test_an_array_of_arrays_and_objects_of_many_words_are_not_put_together():
    chunk, array = b"ArrayChunk  10\0" + bytes(10), b'Array a 24\0{"arraychunk_ids":[0,0]}'
    with pytest.raises(ValueError, match="parts that are no chunks"):
        inflating.inflated("c", {"a": array, "b": chunk, "c": array}, 1000)
    with pytest.raises(ValueError, match="600,001 bytes are no chunks of arrays"):
        inflating.inflated("c", {"c": bytes(600_001)}, 10**9)


def test_a_tree_of_too_many_objects_is_not_taken(place):
    keys = place.keys[0]
    with place.device(keys) as http:
        number, _, message = place.asked(http, keys)
        many = [ObjectTree(object_id=f"{k:064x}") for k in range(store.OBJECTS + 1)]
        tree = ObjectTree(object_id="f" * 64, children=many)
        push = PushMessagesRequest(node=number, messages_list=[message], message_object_trees=[tree])
        assert not http.PushMessages(push).objects_to_push


# ---- devices ----------------------------------------------------------------------------------------------------


class Device:
    """Answers with what it was asked, and says what it tells."""

    def __init__(self, client=0):
        self.client = client
        self.said = queue.Queue()
        self.ended = queue.Queue()

    def answer(self, kind, fields, raw):
        return {"client": self.client}, raw

    def serve(self, address, tmp_path, keys):
        path = tmp_path / "device.key"
        path.write_bytes(openssh(keys))

        def work():
            try:
                node.serve_node(address, self, None, path, once=True, tell=self.said.put)
                self.ended.put(None)
            except supernode.Refused as refused:
                self.ended.put(refused)

        threading.Thread(target=work, daemon=True).start()
        return self


def openssh(keys):
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return keys[0].private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())


def first_node(place):
    return until(place.link.get_node_ids, "a device", 60)[0]


def reply(place, name):
    return until(lambda: place.link.pull_messages([name]), "a reply", 60)[0]


@pytest.mark.parametrize("size", [0, 10, 300_000, 6_000_000])
def test_a_device_answers_messages_of_any_size(place, tmp_path, size):
    device = Device().serve(place.address, tmp_path, place.keys[0])
    number = first_node(place)
    assert place.store.client(number) == 0
    raw = bytes(range(256)) * (size // 256 + 1)
    assert unpack(reply(place, place.ask(number, raw[:size])).content) == ({"client": 0}, raw[:size])
    (bye,) = place.link.push_messages([Message(pack({}), number, "query.bye", ttl=10.0)])
    reply(place, bye)
    assert device.ended.get(timeout=20) is None


def test_a_device_outlives_a_message_that_cannot_be_read(place, tmp_path):
    Device().serve(place.address, tmp_path, place.keys[0])
    number = first_node(place)
    (empty,) = place.link.push_messages([Message(RecordDict({}), number, "train.ask", ttl=60.0)])
    assert unpack(reply(place, empty).content) == ({"error": "the message cannot be read"}, b"")
    assert unpack(reply(place, place.ask(number, b"next")).content) == ({"client": 0}, b"next")


def test_a_device_whose_key_is_revoked_is_refused_from_the_next_request_on_and_comes_back_when_it_is_admitted(
    place, tmp_path
):
    device = Device().serve(place.address, tmp_path, place.keys[0])
    number = first_node(place)
    name = place.ask(number)
    reply(place, name)
    everybody, left = {pem(keys): client for client, keys in enumerate(place.keys)}, {pem(place.keys[1]): 1}
    assert place.store.admit(left) == [0]
    assert place.store.admit(left) == []
    assert place.link.get_node_ids() == []
    assert place.link.push_messages([Message(pack({}), number, "train.ask", ttl=9.0)]) == [""]
    place.store.wake()
    refused = f"{place.address} is away (the key of this device is not admitted); trying again until it is"
    while device.said.get(timeout=60) != refused:  # before it, perhaps, that the server does not know the device
        pass
    assert device.ended.empty()
    place.store.admit(everybody)
    (bye,) = place.link.push_messages([Message(pack({}), first_node(place), "query.bye", ttl=30.0)])
    reply(place, bye)
    assert device.ended.get(timeout=60) is None


def test_a_rotated_key_joins_as_the_same_client(place, tmp_path):
    fresh = key_pair()
    place.store.admit({pem(fresh): 0})
    Device().serve(place.address, tmp_path, fresh)
    assert place.store.client(first_node(place)) == 0


def test_what_a_device_had_in_hand_is_lost_when_it_is_restarted_and_a_whole_reply_is_not(place):
    keys = place.keys[0]
    with place.device(keys) as http:
        number = place.activate(http, keys)
        name = place.ask(number.node_id)
        again = place.activate(http, keys)
        assert again.node_id != number.node_id
        assert place.link.get_node_ids() == [again.node_id]
        (lost,) = place.link.pull_messages([name])
        assert lost.error.code == GONE
        line = supernode.Connection(http, again)
        name = place.ask(again.node_id)
        question = line.receive()
        supernode.TaskIdentity.node_id = again.node_id
        line.send(Message(pack({"client": 0}, b"answer"), reply_to=question))
        place.activate(http, keys)
        (kept,) = place.link.pull_messages([name])
        assert unpack(kept.content) == ({"client": 0}, b"answer")


def test_a_message_that_did_not_arrive_is_sent_again_and_one_that_a_device_dropped_is_lost(place):
    keys = place.keys[0]
    with place.device(keys) as http:
        number = place.activate(http, keys)
        name = place.ask(number.node_id)
        for _ in range(2):
            assert http.PullMessages(PullMessagesRequest(node=number)).messages_list[0].metadata.message_id == name
        assert supernode.Connection(http, number).receive().metadata.message_id == name
        place.store.wake()
        assert not http.PullMessages(PullMessagesRequest(node=number)).messages_list
        (lost,) = place.link.pull_messages([name])
        assert lost.error.code == GONE


def test_a_message_whose_time_is_over_is_lost_and_takes_no_memory(place):
    keys = place.keys[0]
    with place.device(keys) as http:
        number = place.activate(http, keys).node_id
        late = Message(pack({}, b"x" * 1000), number, "train.ask", ttl=0.001)
        (name,) = place.link.push_messages([late])
        until(lambda: place.link.get_node_ids() and not place.store._exchanges[name].objects, "the time to be over")
        (lost,) = place.link.pull_messages([name])
        assert lost.error.code == EXPIRED


def test_a_device_that_is_silent_counts_as_gone(place, monkeypatch):
    keys = place.keys[0]
    with place.device(keys) as http:
        number = place.activate(http, keys)
        name = place.ask(number.node_id)
        monkeypatch.setattr(store, "ABSENCE", -1.0)
        assert place.link.get_node_ids() == []
        (lost,) = place.link.pull_messages([name])
        assert lost.error.code == GONE


def test_a_device_finds_a_server_that_was_restarted_and_says_so_once(tmp_path, monkeypatch):
    monkeypatch.setattr(supernode, "STEADY", 0.0)
    keys = key_pair()
    with listen("127.0.0.1", 0) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        device = Device()
        for life in range(2):
            link = Link(socket.socket(fileno=socket.dup(listener.fileno())), 1)
            link.store.admit({pem(keys): 0})
            with link:
                place = Place(link, address, [keys])
                if life == 0:
                    device.serve(address, tmp_path, keys)
                number = first_node(place)
                assert unpack(reply(place, place.ask(number, b"hi")).content)[1] == b"hi"
    said = [device.said.get(timeout=20) for _ in range(4)]
    assert [text.split(" (")[0].split(" as ")[0] for text in said if "answered" not in text] == [
        f"client 0 is connected to {address}",
        f"{address} is away",
        f"client 0 is connected to {address}",
    ]


def test_a_device_refuses_a_server_that_cannot_be_trusted(tmp_path):
    for name in ("keys", "others"):
        make_keys(tmp_path / name, 1, [])
    certificate = (tmp_path / "keys" / "server.crt", tmp_path / "keys" / "server.key")
    keys = key_pair()
    (tmp_path / "k").write_bytes(openssh(keys))

    def join(address):
        node.serve_node(
            address, Device(), tmp_path / "others" / "ca.crt", tmp_path / "k", once=True, tell=lambda _: None
        )

    with opened_link([keys], certificate) as place, pytest.raises(supernode.Refused, match="certificate"):
        join(place.address)
    with opened_link([keys]) as place, pytest.raises(supernode.Refused, match="does not speak TLS"):
        join(place.address)


def test_a_device_without_tls_learns_that_the_server_has_it(tmp_path):
    make_keys(tmp_path / "keys", 1, [])
    certificate = (tmp_path / "keys" / "server.crt", tmp_path / "keys" / "server.key")
    with opened_link([], certificate) as place, pytest.raises(supernode.Refused, match="speaks TLS, and this device"):
        node.serve_node(place.address, Device(), None, None, once=True, tell=lambda _: None)


def test_whether_a_server_speaks_tls_is_seen_from_outside(place):
    assert not supernode.speaks_tls(place.address)
    assert not supernode.speaks_tls("127.0.0.1:1")
