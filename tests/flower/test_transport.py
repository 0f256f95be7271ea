"""The transport over Flower, with a grid that is a table of functions."""

from __future__ import annotations

import itertools
import re
from collections import deque
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")

import torch
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from catchment.core.transport import Snapshot
from catchment.device import RealDevice
from catchment.device.answering import NOT_APPROVED
from catchment.device.disk import Announcement
from catchment.device.policy import Policy
from catchment.errors import RunError
from catchment.exchange.message import Message as Body
from catchment.exchange.request import Request, Response
from catchment.flower import attendance, transport as transport_module
from catchment.flower.messages import pack, unpack
from catchment.flower.transport import Flower
from catchment.runs.presence import what_helps

FOREVER = float("inf")


@pytest.fixture(autouse=True)
def task(monkeypatch):
    """Flower makes messages inside of its tasks only."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    monkeypatch.setattr(attendance, "LOOK", 0.0)
    monkeypatch.setattr(transport_module, "pause", lambda waited: 0.001)
    monkeypatch.setattr(transport_module, "FAREWELL", 0.01)


class Grid:
    """Nodes are functions from a message to a reply, None for no reply (yet)."""

    def __init__(self, **nodes):
        self.nodes = {int(name.removeprefix("n")): node for name, node in nodes.items()}
        self.sent = []
        self.replies = {}
        self.numbers = itertools.count()

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        ids = []
        for message in messages:
            ids.append(f"m{next(self.numbers)}")
            self.sent.append((message.metadata.dst_node_id, message.metadata.message_type, message))
            node = self.nodes.get(message.metadata.dst_node_id)
            reply = None if node is None else node(message)
            if reply is not None:
                self.replies[ids[-1]] = reply
        return ids

    def pull_messages(self, message_ids):
        return [self.replies.pop(number) for number in message_ids if number in self.replies]

    def kinds(self, node):
        return [kind for to, kind, _ in self.sent if to == node and kind != "query.bye"]


def node(client, answer=None, hello=None):
    """A node that is a client: greets, and answers requests with `answer(request)`."""

    def reply(message):
        kind = message.metadata.message_type
        if kind == "query.hello":
            return hello(message) if hello else Message(pack({"client": client, "samples": 7}), reply_to=message)
        if kind == "query.bye":
            return Message(pack({}), reply_to=message)
        _fields, raw = unpack(message.content)
        said = (answer or echo)(Request.from_bytes(raw))
        if said is None:
            return None
        if isinstance(said, Error):
            return Message(said, reply_to=message)
        return Message(pack({"client": client, "parts": 1}, said.to_bytes()), reply_to=message)

    return reply


def echo(request):
    return Response(request.client, request.sequence, request.body, 5, 0.5, aside=request.aside)


def request(client, sequence=0, purpose="training", values=(1.0, 2.0)):
    return Request(client, "train", 1, 0, sequence, Body({"x": torch.tensor(values)}), purpose)


def transport(grid, clients=2, **settings):
    return Flower(
        grid, experiment="", form="", federation="f" * 16, version="1", clients=clients, **{"wait": 0.05, **settings}
    )


def test_greetings_are_counted_for_the_client_that_was_greeted_and_told_once():
    def hello(message):
        return Message(pack({"error": "not approved"}), reply_to=message)

    def greetings(**settings):
        carrier = transport(Grid(n10=node(0), n11=node(1, hello=hello)), least=1, **settings)
        assert carrier.roster(1) == [0]
        found = carrier.greetings()
        assert carrier.greetings() == []
        return found

    announced = len("experimentformfederation" + "f" * 16 + "version1signature")
    first = [(0, "down", announced), (0, "up", len("client0samples7"))]
    assert greetings() == first
    second = [(1, "down", announced), (1, "up", len("errornot approved"))]  # whose key says who it is
    assert greetings(client_of=lambda node: node - 10) == first + second


def test_requests_reach_the_client_of_that_number_and_responses_come_back_whole():
    grid = Grid(n11=node(1), n10=node(0))
    carrier = transport(grid)
    assert carrier.roster(1) == [0, 1]
    carrier.push([request(1, 3), request(0, 4)])
    found = {response.client: response for response in (carrier.pull(FOREVER), carrier.pull(FOREVER))}
    assert carrier.pull(FOREVER) is None
    assert found[1].sequence == 3
    assert found[0].sequence == 4
    assert torch.equal(found[1].body.tensors["x"], torch.tensor([1.0, 2.0]))
    assert found[1].macs == 5
    assert grid.kinds(11) == ["query.hello", "train.ask"]


def test_one_message_is_on_its_way_to_a_client_at_a_time():
    held = deque()
    grid = Grid(n10=node(0, lambda asked: held.append(asked)))
    carrier = transport(grid, clients=1)
    carrier.roster(1)
    carrier.push([request(0, 0), request(0, 0, "evaluation")])
    assert carrier.pull(carrier.now + 0.01) is None
    assert len(held) == 1
    grid.replies["m1"] = Message(pack({"parts": 1}, echo(held[0]).to_bytes()), reply_to=grid.sent[1][2])
    assert carrier.pull(FOREVER).aside is False
    assert len(held) == 2
    assert held[1].aside


@pytest.mark.parametrize(("code", "reason"), [(3, "message expired"), (8, "stopped")])
def test_an_error_of_flowers_is_a_lost_reply_with_its_reason(code, reason):
    grid = Grid(n10=node(0, lambda asked: Error(code, reason)))
    carrier = transport(grid, clients=1)
    carrier.roster(1)
    carrier.push([request(0, 9)])
    response = carrier.pull(FOREVER)
    assert (response.client, response.sequence, response.body, response.failed) == (0, 9, None, False)
    assert reason in response.error
    assert str(code) in response.error


def test_what_a_device_refuses_is_a_failed_reply():
    def reply(message):
        if message.metadata.message_type == "query.hello":
            return node(0)(message)
        return Message(pack({"error": "no such data"}), reply_to=message)

    carrier = transport(Grid(n10=reply), clients=1)
    carrier.roster(1)
    carrier.push([request(0)])
    response = carrier.pull(FOREVER)
    assert response.failed
    assert response.error == "no such data"


@pytest.mark.parametrize(
    "said",
    [
        lambda r: echo(r)._replace(client=1),
        lambda r: echo(r)._replace(sequence=8),
        lambda r: echo(r)._replace(aside=True),
    ],
)
def test_an_answer_to_another_request_is_a_failed_reply(said):
    carrier = transport(Grid(n10=node(0, said)), clients=1)
    carrier.roster(1)
    carrier.push([request(0, 2)])
    response = carrier.pull(FOREVER)
    assert response.failed
    assert (response.client, response.sequence, response.aside) == (0, 2, False)


def test_bytes_that_are_no_response_are_a_failed_reply():
    def reply(message):
        if message.metadata.message_type == "query.hello":
            return node(0)(message)
        return Message(pack({"parts": 1}, b"nonsense"), reply_to=message)

    carrier = transport(Grid(n10=reply), clients=1)
    carrier.roster(1)
    carrier.push([request(0)])
    assert carrier.pull(FOREVER).failed


def test_long_requests_and_responses_travel_in_parts(monkeypatch, tmp_path):
    for module in ("catchment.flower.delivery", "catchment.core.transport"):
        monkeypatch.setattr(f"{module}.PART", 100)
    policy = Policy.local(
        client=0, server="here:1", state=tmp_path, key=None, federation=None, experiment="0" * 64, data=None,
        modules=None,
    )  # fmt: skip
    device = RealDevice(policy)
    device._disk.begin("f" * 16, Announcement("", ""))
    monkeypatch.setattr(device, "_serve", lambda federation, run, told, asked: echo(asked))

    def reply(message):
        kind = message.metadata.message_type.partition(".")[2]
        if kind == "hello":
            return node(0)(message)
        fields, raw = unpack(message.content)
        assert len(raw) <= 100
        said, answer = device.answer(kind, fields, raw)
        assert len(answer) <= 100
        return Message(pack(said, answer), reply_to=message)

    grid = Grid(n10=reply)
    carrier = transport(grid, clients=1)
    carrier.roster(1)
    asked = request(0, values=tuple(range(100)))
    carrier.push([asked])
    response = carrier.pull(FOREVER)
    assert torch.equal(response.body.tensors["x"], torch.arange(100.0))
    assert grid.kinds(10).count("train.ask") == -(-asked.size() // 100) > 4
    assert grid.kinds(10).count("train.fetch") == -(-response.size() // 100) - 1
    assert not list(tmp_path.rglob("inbox"))


@pytest.mark.parametrize(("settings", "life"), [({"deadline": 100.0}, 260.0), ({"answer": 50.0}, 50.0), ({}, 3600.0)])
def test_the_life_of_a_message_follows_from_the_time_for_an_answer_and_the_deadline(settings, life):
    grid = Grid(n10=node(0))
    carrier = transport(grid, clients=1, **settings)
    carrier.roster(1)
    carrier.push([request(0)])
    assert grid.sent[-1][2].metadata.ttl == pytest.approx(life, abs=0.1)


def test_a_deadline_ends_the_wait_and_the_reply_comes_late():
    held = []
    grid = Grid(n10=node(0, held.append))
    carrier = transport(grid, clients=1)
    carrier.roster(1)
    carrier.push([request(0)])
    assert carrier.pull(carrier.now + 0.02) is None
    grid.replies["m1"] = Message(pack({"parts": 1}, echo(held[0]).to_bytes()), reply_to=grid.sent[1][2])
    assert carrier.pull(FOREVER).body is not None


@pytest.mark.parametrize("size", [0, 1, 250_000, 250_001])
def test_bytes_come_back_as_they_were_whatever_they_travel_in(size):
    raw = bytes(range(256)) * (size // 256 + 1)
    record = pack({"client": 3, "key": "k"}, memoryview(raw)[:size])
    assert unpack(record) == ({"client": 3, "key": "k"}, raw[:size])
    assert bool(record.array_records) == (size > 250_000)


# ---- who is there -----------------------------------------------------------------------------------------------


def test_the_first_round_waits_for_all_and_goes_on_with_those_who_came():
    carrier = transport(Grid(n10=node(0)), clients=3)
    assert carrier.roster(1) == [0]
    assert transport(Grid(), clients=3, wait=0.0, least=1) is not None


def test_who_is_there_is_known_at_any_time():
    grid = Grid(n10=node(0, lambda asked: None), n11=node(1))
    carrier = transport(grid, clients=3)
    assert carrier.states() == {0: "away", 1: "away", 2: "away"}
    carrier.roster(1)
    assert carrier.states() == {0: "connected", 1: "connected", 2: "away"}
    carrier.push([request(0)])
    assert carrier.states() == {0: "working", 1: "connected", 2: "away"}


def test_too_few_clients_end_the_run_with_their_excuses():
    def hello(message):
        return Message(pack({"error": "the data set is not here"}), reply_to=message)

    carrier = transport(Grid(n10=node(0), n11=node(1, hello=hello)), clients=2, least=2)
    with pytest.raises(RunError, match=r"1 of 2 clients.*the data set is not here"):
        carrier.roster(1)


def test_a_device_that_refused_is_greeted_again_and_may_think_better_of_it(monkeypatch):
    said = iter([{"error": "not approved"}, {"error": "not approved"}, {"client": 1, "samples": 7}])
    hello = lambda message: Message(pack(next(said)), reply_to=message)  # noqa: E731
    carrier = transport(Grid(n10=node(0), n11=node(1, hello=hello)))
    assert carrier.roster(1) == [0]
    monkeypatch.setattr(attendance, "AGAIN", 0.0)
    while carrier.roster(2) != [0, 1]:
        pass
    assert [event["what"] for event in carrier.news()] == ["joined", "declined", "joined"]


def test_a_client_that_comes_later_takes_part_from_then_on():
    grid = Grid(n10=node(0))
    carrier = transport(grid)
    assert carrier.roster(1) == [0]
    grid.nodes[11] = node(1)
    assert carrier.roster(2) == [0, 1]
    assert [(e["what"], e["client"]) for e in carrier.news()] == [("joined", 0), ("joined", 1)]
    assert carrier.news() == []


def test_a_client_that_stays_away_is_not_asked_and_one_that_returns_is():
    grid = Grid(n10=node(0), n11=node(1))
    carrier = transport(grid, wait=0.02)
    carrier.roster(1)
    away = grid.nodes.pop(11)
    while carrier.roster(2) != [0]:
        pass
    carrier.push([request(1)])
    assert "not connected" in carrier.pull(FOREVER).error
    grid.nodes[11] = away
    while carrier.roster(3) != [0, 1]:
        pass
    assert [event["what"] for event in carrier.news()] == ["joined", "joined", "left", "joined"]


def test_a_client_that_left_a_moment_ago_still_counts_and_gets_its_request_when_it_is_back():
    grid = Grid(n10=node(0), n11=node(1))
    carrier = transport(grid, wait=60.0)
    carrier.roster(1)
    away = grid.nodes.pop(11)
    assert carrier.roster(2) == [0, 1]
    carrier.push([request(1, 4)])
    assert carrier.pull(carrier.now + 0.01) is None
    grid.nodes[12] = away
    assert carrier.pull(FOREVER)[1] == 4


def test_nobody_waits_for_a_client_that_may_not_come_back():
    grid = Grid(n10=node(0), n11=node(1, lambda asked: None))
    barred = set()
    carrier = transport(grid, wait=60.0, admits=lambda client: client not in barred)
    assert carrier.roster(1) == [0, 1]
    carrier.push([request(1, 4)])
    del grid.nodes[11]
    barred.add(1)
    grid.replies["m2"] = Message(Error(5, "gone"), reply_to=grid.sent[2][2])
    assert "not connected" in carrier.pull(FOREVER).error
    assert carrier.roster(2) == [0]


def test_what_a_device_had_in_hand_is_sent_again_when_it_is_back():
    grid = Grid(n10=node(0, lambda asked: None))
    carrier = transport(grid, clients=1, wait=60.0)
    carrier.roster(1)
    carrier.push([request(0, 5)])
    del grid.nodes[10]
    grid.replies["m1"] = Message(Error(5, "gone"), reply_to=grid.sent[1][2])
    assert carrier.pull(carrier.now + 0.01) is None
    grid.nodes[12] = node(0)
    response = carrier.pull(FOREVER)
    assert (response.sequence, response.error) == (5, "")
    keys = [unpack(message.content)[0]["key"] for _, kind, message in grid.sent if kind == "train.ask"]
    assert len(keys) == 2
    assert keys[0] == keys[1]


def test_a_device_that_was_restarted_under_another_id_gets_what_it_had_in_hand_again():
    grid = Grid(n10=node(0, lambda asked: None))
    carrier = transport(grid, clients=1)
    carrier.roster(1)
    carrier.push([request(0, 5)])
    grid.nodes[12] = node(0)
    assert carrier.pull(FOREVER).error == ""
    assert grid.kinds(12) == ["query.hello", "train.ask"]


def test_a_whole_reply_counts_even_if_its_node_is_gone():
    held = []
    grid = Grid(n10=node(0, held.append))
    carrier = transport(grid, clients=1)
    carrier.roster(1)
    carrier.push([request(0, 5)])
    grid.replies["m1"] = Message(pack({"parts": 1}, echo(held[0]).to_bytes()), reply_to=grid.sent[1][2])
    del grid.nodes[10]
    assert carrier.pull(FOREVER).error == ""
    assert len(held) == 1


def test_a_request_is_lost_when_the_time_for_an_answer_is_over_however_often_its_device_returns():
    def gone(asked):
        return Error(5, "gone")

    carrier = transport(Grid(n10=node(0, gone)), clients=1, answer=0.05)
    carrier.roster(1)
    carrier.push([request(0, 5)])
    response = carrier.pull(FOREVER)
    assert (response.sequence, response.failed) == (5, False)
    assert "time for an answer" in response.error


def test_a_device_that_hangs_is_not_asked_before_it_has_answered_a_greeting():
    grid = Grid(n10=node(0, lambda asked: Error(3, "expired")), n11=node(1))
    carrier = transport(grid)
    assert carrier.roster(1) == [0, 1]
    grid.nodes[10] = lambda message: Message(Error(3, "expired"), reply_to=message)
    carrier.push([request(0, 5)])
    assert "expired" in carrier.pull(FOREVER).error
    assert carrier.roster(2) == [1]
    grid.nodes[10] = node(0)
    while carrier.roster(3) != [0, 1]:
        pass
    carrier.push([request(0, 6)])
    assert carrier.pull(FOREVER).error == ""


def test_a_device_that_does_not_know_the_run_is_greeted_again_and_asked_again():
    greeted = []

    def forgetful(message):
        kind = message.metadata.message_type
        greeted.extend([1] if kind == "query.hello" else [])
        if kind == "train.ask" and len(greeted) < 2:
            return Message(pack({"client": 0, "error": "hello first"}), reply_to=message)
        return node(0)(message)

    grid = Grid(n10=forgetful)
    carrier = transport(grid, clients=1)
    carrier.roster(1)
    carrier.push([request(0)])
    assert carrier.pull(FOREVER).error == ""
    assert grid.kinds(10) == ["query.hello", "train.ask", "query.hello", "train.ask"]
    assert [event["what"] for event in carrier.news()] == ["joined"]


def test_a_device_that_never_knows_the_run_fails():
    def stubborn(message):
        if message.metadata.message_type == "train.ask":
            return Message(pack({"error": "hello first"}), reply_to=message)
        return node(0)(message)

    carrier = transport(Grid(n10=stubborn), clients=1)
    carrier.roster(1)
    carrier.push([request(0)])
    response = carrier.pull(FOREVER)
    assert (response.failed, response.error) == (True, "hello first")


# ---- what a lying node may say ----------------------------------------------------------------------------------


def answering(**fields):
    raw = fields.pop("raw", b"x" * 10)

    def reply(message):
        if message.metadata.message_type.startswith("train"):
            return Message(pack({"client": 0, **fields}, raw), reply_to=message)
        return node(0)(message)

    return reply


@pytest.mark.parametrize(
    "parts", ["x", b"", float("nan"), 1.0, True, [1, 2], 0, -1, 10**9, 23, None], ids=lambda parts: repr(parts)
)
def test_a_wrong_number_of_parts_is_a_failed_reply(parts):
    grid = Grid(n10=answering(**({} if parts is None else {"parts": parts})))
    carrier = transport(grid, clients=1)
    carrier.roster(1)
    carrier.push([request(0, purpose="evaluation")])
    assert carrier.pull(FOREVER).failed
    assert len(grid.sent) == 2


def test_a_response_has_no_more_parts_than_the_largest_needs():
    carrier = transport(Grid(n10=answering(parts=2)), clients=1, largest=lambda asked: 1000)
    carrier.roster(1)
    carrier.push([request(0)])
    response = carrier.pull(FOREVER)
    assert response.failed
    assert "at most 1 of 100000000 bytes" in response.error


def test_a_response_of_more_bytes_than_are_expected_is_not_decoded(monkeypatch):
    monkeypatch.setattr(Response, "from_bytes", None)
    told = {}
    carrier = transport(Grid(n10=node(0)), clients=1, largest=lambda asked: 20, expect=told.__setitem__)
    carrier.roster(1)
    carrier.push([request(0)])
    found = carrier.pull(float("inf"))
    assert found.failed
    assert re.fullmatch(r"the response has \d+ bytes or more; expected are at most 20", found.error)
    assert list(told.values()) == [20]


def test_the_number_of_parts_may_not_change():
    said = iter([2, 3])

    def reply(message):
        if message.metadata.message_type.startswith("train"):
            return answering(parts=next(said))(message)
        return node(0)(message)

    carrier = transport(Grid(n10=reply), clients=1)
    carrier.roster(1)
    carrier.push([request(0)])
    assert carrier.pull(FOREVER).failed


@pytest.mark.parametrize("error", ["A" * 20_000_000, "\x1b[2J\x1b]0;owned\x07[bold]", b"\x1b[2J", 7, [1.5, 2.0]])
def test_an_error_of_a_device_is_one_short_printable_line(error):
    carrier = transport(Grid(n10=answering(error=error)), clients=1)
    carrier.roster(1)
    carrier.push([request(0)])
    response = carrier.pull(FOREVER)
    assert response.failed
    assert len(response.error) <= 300
    assert response.error.isprintable()


@pytest.mark.parametrize(
    "fields",
    [{"client": True}, {"client": 0, "samples": "many"}, {"client": [0]}, {"client": 10**15}, {"error": [1, 2]}, {}],
)
def test_a_greeting_answered_with_nonsense_lets_nobody_join(fields):
    grid = Grid(n10=node(1), n11=node(0, hello=lambda message: Message(pack(fields), reply_to=message)))
    assert transport(grid).roster(1) == [1]


@pytest.mark.parametrize("record", [RecordDict(), RecordDict({"fields": ConfigRecord({"raw": 5})})])
def test_content_of_another_kind_is_a_failed_reply(record):
    def reply(message):
        if message.metadata.message_type.startswith("train"):
            return Message(record, reply_to=message)
        return node(0)(message)

    carrier = transport(Grid(n10=reply), clients=1)
    carrier.roster(1)
    carrier.push([request(0)])
    assert carrier.pull(FOREVER).failed


# ---- more on who is there ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("states", "events"), [(0, ["joined", "forgot"]), (2, ["joined"]), (None, ["joined"])])
def test_a_device_that_lost_its_state_is_noted(states, events):
    def back(message):
        said = {"client": 0, "samples": 7} | ({} if states is None else {"states": states})
        return Message(pack(said), reply_to=message)

    grid = Grid(n10=node(0))
    carrier = transport(grid, clients=1)
    carrier.roster(1)
    carrier.push([request(0)])
    assert carrier.pull(FOREVER).error == ""
    assert [event["what"] for event in carrier.news()] == ["joined"]
    grid.nodes[12] = node(0, hello=back)
    del grid.nodes[10]
    while not (news := carrier.news()):
        carrier.roster(2)
    assert [event["what"] for event in news if event["what"] != "left"] == events


def test_a_node_speaks_only_for_the_client_whose_key_it_has():
    grid = Grid(n10=node(0), n11=node(0))
    carrier = transport(grid, client_of={10: 0, 11: 1}.get)
    assert carrier.roster(1) == [0]
    (refused,) = [event for event in carrier.news() if event["what"] == "declined"]
    assert "its key is that of client 1" in refused["why"]


@pytest.mark.parametrize("client", [-1, 2, "0", None])
def test_a_node_that_is_nobody_is_not_asked(client):
    fields = {} if client is None else {"client": client}
    grid = Grid(n10=node(0), n11=node(1, hello=lambda m: Message(pack(fields), reply_to=m)))
    assert transport(grid).roster(1) == [0]


def test_what_was_in_flight_at_a_checkpoint_waits_for_its_client():
    grid = Grid()
    carrier = transport(grid, clients=1, wait=5.0)
    carrier.restore(carrier.snapshot(lambda client: 0))
    carrier.push([request(0, 7)])
    assert carrier.pull(carrier.now + 0.02) is None
    grid.nodes[10] = node(0)
    assert carrier.pull(FOREVER).sequence == 7


def test_the_clock_goes_on_after_a_resume():
    second = transport(Grid(n10=node(0)), clients=1)
    second.restore(Snapshot(1000.0))
    assert 1000.0 <= second.now < 1010.0
    assert [event["what"] for event in second.news()] == ["resumed"]


def test_the_clock_leaves_out_the_wait_for_everybody_and_no_other(monkeypatch):
    grid, clock = Grid(n10=node(0)), [0.0]
    monkeypatch.setattr(transport_module, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def sleep(seconds):
        clock[0] += 60.0
        grid.nodes[10 + len(grid.nodes)] = node(len(grid.nodes))

    carrier = transport(grid, clients=2, wait=100.0, least=2, sleep=sleep)
    assert carrier.roster(1) == [0, 1]
    assert carrier.now == 0.0
    del grid.nodes[11]
    assert carrier.roster(2) == [0, 1]
    assert carrier.now == 60.0


def test_nodes_hear_that_the_run_is_over():
    grid = Grid(n10=node(0))
    carrier = transport(grid, clients=1)
    carrier.roster(1)
    carrier.close()
    assert grid.sent[-1][1] == "query.bye"


def refusing(**fields):
    """A device that says no to a greeting."""
    return lambda message: Message(pack(fields), reply_to=message)


def test_a_device_that_waits_for_approval_is_known_by_its_client():
    waiting = refusing(error=NOT_APPROVED, client=1)
    nodes = {"n10": node(0), "n11": node(1, hello=waiting), "n12": node(2, hello=refusing(error="no such data"))}
    carrier = transport(Grid(**nodes, n13=node(3, hello=lambda message: None)), clients=5)
    carrier.roster(1)
    assert carrier.states() == {0: "connected", 1: "waits for approval", 2: "away", 3: "away", 4: "away"}
    (noted,) = [event for event in carrier.news() if event["client"] == 1]
    assert noted["what"] == "declined"

    keyed = transport(
        Grid(**nodes, n13=node(3, hello=lambda message: None)), clients=5,
        client_of={10: 0, 11: 1, 12: 2, 13: 3}.get, admits=lambda client: client != 4,
    )  # fmt: skip
    keyed.roster(1)
    states = {1: "waits for approval", 2: "refuses: no such data", 3: "has yet to answer", 4: "has no key"}
    assert keyed.states() == {0: "connected", **states}


def test_a_node_cannot_say_that_another_client_waits():
    grid = Grid(n10=node(0, hello=refusing(error=NOT_APPROVED, client=1)))
    carrier = transport(grid, least=0, client_of={10: 0}.get)
    carrier.roster(1)
    assert carrier.states() == {0: "waits for approval", 1: "away"}


def test_the_last_error_says_what_would_help():
    grid = Grid(n10=node(0, hello=refusing(error=NOT_APPROVED, client=0)), n11=node(1, hello=refusing(error="too old")))
    carrier = transport(grid, clients=2, helps=lambda states: what_helps(states, "d1ge57", None))
    with pytest.raises(RunError) as error:
        carrier.roster(1)
    assert str(error.value).endswith(
        "(flower.least, flower.wait); client 0 waits for its owner to approve this run; on that device: catchment "
        "policy --approve d1ge57; client 1 is not connected; on that device: catchment join; node 11: too old"
    )


def test_the_run_waits_only_while_clients_are_missing():
    seen = []
    grid = Grid(n10=node(0))
    carrier = transport(grid, sleep=lambda seconds: (seen.append(carrier.waits), grid.nodes.update({11: node(1)})))
    assert carrier.roster(1) == [0, 1]
    assert (seen[0], carrier.waits) == (True, False)
