"""When a run stops, and whom it blames."""

from __future__ import annotations

import json

import pytest

from catchment.core.standing import Standing
from catchment.errors import RunError


def rounds(standing, *failures, reachable=4):
    """Rounds in which these clients failed and nobody answered; an empty one was good."""
    for number, clients in enumerate(failures, 2):
        reasons = dict.fromkeys(clients, "no")
        answered = 0 if clients else 3
        standing.check(number, answered, reasons, reachable)
        standing.end_round(answered, reasons)


def test_one_failing_client_never_stops_a_run():
    standing = Standing()
    rounds(standing, *[(0,)] * 20)
    assert standing.barren == [{0: "no"}] * 20


def test_three_barren_rounds_with_different_clients_stop_it():
    with pytest.raises(RunError, match="rounds 2 to 4: all 3 clients failed; client 0: no"):
        rounds(Standing(), (0,), (1,), (2,))


def test_a_good_round_begins_the_count_anew():
    standing = Standing()
    rounds(standing, (0,), (1,), (), (0,), (1,))
    assert standing.barren == [{0: "no"}, {1: "no"}]


def test_everybody_failing_in_the_first_round_stops_at_once():
    with pytest.raises(RunError, match="round 1: all 2 clients failed"):
        Standing().check(1, 0, {0: "no", 1: "no"}, reachable=2)
    Standing().check(1, 0, {0: "no"}, reachable=2)
    Standing().check(2, 0, {0: "no", 1: "no"}, reachable=2)


def test_the_only_client_there_is_stops_it_after_three_rounds():
    with pytest.raises(RunError, match="all 1 clients failed"):
        rounds(Standing(), (0,), (0,), (0,), reachable=1)


def test_who_sent_far_more_than_the_others_is_suspended():
    standing = Standing()
    sizes = [{0: 1.0, 1: 2.0, 2: 900.0}, {0: 1.0, 1: 1.1, 2: 1.2}]
    assert standing.blame(sizes, clients=4) == 2
    assert standing.suspended == {2}
    assert standing.undone == 0


def test_with_nobody_to_blame_three_undone_rounds_are_enough():
    standing = Standing()
    for _ in range(3):
        assert not standing.exhausted
        assert standing.blame([{0: 1.0, 1: 2.0, 2: 3.0}], 4) is None
    assert standing.exhausted


def test_after_an_exception_whose_reply_was_last_is_suspended_and_three_in_a_row_are_enough():
    standing = Standing()
    for client in range(3):
        assert not standing.exhausted
        assert standing.blame([], 20, last=client) == client
    assert standing.exhausted


def test_no_more_than_half_of_the_clients_are_suspended():
    standing = Standing()
    for liar in (0, 1):
        assert standing.blame([{liar: 100.0, 2: 1.0, 3: 1.0}], 4) == liar
    assert standing.blame([{2: 100.0, 3: 1.0}], 4) is None
    assert standing.undone == 1


def test_it_survives_a_checkpoint():
    standing = Standing({3, 1}, 2, [{0: "no", 5: "never"}])
    assert Standing.from_dict(json.loads(json.dumps(standing.to_dict()))) == standing
    assert Standing.from_dict({}) == Standing()
