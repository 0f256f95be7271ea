"""Lying clients and the server's look at them, between replies and method."""

from __future__ import annotations

import math

import torch

from catchment.codecs import Wire
from catchment.core.filters import AttackFilter, InspectionFilter, ReceivedReply
from catchment.core.outcomes import Outcomes
from catchment.exchange.message import Message
from catchment.exchange.request import Request
from catchment.robust import LIE, AttackPlan, LabelFlip, SignFlip
from catchment.robust.inspection import Inspection


def heard(client: int, value: float | None) -> ReceivedReply:
    request = Request(client, "train", 1, 0, client, Message({"x": torch.tensor([1.0])}))
    return ReceivedReply(request, None if value is None else Message({"x": torch.tensor([value])}))


def passed(filter, *replies: ReceivedReply) -> tuple[list, Outcomes]:
    """By client, what comes out."""
    outcomes = Outcomes()
    found = [(r.client, None if m is None else m.tensors["x"].item()) for r, m in filter(replies, outcomes)]
    return found, outcomes


def attack(attack, *attackers: int) -> AttackFilter:
    return AttackFilter(AttackPlan(attack, attackers, seed=0), Wire())


def test_lies_come_last_by_client_and_are_made_of_what_the_honest_sent():
    replies = [heard(3, 8.0), heard(1, 5.0), heard(0, 2.0), heard(2, 4.0)]
    found, outcomes = passed(attack(LIE(z=0.0), 1, 3), *replies)
    assert found == [(0, 2.0), (2, 4.0), (1, 3.0), (3, 3.0)]
    assert [event["client"] for event in outcomes.events] == [1, 3]


def test_what_is_lost_or_not_finite_teaches_an_attacker_nothing():
    found, outcomes = passed(attack(LIE(z=0.0), 1), heard(0, 2.0), heard(1, 5.0), heard(2, None), heard(3, math.nan))
    assert found[-1] == (1, 2.0)
    assert outcomes.events[0]["why"].endswith("saw 1 honest replies")


def test_an_attacker_that_is_lost_has_nothing_to_change():
    assert passed(attack(LIE(z=0.0), 1), heard(1, None), heard(0, 2.0))[0] == [(1, None), (0, 2.0)]


def test_a_flip_is_around_the_request_as_it_was_before_it_was_coded():
    """1 was sent and 4 comes back: the opposite change gives -2."""
    assert passed(attack(SignFlip(), 0), heard(0, 4.0))[0] == [(0, -2.0)]


def test_who_lies_about_data_only_sends_what_it_has_and_is_no_event():
    found, outcomes = passed(attack(LabelFlip(), 0), heard(0, 4.0))
    assert (found, outcomes.events) == ([(0, 4.0)], [])


# ---- inspection --------------------------------------------------------------------------------------------------


def features(client: int, size: float) -> ReceivedReply:
    rows = size * torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    return ReceivedReply(Request(client, "train", 1, 0, 0, Message({})), Message({"features": rows}))


def inspected(action: str, *replies: ReceivedReply) -> tuple[dict[int, bool], Outcomes, InspectionFilter]:
    """By client, whether the method gets its reply."""
    outcomes, filter = Outcomes(), InspectionFilter(Inspection(action=action, samples=1))
    return {r.client: m is not None for r, m in filter(replies, outcomes)}, outcomes, filter


REPLIES = [features(0, 1.0), features(1, 1.0), features(2, 1.0), features(3, 9.0)]


def test_who_stands_out_is_dropped_and_counted():
    got, outcomes, filter = inspected("drop", *REPLIES)
    assert got == {0: True, 1: True, 2: True, 3: False}
    assert outcomes.counts.refused == 1
    assert [(event["what"], event["client"]) for event in outcomes.events] == [("flagged", 3)]
    assert filter.profiles.keys() == {0, 1, 2, 3}


def test_who_is_only_flagged_is_kept():
    got, outcomes, _ = inspected("flag", *REPLIES)
    assert all(got.values())
    assert outcomes.counts.refused == 0
    assert outcomes.events[0]["why"].endswith("; kept")


def test_one_reply_is_compared_with_what_was_known_before():
    _, outcomes, filter = inspected("drop", *REPLIES[:3])
    assert [m for _, m in filter([features(3, 9.0)], outcomes)] == [None]
