"""From responses to what a method gets: decoded, lied about, checked, inspected, unpacked."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from worlds_by_hand import HandlersOnly

from catchment.codecs import Codecs
from catchment.core.expectations import Expectations
from catchment.core.inflight import Arrival
from catchment.core.intake import Intake
from catchment.core.method import on_client
from catchment.core.outcomes import Outcomes
from catchment.exchange.message import Message
from catchment.exchange.payload import Payload
from catchment.exchange.request import Request, Response
from catchment.robust import LIE, Attack, AttackPlan, LabelFlip, SignFlip
from catchment.robust.inspection import Inspection


@dataclass(frozen=True)
class Question(Payload):
    pass


@dataclass(frozen=True)
class Answer(Payload):
    values: Tensor


@dataclass(frozen=True)
class Rows(Payload):
    features: Tensor


@dataclass(frozen=True)
class Quiz(HandlersOnly):
    @on_client
    def answer(self, client, request: Question) -> Answer:
        raise AssertionError("the responses are given")

    @on_client
    def rows(self, client, request: Question) -> Rows:
        raise AssertionError("the responses are given")


def arrival(client: int, body: Message | None, purpose="training", handler="answer", asked=None, **response) -> Arrival:
    request = Request(client, handler, 5, 0, client, asked or Message({}), purpose)
    return Arrival(request, Response(client, client, body, aside=request.aside, **response), False)


def number(value: float) -> Message:
    return Message({"values": torch.tensor([value])})


def intake(codecs=Codecs(), **judges) -> tuple[Intake, Outcomes]:  # noqa: B008
    outcomes = Outcomes()
    return Intake(Quiz(), codecs, Expectations.of(Quiz(), None), outcomes, **judges), outcomes


def values(replies) -> list:
    return [(client, None if reply is None else reply.body.values.item()) for client, reply in replies]


def test_what_cannot_be_used_is_counted_with_its_reason():
    own, outcomes = intake()
    arrivals = [
        arrival(0, number(1.5)),
        arrival(1, None, error="gone"),
        arrival(2, None, error="ValueError: x", failed=True),
        arrival(3, Message({"other": torch.ones(1)})),
        arrival(4, number(float("nan"))),
        arrival(5, Message({})),
    ]
    replies = values(own.replies(arrivals, aside=False))
    assert replies == [(0, 1.5), (1, None), (2, None), (3, None), (4, None), (5, None)]
    assert [(event["what"], event["client"], event["why"]) for event in outcomes.events] == [
        ("lost", 1, "gone"),
        ("failed", 2, "ValueError: x"),
        ("refused", 3, "no tensor 'other' is expected"),
        ("refused", 4, "values holds NaN or infinity"),
        ("refused", 5, outcomes.events[-1]["why"]),
    ]
    assert "values" in outcomes.events[-1]["why"]
    assert outcomes.usable == 1


def test_a_reply_knows_its_round_and_handler():
    ((_, reply),) = intake()[0].replies([arrival(2, number(1.0))], aside=False)
    assert (reply.client, reply.round, reply.handler) == (2, 5, "answer")


def test_a_coded_reply_is_decoded_and_what_cannot_be_is_refused():
    codecs = Codecs.parse(["down:values=fp16", "up:values=update+bf16"])
    asked = Message({"values": torch.full((500,), 4.0)})
    sent = codecs.encode(asked, "down", {})[0]
    reply = codecs.encode(Message({"values": torch.full((500,), 5.0)}), "up", {}, asked)[0]
    own, outcomes = intake(codecs)
    arrivals = [arrival(0, reply, asked=sent), arrival(1, reply)]
    (_, good), (_, bad) = own.replies(arrivals, aside=False)
    assert good.body.values.tolist() == [5.0] * 500
    assert bad is None
    assert "a difference from the request came" in outcomes.events[0]["why"]


def test_an_evaluation_is_checked_and_neither_decoded_nor_attacked_nor_inspected_nor_observed():
    def never(*given):
        raise AssertionError(given)

    own, _ = intake(attack=never, inspection=never)
    own.observe = never
    arrivals = [arrival(0, number(1.5), "evaluation"), arrival(1, number(float("nan")), "evaluation")]
    assert values(own.replies(arrivals, aside=True)) == [(0, 1.5), (1, None)]


def test_observed_is_what_the_method_gets():
    observed = []
    own, _ = intake()
    own.observe = lambda request, message: observed.append(request.client)
    arrivals = [arrival(0, number(1.5)), arrival(1, None), arrival(2, Message({}))]
    assert values(own.replies(arrivals, aside=False)) == [(0, 1.5), (1, None), (2, None)]
    assert observed == [0]


# ---- attackers --------------------------------------------------------------------------------------------------


def lied_to(attack: Attack, attackers: tuple[int, ...], *arrivals: Arrival) -> tuple[list, Outcomes]:
    """By client, what the method gets."""
    own, outcomes = intake(attack=AttackPlan(attack, attackers, seed=0))
    return values(own.replies(arrivals, aside=False)), outcomes


def test_lies_come_last_by_client_and_are_made_of_what_the_honest_sent():
    sent = {3: 8.0, 1: 5.0, 0: 2.0, 2: 4.0}
    found, outcomes = lied_to(LIE(z=0.0), (1, 3), *(arrival(client, number(value)) for client, value in sent.items()))
    assert found == [(0, 2.0), (2, 4.0), (1, 3.0), (3, 3.0)]
    assert [event["client"] for event in outcomes.events] == [1, 3]


def test_what_is_lost_or_not_finite_teaches_an_attacker_nothing():
    arrivals = arrival(0, number(2.0)), arrival(1, number(5.0)), arrival(2, None), arrival(3, number(math.nan))
    found, outcomes = lied_to(LIE(z=0.0), (1,), *arrivals)
    assert found[-1] == (1, 2.0)
    assert outcomes.events[-1]["why"].endswith("saw 1 honest replies")


def test_an_attacker_that_is_lost_has_nothing_to_change():
    assert lied_to(LIE(z=0.0), (1,), arrival(1, None), arrival(0, number(2.0)))[0] == [(1, None), (0, 2.0)]


def test_a_flip_is_around_the_request():
    """1 was sent and 4 comes back: the opposite change gives -2."""
    assert lied_to(SignFlip(), (0,), arrival(0, number(4.0), asked=number(1.0)))[0] == [(0, -2.0)]


def test_who_lies_about_data_only_sends_what_it_has_and_is_no_event():
    found, outcomes = lied_to(LabelFlip(), (0,), arrival(0, number(4.0)))
    assert (found, outcomes.events) == ([(0, 4.0)], [])


def test_lies_are_checked():
    """The opposite of a change from 3e38 to -3e38 is more than a float32 holds."""
    found, outcomes = lied_to(SignFlip(), (0,), arrival(0, number(-3e38), asked=number(3e38)))
    assert found == [(0, None)]
    assert outcomes.events[-1]["why"] == "values holds NaN or infinity"


# ---- inspection -------------------------------------------------------------------------------------------------


def inspected(action: str, *sizes: float, own: Intake | None = None) -> tuple[dict[int, bool], Outcomes, Intake]:
    """By client, whether the method gets its reply."""
    own = own or intake(inspection=Inspection(action=action, samples=1))[0]
    bodies = [Message({"features": size * torch.eye(2)}) for size in sizes]
    arrivals = [arrival(client, body, handler="rows") for client, body in enumerate(bodies)]
    return {client: reply is not None for client, reply in own.replies(arrivals, False)}, own._outcomes, own


def test_who_stands_out_is_dropped_and_counted():
    got, outcomes, own = inspected("drop", 1.0, 1.0, 1.0, 9.0)
    assert got == {0: True, 1: True, 2: True, 3: False}
    assert outcomes.counts.refused == 1
    assert [(event["what"], event["client"]) for event in outcomes.events] == [("flagged", 3)]
    assert own.profiles.keys() == {0, 1, 2, 3}


def test_who_is_only_flagged_is_kept():
    got, outcomes, _ = inspected("flag", 1.0, 1.0, 1.0, 9.0)
    assert all(got.values())
    assert outcomes.counts.refused == 0
    assert outcomes.events[0]["why"].endswith("; kept")


def test_one_reply_is_compared_with_what_was_known_before():
    _, _, own = inspected("drop", 1.0, 1.0, 1.0)
    late = arrival(3, Message({"features": 9 * torch.eye(2)}), handler="rows")
    assert list(own.replies([late], False)) == [(3, None)]


def test_what_is_inspected_was_checked():
    got, _, own = inspected("drop", 1.0, 1.0, 1.0, math.inf)
    assert got == {0: True, 1: True, 2: True, 3: False}
    assert own.profiles.keys() == {0, 1, 2}
