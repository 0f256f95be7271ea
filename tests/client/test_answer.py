"""One request, whatever runs the handlers: coded both ways, and remembered if it went well."""

from __future__ import annotations

import torch

from catchment.client.answer import WIRE, Work, answer
from catchment.client.state import ClientState, Versions
from catchment.codecs import Codecs
from catchment.exchange.message import Message
from catchment.exchange.request import Request

CODED = Codecs.parse(["down:x=fp16", "up:x=feedback+topk(0.01)"])
ONES = Message({"x": torch.ones(500)})


class Counting:
    """A runtime that counts its requests in the state, and sends them as 500 numbers that rise with their place."""

    def __init__(self) -> None:
        self.seen: list[Message] = []

    def run(self, request: Request, message: Message, state: ClientState) -> Work:
        self.seen.append(message)
        if request.handler == "broken":
            raise ArithmeticError("no")
        count = state.get("own", {}).get("count", torch.zeros(())) + 1
        return Work(Message({"x": count * torch.arange(500.0)}), {"own": {"count": count}}, 7)


def ask(runtime: Counting, versions: Versions | None, number: int = 0, body=ONES, codecs=CODED, **more):
    request = Request(3, more.pop("handler", "train"), 1, 0, number, body, **more)
    return answer(runtime, codecs, request, versions)


def sent(codecs: Codecs, body: Message) -> Message:
    return codecs.encode(body, "down", {})[0]


def test_the_runtime_sees_what_was_decoded_and_the_reply_is_coded():
    runtime, versions = Counting(), Versions()
    response = ask(runtime, versions, body=sent(CODED, ONES))
    assert torch.equal(runtime.seen[0].tensors["x"], ONES.tensors["x"])
    assert response.body.tensors["x:positions"].tolist() == [495, 496, 497, 498, 499]
    assert (response.client, response.macs, response.failed) == (3, 7, False)


def test_state_and_codec_memory_are_those_of_the_request_before():
    runtime, versions = Counting(), Versions()
    for number in range(2):
        response = ask(runtime, versions, number)
    assert float(versions.newest(9)["own"]["count"]) == 2
    # What was left out of the first reply, 494 at most, is added to twice as much.
    assert response.body.tensors["x:values"].tolist() == [1470, 1473, 1476, 1479, 1482]
    assert versions.newest(9)[WIRE].keys() == {"residual/x"}


def test_what_fails_leaves_the_state_as_it_was():
    runtime, versions = Counting(), Versions()
    ask(runtime, versions, 0)
    response = ask(runtime, versions, 1, handler="broken")
    assert (response.body, response.failed) == (None, True)
    assert response.error.startswith("ArithmeticError: no (test_answer.py, line ")
    assert float(versions.newest(9)["own"]["count"]) == 1


def test_an_aside_is_not_coded_and_changes_nothing():
    runtime, versions = Counting(), Versions()
    ask(runtime, versions, 0)
    before = versions.kept
    coded = sent(CODED, ONES)
    response = ask(runtime, versions, 1, body=coded, purpose="evaluation")
    assert runtime.seen[1] is coded
    assert (response.aside, list(response.body.tensors)) == (True, ["x"])
    assert versions.kept == before


def test_where_nothing_is_remembered_each_request_begins_anew():
    runtime = Counting()
    for number in range(2):
        response = ask(runtime, None, number, codecs=Codecs())
    assert response.body.tensors["x"][1] == 1
