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


def test_one_usable_reply_is_enough_until_the_method_refuses_it():
    outcomes = Outcomes(usable=1)
    outcomes.failed(request(1), "no")
    outcomes.check_round(1, reachable=2)
    outcomes.withdrawn(0, "train", "too short")
    with pytest.raises(RunError, match="round 1: all 2 clients failed; client 1: no"):
        outcomes.check_round(1, reachable=2)


# ---- when a run stops -------------------------------------------------------------------------------------------


def rounds(outcomes: Outcomes, *failures: tuple[int, ...], reachable=4) -> None:
    """Rounds in which these clients failed and nobody answered; an empty one was good."""
    for number, clients in enumerate(failures, 2):
        outcomes.begin_round()
        outcomes.usable = 0 if clients else 3
        for client in clients:
            outcomes.failed(request(client), "no")
        outcomes.check_round(number, reachable)
    outcomes.begin_round()


def test_one_failing_client_never_stops_a_run():
    outcomes = Outcomes()
    rounds(outcomes, *[(0,)] * 20)
    assert outcomes.barren == [{0: "no"}] * 20


def test_three_barren_rounds_with_different_clients_stop_it():
    with pytest.raises(RunError, match="rounds 2 to 4: all 3 clients failed; client 0: no"):
        rounds(Outcomes(), (0,), (1,), (2,))


def test_a_good_round_begins_the_count_anew():
    outcomes = Outcomes()
    rounds(outcomes, (0,), (1,), (), (0,), (1,))
    assert outcomes.barren == [{0: "no"}, {1: "no"}]


def test_everybody_failing_in_the_first_round_stops_at_once():
    with pytest.raises(RunError, match="round 1: all 2 clients failed"):
        Outcomes(reasons={0: "no", 1: "no"}).check_round(1, reachable=2)
    Outcomes(reasons={0: "no"}).check_round(1, reachable=2)
    Outcomes(reasons={0: "no", 1: "no"}).check_round(2, reachable=2)


def test_the_only_client_there_is_stops_it_after_three_rounds():
    with pytest.raises(RunError, match="all 1 clients failed"):
        rounds(Outcomes(), (0,), (0,), (0,), reachable=1)


# ---- who is to blame --------------------------------------------------------------------------------------------

NAN = Diverged("the loss is nan")


def test_an_error_while_no_reply_is_in_use_is_the_methods_own():
    outcomes = Outcomes()
    with pytest.raises(ValueError, match="mine"):
        outcomes.round_undone(ValueError("mine"), [], reachable=9)
    assert [(e["what"], e["why"]) for e in outcomes.events] == [("undone", "ValueError: mine")]


def test_who_sent_far_more_than_the_others_is_suspended_whoever_was_last():
    outcomes = Outcomes(in_use=0)
    outcomes.round_undone(NAN, [{0: 1.0, 1: 2.0, 2: 900.0}, {0: 1.0, 1: 1.1, 2: 1.2}], reachable=4)
    assert (outcomes.suspended, outcomes.undone) == ({2}, 0)
    assert outcomes.events[-1]["why"] == "it sent far more than the others; it is not asked any more"


def test_with_nobody_to_blame_three_undone_rounds_are_enough_and_a_good_one_clears_the_count():
    outcomes = Outcomes()
    for _ in range(2):
        outcomes.round_undone(NAN, [{0: 1.0, 1: 2.0, 2: 3.0}], reachable=4)
    outcomes.round_kept()
    for _ in range(2):
        outcomes.round_undone(NAN, [], reachable=4)
    with pytest.raises(Diverged):
        outcomes.round_undone(NAN, [], reachable=4)
    assert outcomes.suspended == set()


def test_after_an_error_whose_reply_was_in_use_is_suspended_and_three_in_a_row_are_enough():
    outcomes = Outcomes()
    for client in range(2):
        outcomes.in_use = client
        outcomes.round_undone(ValueError("no"), [], reachable=20)
    with pytest.raises(ValueError, match="no"):
        outcomes.round_undone(ValueError("no"), [], reachable=20)
    assert outcomes.suspended == {0, 1}
    assert outcomes.events[-1]["why"] == "the server failed on what it sent; it is not asked any more"


def test_no_more_than_half_of_the_clients_are_suspended():
    outcomes = Outcomes()
    for liar in (0, 1):
        outcomes.round_undone(NAN, [{liar: 100.0, 2: 1.0, 3: 1.0}], reachable=4)
    outcomes.round_undone(NAN, [{2: 100.0, 3: 1.0}], reachable=4)
    assert (outcomes.suspended, outcomes.undone) == ({0, 1}, 1)


# ---- checkpoints ------------------------------------------------------------------------------------------------


def resumed(outcomes: Outcomes) -> Outcomes:
    again = Outcomes()
    again.restore(json.loads(json.dumps(outcomes.snapshot())))
    return again


def test_all_but_the_events_of_the_round_survives_a_checkpoint():
    outcomes = Outcomes(Counts(1, 2, 3, 4), [], None, {3, 1}, 2, [{0: "no", 5: "never"}], 7, {4: "late"})
    assert resumed(outcomes) == outcomes
    assert resumed(Outcomes(events=[{}], in_use=3)) == Outcomes()


def test_a_round_counts_on_after_a_checkpoint_at_its_end():
    """Two rounds without a usable reply, and a third after a stop: as if there had been none."""
    outcomes = Outcomes()
    for client in range(2):
        outcomes.begin_round()
        outcomes.failed(request(client), "no")
        outcomes = resumed(outcomes)
    outcomes.begin_round()
    outcomes.failed(request(2), "no")
    with pytest.raises(RunError, match="rounds 2 to 4: all 3 clients failed; client 0: no"):
        outcomes.check_round(4, reachable=9)


def test_an_error_of_ours_explains_itself_and_another_has_its_class():
    assert reason(WireError("not a message")) == "not a message"
    assert reason(ProtocolError("no")) == "no"
    assert reason(KeyError("x")) == "it cannot be read (KeyError: 'x')"
