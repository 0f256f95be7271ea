"""What is counted, what is noted, and once."""

from __future__ import annotations

import json

import pytest

from catchment.core.outcomes import Counts, Outcomes, reason
from catchment.errors import Diverged, ProtocolError, RunError, WireError
from catchment.exchange.message import Message
from catchment.exchange.request import Request


def request(client: int, round: int = 1) -> Request:
    return Request(client, "train", round, 0, 0, Message({}))


def test_every_outcome_is_counted_and_noted_with_its_reason():
    outcomes = Outcomes()
    outcomes.lost(request(0), "gone")
    outcomes.failed(request(1), "no memory")
    outcomes.refused(2, "train", "too short")
    outcomes.late(request(3, round=7))
    assert outcomes.counts == Counts(lost=1, failed=1, refused=1, late=1)
    assert [(e["what"], e["client"], e["handler"], e["why"]) for e in outcomes.events] == [
        ("lost", 0, "train", "gone"),
        ("failed", 1, "train", "no memory"),
        ("refused", 2, "train", "too short"),
        ("late", 3, "train", "asked in round 7"),
    ]


def test_a_client_cannot_write_control_characters_into_the_record():
    outcomes = Outcomes()
    outcomes.failed(request(0), "\x1b[31mred")
    assert "\x1b" not in outcomes.events[0]["why"]


def test_who_stands_out_is_noted_once_per_round_and_counted_each_time_it_is_dropped():
    outcomes = Outcomes()
    for drop in (False, True, True):
        outcomes.flagged(request(4), "size 9, others 1", drop)
    assert [event["why"] for event in outcomes.events] == ["size 9, others 1; kept"]
    assert outcomes.counts.refused == 2
    outcomes.begin_round()
    outcomes.flagged(request(4), "size 9, others 1", drop=True)
    assert [event["why"] for event in outcomes.events] == ["size 9, others 1; dropped"]


def test_attacks_of_equal_strength_are_noted_once_per_round():
    outcomes = Outcomes()
    for strength in (1.5, 1.5, 2.0):
        outcomes.attacked(request(1), {"z": strength}, 3)
    assert [(e["why"], e["numbers"]) for e in outcomes.events] == [
        ("z 1.5; saw 3 honest replies", {"z": 1.5}),
        ("z 2; saw 3 honest replies", {"z": 2.0}),
    ]


def test_one_answer_is_enough_until_the_method_refuses_it():
    outcomes = Outcomes()
    outcomes.answered()
    outcomes.failed(request(1), "no")
    outcomes.check_round(1, reachable=2)
    outcomes.withdrawn(0, "train", "too short")
    with pytest.raises(RunError, match="round 1: all 2 clients failed; client 1: no"):
        outcomes.check_round(1, reachable=2)


def test_what_is_unlike_any_mistake_of_a_client_is_raised():
    """Nobody's reply was in use, and the state is not broken: the method is wrong."""
    outcomes = Outcomes()
    with pytest.raises(ValueError, match="mine"):
        outcomes.undone(ValueError("mine"), [], reachable=9)
    assert [(e["what"], e["why"]) for e in outcomes.events] == [("undone", "ValueError: mine")]


def test_a_diverged_round_blames_who_stands_out_whoever_was_last_and_a_good_one_clears_the_count():
    outcomes = Outcomes()
    outcomes.in_use = 0
    outcomes.undone(Diverged("the loss is nan"), [{0: 1.0, 1: 1.0, 2: 99.0}], reachable=9)
    assert outcomes.standing.suspended == {2}
    outcomes.undone(Diverged("the loss is nan"), [], reachable=9)
    outcomes.undone(Diverged("the loss is nan"), [], reachable=9)
    outcomes.kept()
    outcomes.undone(Diverged("the loss is nan"), [], reachable=9)  # the first in a row
    assert outcomes.standing.undone == 1


def test_counts_and_standing_survive_a_checkpoint():
    outcomes = Outcomes()
    outcomes.lost(request(0), "gone")
    outcomes.standing.suspended.add(5)
    again = Outcomes()
    again.restore(outcomes.counted(), outcomes.stood())
    assert (again.counts, again.standing) == (outcomes.counts, outcomes.standing)


def test_a_round_counts_on_after_a_checkpoint_at_its_end():
    """Two rounds without a usable reply, and a third after a stop: as if there had been none."""
    outcomes = Outcomes()
    for client in range(2):
        outcomes.begin_round()
        outcomes.failed(request(client), "no")
        stopped, outcomes = outcomes, Outcomes()
        outcomes.restore(stopped.counted(), json.loads(json.dumps(stopped.stood())))
    outcomes.begin_round()
    outcomes.failed(request(2), "no")
    with pytest.raises(RunError, match="rounds 2 to 4: all 3 clients failed; client 0: no"):
        outcomes.check_round(4, reachable=9)


def test_an_error_of_ours_explains_itself_and_another_has_its_class():
    assert reason(WireError("not a message")) == "not a message"
    assert reason(ProtocolError("no")) == "no"
    assert reason(KeyError("x")) == "it cannot be read (KeyError: 'x')"
