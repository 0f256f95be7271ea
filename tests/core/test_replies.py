"""From responses to what a method gets."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from worlds_by_hand import HandlersOnly

from catchment.codecs import Wire
from catchment.core.expectations import Expectations
from catchment.core.filters import ReceivedReply
from catchment.core.inflight import Arrival
from catchment.core.method import on_client
from catchment.core.outcomes import Outcomes
from catchment.core.replies import Reception, Reply, ordered
from catchment.exchange.message import Message
from catchment.exchange.payload import Payload
from catchment.exchange.request import Request, Response


@dataclass(frozen=True)
class Question(Payload):
    pass


@dataclass(frozen=True)
class Answer(Payload):
    values: Tensor


@dataclass(frozen=True)
class Quiz(HandlersOnly):
    @on_client
    def answer(self, client, request: Question) -> Answer:
        raise AssertionError("the responses are given")


def arrival(client: int, body: Message | None, purpose: str = "training", **response) -> Arrival:
    request = Request(client, "answer", 5, 0, client, Message({}), purpose)
    return Arrival(request, Response(client, client, body, aside=request.aside, **response), False)


def number(value: float) -> Message:
    return Message({"values": torch.tensor([value])})


def reception(**filters) -> tuple[Reception, Outcomes]:
    outcomes = Outcomes()
    expectations = Expectations.of(Quiz(), None)
    return Reception(Quiz(), expectations, Wire(), outcomes, **filters), outcomes


def values(replies) -> list:
    return [(client, None if reply is None else reply.body.values.item()) for client, reply in replies]


def test_what_cannot_be_used_is_counted_with_its_reason():
    received, outcomes = reception()
    replies = received.replies(
        [
            arrival(0, number(1.5)),
            arrival(1, None, error="gone"),
            arrival(2, None, error="ValueError: x", failed=True),
            arrival(3, Message({"other": torch.ones(1)})),
            arrival(4, number(float("nan"))),
            arrival(5, Message({})),
        ],
        aside=False,
    )
    assert values(replies) == [(0, 1.5), (1, None), (2, None), (3, None), (4, None), (5, None)]
    assert [(event["what"], event["client"], event["why"]) for event in outcomes.events] == [
        ("lost", 1, "gone"),
        ("failed", 2, "ValueError: x"),
        ("refused", 3, "no tensor 'other' is expected"),
        ("refused", 4, "values holds NaN or infinity"),
        ("refused", 5, outcomes.events[-1]["why"]),
    ]
    assert "values" in outcomes.events[-1]["why"]


def test_a_reply_knows_its_round_and_handler():
    ((_, reply),) = reception()[0].replies([arrival(2, number(1.0))], aside=False)
    assert (reply.client, reply.round, reply.handler) == (2, 5, "answer")


def test_lies_are_checked_and_what_is_inspected_was_checked():
    seen = []

    def attack(replies, outcomes):
        for request, _ in replies:
            yield ReceivedReply(request, number(float("inf") if request.client else 2.0))

    def inspection(replies, outcomes):
        for one in replies:
            seen.append((one.request.client, one.message is not None))
            yield one

    received, outcomes = reception(attack=attack, inspection=inspection)
    replies = received.replies([arrival(0, number(1.0)), arrival(1, number(1.0))], aside=False)
    assert values(replies) == [(0, 2.0), (1, None)]
    assert seen == [(0, True), (1, False)]
    assert outcomes.counts.refused == 1


def test_an_evaluation_is_checked_and_neither_attacked_nor_inspected_nor_observed():
    def never(*given):
        raise AssertionError(given)

    received, _ = reception(attack=never, inspection=never)
    arrivals = [arrival(0, number(1.5), "evaluation"), arrival(1, number(float("nan")), "evaluation")]
    assert values(received.replies(arrivals, aside=True, observe=never)) == [(0, 1.5), (1, None)]


def test_observed_is_what_the_method_gets():
    observed = []
    arrivals = [arrival(0, number(1.5)), arrival(1, None), arrival(2, Message({}))]
    replies = reception()[0].replies(arrivals, aside=False, observe=lambda r, m: observed.append(r.client))
    assert values(replies) == [(0, 1.5), (1, None), (2, None)]
    assert observed == [0]


def test_in_order_holds_what_comes_early_passes_over_who_is_lost_and_flushes_at_the_end():
    """Of clients 7, 3, 5 and 9, asked in this order, 9 never comes and 5 has nothing of use."""
    reply = {client: Reply(client, 1, Answer(torch.ones(1))) for client in (7, 3)}
    pulled = []

    def arriving():
        for client, what in ((3, reply[3]), (7, reply[7]), (5, None)):
            pulled.append(client)
            yield client, what

    found = ordered(arriving(), [7, 3, 9, 5])
    assert next(found) == (7, reply[7])
    assert pulled == [3, 7]
    assert list(found) == [(3, reply[3]), (5, None)]
