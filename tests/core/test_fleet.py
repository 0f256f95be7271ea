"""The fleet, over a transport whose answers, order and silence the test decides."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from fake import Fake
from torch import Tensor
from worlds_by_hand import HandlersOnly

from catchment.core.fleet import Fleet, _in_order
from catchment.core.ledger import Ledger
from catchment.core.method import on_client
from catchment.errors import ProtocolError, RunError
from catchment.exchange.message import Message
from catchment.exchange.payload import Payload
from catchment.exchange.request import Response
from catchment.robust import LIE, AttackPlan, SignFlip, lie_z


@dataclass(frozen=True)
class Question(Payload):
    number: int


@dataclass(frozen=True)
class Answer(Payload):
    values: Tensor


@dataclass(frozen=True)
class Quiz(HandlersOnly):
    sends = True

    @on_client
    def answer(self, client, request: Question) -> Answer:
        raise AssertionError("the fake transport answers")

    @on_client
    def other(self, client, request: Question) -> Answer:
        raise AssertionError("the fake transport answers")

    def helper(self):
        return None


QUIZ = Quiz()


class Watched(Fleet):
    """A fleet of a quiz whose ledger the tests look at."""

    def __init__(self, transport, **settings):
        self.ledger = Ledger()
        super().__init__(transport, QUIZ, self.ledger, seed=0, **settings)


def reply(request, value=None):
    body = Message({"values": torch.tensor([float(request.client if value is None else value)])})
    return Response(request.client, request.sequence, body, aside=request.aside)


def lose(request, why="gone", failed=False):
    return Response(request.client, request.sequence, None, error=why, failed=failed, aside=request.aside)


def fleet_of(clients=4, answer=reply, when=lambda request: 0.0, **settings):
    transport = Fake(clients, answer, when)
    fleet = Watched(transport, **settings)
    fleet.begin_round(1)
    return fleet, transport


def test_tell_waits_for_the_replies_and_gives_none():
    fleet, transport = fleet_of(3)
    assert fleet.tell(QUIZ.answer, {k: Question(k) for k in (0, 2)}) is None
    assert [request.client for request in transport.pushed] == [0, 2]
    assert fleet.idle() == [0, 1, 2]


def test_ask_sends_before_anything_is_read():
    fleet, transport = fleet_of()
    replies = fleet.ask(QUIZ.answer, {0: Question(1), 2: Question(2)})
    assert [r.client for r in transport.pushed] == [0, 2]
    assert [r.client for r in replies] == [0, 2]


def test_replies_come_as_they_arrive_or_in_the_order_of_asking():
    when = lambda request: {0: 3.0, 1: 1.0, 2: 2.0, 3: 0.5}[request.client]  # noqa: E731
    bodies = {k: Question(k) for k in (0, 1, 2, 3)}
    fleet, _ = fleet_of(when=when)
    assert [r.client for r in fleet.ask(QUIZ.answer, bodies)] == [3, 1, 2, 0]
    fleet, _ = fleet_of(when=when)
    assert [r.client for r in fleet.ask(QUIZ.answer, bodies, in_order=True)] == [0, 1, 2, 3]


def test_in_order_passes_over_who_is_lost_and_flushes_at_the_deadline():
    when = lambda request: {0: 9.0, 1: 1.0, 2: 2.0, 3: 3.0}[request.client]  # noqa: E731
    answer = lambda request: lose(request) if request.client == 2 else reply(request)  # noqa: E731
    fleet, _ = fleet_of(answer=answer, when=when)
    replies = fleet.ask(QUIZ.answer, {k: Question(k) for k in range(4)}, in_order=True, deadline=5.0)
    assert [r.client for r in replies] == [1, 3]
    assert (fleet.outcomes.counts.lost, fleet.outcomes.counts.late) == (1, 0)


def test_in_order_nothing_is_pulled_before_it_is_wanted():
    """Of clients 7, 3, 5 and 9, asked in this order, 9 never comes and 5 has nothing of use."""
    pulled = []

    def read():
        for client, reply in ((3, "three"), (7, "seven"), (5, None)):
            pulled.append(client)
            yield client, reply

    found = _in_order(read(), [7, 3, 9, 5])
    assert next(found) == (7, "seven")
    assert pulled == [3, 7]
    assert list(found) == [(3, "three"), (5, None)]


def test_lost_and_failed_replies_are_counted_with_their_reason_and_never_raised():
    def answer(request):
        return [reply(request), lose(request, "no route"), lose(request, "ValueError: x", failed=True)][request.client]

    fleet, _ = fleet_of(3, answer)
    assert [r.client for r in fleet.ask(QUIZ.answer, {k: Question(k) for k in range(3)})] == [0]
    assert (
        fleet.outcomes.counts.lost,
        fleet.outcomes.counts.failed,
        fleet.outcomes.counts.late,
    ) == (1, 1, 0)
    assert [(e["what"], e["client"], e["why"]) for e in fleet.outcomes.events] == [
        ("lost", 1, "no route"),
        ("failed", 2, "ValueError: x"),
    ]
    fleet.check_round()  # somebody answered


def test_a_reply_of_the_wrong_form_is_refused():
    bad = lambda request: Response(request.client, request.sequence, Message({"weights": torch.ones(1)}))  # noqa: E731
    fleet, _ = fleet_of(1, bad)
    assert list(fleet.ask(QUIZ.answer, {0: Question(0)})) == []
    assert fleet.outcomes.counts.refused == 1
    assert fleet.outcomes.events[0]["why"] == "no tensor 'weights' is expected"


def too_small(reply):
    return "" if reply.body.values.item() >= 1 else f"{reply.body.values.item():g} is less than 1"


@pytest.mark.parametrize("in_order", [True, False])
def test_what_a_method_does_not_accept_is_refused_and_not_yielded(in_order):
    fleet, _ = fleet_of(3, when=lambda request: 3.0 - request.client)
    replies = fleet.ask(QUIZ.answer, {k: Question(k) for k in range(3)}, in_order=in_order, accept=too_small)
    assert [reply.client for reply in replies] == ([1, 2] if in_order else [2, 1])
    assert fleet.outcomes.counts.refused == 1
    assert fleet.outcomes.events == [{"what": "refused", "client": 0, "handler": "answer", "why": "0 is less than 1"}]


def test_arrivals_that_are_not_accepted_do_not_count():
    fleet, _ = fleet_of(4, when=lambda request: float(request.client))
    fleet.send(QUIZ.answer, {k: Question(k) for k in range(4)})
    assert [reply.client for reply in fleet.arrivals(QUIZ.answer, count=2, accept=too_small)] == [1, 2]
    assert fleet.outcomes.counts.refused == 1


def test_whose_reply_makes_accept_raise_is_to_blame():
    fleet, _ = fleet_of(4)
    with pytest.raises(ZeroDivisionError) as caught:
        next(fleet.ask(QUIZ.answer, {2: Question(0)}, accept=lambda reply: 1 / 0))
    fleet.round_undone(caught.value)
    assert [(event["what"], event["client"]) for event in fleet.outcomes.events] == [
        ("undone", None),
        ("suspended", 2),
    ]


def test_if_nobody_is_accepted_the_run_stops():
    fleet, _ = fleet_of(2)
    assert list(fleet.ask(QUIZ.answer, {0: Question(0), 1: Question(1)}, accept=lambda reply: "no")) == []
    with pytest.raises(RunError, match="round 1: all 2 clients failed; client 0: refused, no"):
        fleet.check_round()


def test_a_round_in_which_everybody_failed_stops_the_run_with_the_reason():
    fleet, _ = fleet_of(2, lambda request: lose(request, "the loss is nan", failed=True))
    list(fleet.ask(QUIZ.answer, {0: Question(0), 1: Question(1)}))
    with pytest.raises(RunError, match="round 1: all 2 clients failed; client 0: the loss is nan"):
        fleet.check_round()


def test_a_refused_reply_is_an_event_and_if_all_are_refused_the_run_stops():
    fleet, _ = fleet_of(2)
    first, second = fleet.ask(QUIZ.answer, {0: Question(0), 1: Question(1)})
    fleet.refuse(first, "too short")
    fleet.check_round()
    assert fleet.outcomes.counts.refused == 1
    assert fleet.outcomes.events == [{"what": "refused", "client": 0, "handler": "answer", "why": "too short"}]
    fleet.refuse(second, "too short")
    with pytest.raises(RunError, match="round 1: all 2 clients failed; client 0: refused, too short"):
        fleet.check_round()


def test_blamed_is_the_client_whose_reply_was_in_use_whoever_arrived_last():
    fleet, _ = fleet_of(4, when=lambda request: 4.0 - request.client)
    replies = fleet.ask(QUIZ.answer, {client: Question(0) for client in range(4)}, in_order=True)
    assert next(replies).client == 0  # the last to arrive
    assert next(replies).client == 1
    fleet.round_undone(ValueError("no"))
    assert [(event["what"], event["client"]) for event in fleet.outcomes.events] == [
        ("undone", None),
        ("suspended", 1),
    ]


@pytest.mark.parametrize("count", [None, 2])
def test_after_the_last_reply_nobody_is_to_blame_and_the_error_is_raised_at_once(count):
    fleet, _ = fleet_of(2)
    fleet.send(QUIZ.answer, {0: Question(0), 1: Question(1)})
    assert [reply.client for reply in fleet.arrivals(QUIZ.answer, count=count)] == [0, 1]
    with pytest.raises(NameError, match="typo"):
        fleet.round_undone(NameError("typo"))
    assert fleet.outcomes.suspended == set()


def test_a_reply_that_was_taken_by_next_is_held_and_its_client_is_to_blame():
    fleet, _ = fleet_of(2)
    reply = next(fleet.ask(QUIZ.answer, {0: Question(0), 1: Question(1)}))
    fleet.round_undone(ValueError("what it sent cannot be used"))
    assert (reply.client, fleet.outcomes.suspended) == (0, {0})


def test_a_reply_is_in_use_while_the_method_holds_it_and_not_while_it_waits_for_the_next():
    fleet, transport = fleet_of(4, when=lambda request: float(request.client == 1))
    held, pull = [], transport.pull
    transport.pull = lambda until: held.append(fleet.outcomes.in_use) or pull(until)
    for reply in fleet.ask(QUIZ.answer, {0: Question(0), 1: Question(1)}):
        for inner in fleet.ask(QUIZ.answer, {2 + reply.client: Question(0)}):
            held.append(("inner", inner.client, fleet.outcomes.in_use))
        held.append(("outer", reply.client, fleet.outcomes.in_use))
    assert held == [
        None, 0, ("inner", 2, 2), ("outer", 0, 0),
        None, 1, ("inner", 3, 3), ("outer", 1, 1),
    ]  # fmt: skip


def test_nobody_reachable_is_not_a_reason_to_stop():
    fleet, _ = fleet_of(2, lose)
    list(fleet.ask(QUIZ.answer, {0: Question(0), 1: Question(1)}))
    fleet.check_round()
    assert fleet.outcomes.counts.lost == 2


def test_late_replies_keep_the_client_busy_and_surface_as_arrivals_of_their_round():
    fleet, _ = fleet_of(2, when=lambda request: 10.0 if request.client == 1 else 1.0)
    assert [r.client for r in fleet.ask(QUIZ.answer, {0: Question(0), 1: Question(1)}, deadline=2.0)] == [0]
    assert fleet.now == 2.0
    fleet.begin_round(2)
    assert fleet.cohort() == [0]
    assert fleet.idle() == [0]
    assert (fleet.idle([1, 0]), fleet.idle([1])) == ([0], [])
    with pytest.raises(ProtocolError, match=r"clients \[1\] still owe a reply"):
        fleet.ask(QUIZ.answer, {1: Question(1)})
    late = list(fleet.arrivals(QUIZ.answer))
    assert [(r.client, r.round) for r in late] == [(1, 1)]
    assert fleet.outcomes.counts.late == 1
    assert fleet.idle() == [0, 1]


def test_late_replies_that_nobody_takes_in_their_round_are_dropped():
    fleet, _ = fleet_of(2, when=lambda request: 10.0 if request.client == 1 or request.round == 2 else 1.0)
    list(fleet.ask(QUIZ.answer, {0: Question(0), 1: Question(1)}, deadline=2.0))
    fleet.begin_round(2)
    list(fleet.ask(QUIZ.answer, {0: Question(0)}))  # takes until second 12; client 1's reply came at 10
    assert fleet.outcomes.counts.late == 1
    assert len(fleet._inflight._arrived) == 1
    fleet.begin_round(3)
    assert list(fleet.arrivals(QUIZ.answer)) == []


def test_a_client_whose_reply_came_during_an_evaluation_is_idle_only_when_it_was_taken():
    fleet, _ = fleet_of(2)
    fleet.send(QUIZ.answer, {0: Question(0)})
    with fleet.aside("evaluation"):
        assert [r.client for r in fleet.ask(QUIZ.other, {1: Question(1)})] == [1]  # the other reply came before it
    fleet.begin_round(2)
    assert fleet.idle() == [1]
    assert [(r.client, r.round) for r in fleet.arrivals(QUIZ.answer, count=1)] == [(0, 1)]
    assert fleet.idle() == [0, 1]


def test_send_and_arrivals_cross_rounds_and_stop_at_a_count():
    fleet, _ = fleet_of(3, when=lambda request: 1.0 + request.client)
    fleet.send(QUIZ.answer, {k: Question(k) for k in range(3)})
    assert [r.client for r in fleet.arrivals(QUIZ.answer, count=1)] == [0]
    fleet.begin_round(2)
    assert [(r.client, r.round) for r in fleet.arrivals(QUIZ.answer)] == [(1, 1), (2, 1)]
    assert fleet.outcomes.counts.late == 0


def test_arrivals_of_one_handler_leave_those_of_another():
    fleet, _ = fleet_of(2, when=lambda request: float(request.client))
    fleet.send(QUIZ.other, {0: Question(0)})
    fleet.send(QUIZ.answer, {1: Question(1)})
    assert [r.client for r in fleet.arrivals(QUIZ.answer)] == [1]
    assert [r.client for r in fleet.arrivals(QUIZ.other)] == [0]


def test_giving_up_an_ask_makes_the_rest_late():
    fleet, _ = fleet_of(3, when=lambda request: float(request.client))
    replies = fleet.ask(QUIZ.answer, {k: Question(k) for k in range(3)})
    next(replies)
    replies.close()
    assert len(list(fleet.arrivals(QUIZ.answer))) == 2
    assert fleet.outcomes.counts.late == 2


def test_asides_are_booked_apart_and_reach_busy_clients():
    fleet, transport = fleet_of(2, when=lambda request: 0.0 if request.aside else 5.0)
    fleet.send(QUIZ.answer, {0: Question(0)})
    with fleet.aside("evaluation"):
        assert [r.client for r in fleet.ask(QUIZ.answer, {0: Question(0), 1: Question(1)})] == [0, 1]
    assert [r.sequence for r in transport.pushed] == [0, 0, 1]  # an aside sees the state before what is in flight
    totals = fleet.ledger.totals
    assert totals["up", "training"] == 0 < totals["up", "evaluation"]
    assert [r.client for r in fleet.arrivals(QUIZ.answer)] == [0]
    assert fleet.ledger.summary()["up"] == totals["up", "training"] > 0
    with pytest.raises(ProtocolError, match="send inside aside"), fleet.aside("evaluation"):
        fleet.send(QUIZ.answer, {0: Question(0)})
    with pytest.raises(ProtocolError, match="cannot be the purpose"), fleet.aside("training"):
        pass


def test_misuse_is_explained():
    fleet, _ = fleet_of()
    with pytest.raises(ProtocolError, match="Quiz has no client handler helper; is it marked @on_client"):
        fleet.ask(QUIZ.helper, {0: Question(0)})
    with pytest.raises(ProtocolError, match="answer takes Question, client 0 was sent Answer"):
        fleet.ask(QUIZ.answer, {0: Answer(torch.ones(1))})


def test_a_method_that_does_not_say_that_it_sends_cannot():
    fleet = Fleet(Fake(1, reply), HandlersOnly(), Ledger(), seed=0)
    with pytest.raises(ProtocolError, match=r"HandlersOnly uses fleet\.send, so its property `sends` must be True"):
        fleet.send(QUIZ.answer, {0: Question(0)})


def test_those_that_are_measured_are_all_or_the_same_few_in_every_round():
    assert list(fleet_of(5)[0].measured()) == list(fleet_of(5, measured=5)[0].measured()) == [0, 1, 2, 3, 4]
    fleet, _ = fleet_of(50, measured=7, fraction=0.1)
    few = fleet.measured()
    assert (len(set(few)), list(few)) == (7, sorted(few))
    fleet.begin_round(2)
    assert fleet.measured() == few


def test_the_cohort_is_a_share_drawn_from_seed_and_round():
    fleet, _ = fleet_of(100, fraction=0.1)
    first = fleet.cohort()
    assert len(first) == 10
    assert first == sorted(first)
    assert first == fleet.cohort()
    fleet.begin_round(2)
    assert fleet.cohort() != first
    again, _ = fleet_of(100, fraction=0.1)
    assert again.cohort() == first
    assert len(fleet_of(3, fraction=0.01)[0].cohort()) == 1


def test_turns_count_a_clients_requests_in_a_round_apart_for_asides():
    fleet, transport = fleet_of(1)
    for _ in range(2):
        list(fleet.ask(QUIZ.answer, {0: Question(0)}))
    with fleet.aside("evaluation"):
        list(fleet.ask(QUIZ.answer, {0: Question(0)}))
    list(fleet.ask(QUIZ.answer, {0: Question(0)}))
    assert [(r.purpose, r.turn) for r in transport.pushed] == [
        ("training", 0),
        ("training", 1),
        ("evaluation", 0),
        ("training", 2),
    ]


def test_the_ledger_books_what_crossed_and_nothing_of_what_was_lost():
    fleet, transport = fleet_of(2, lambda request: lose(request) if request.client else reply(request))
    list(fleet.ask(QUIZ.answer, {0: Question(0), 1: Question(1)}))
    down = sum(len(r.to_bytes()) for r in transport.pushed)
    up = len(reply(transport.pushed[0]).to_bytes())
    assert fleet.ledger.summary() == {"up": up, "down": down, "evaluation": 0}


def test_a_snapshot_carries_requests_in_flight_and_replies_not_yet_taken():
    fleet, _ = fleet_of(3, when=lambda request: float(request.client))
    fleet.send(QUIZ.other, {0: Question(7)})
    fleet.send(QUIZ.answer, {1: Question(8), 2: Question(9)})
    assert [r.client for r in fleet.arrivals(QUIZ.answer, count=1)] == [1]  # client 0's other reply is set aside
    snapshot = fleet.snapshot()
    again, transport = fleet_of(3, when=lambda request: 0.0)
    again.restore(snapshot)
    assert [(r.client, r.body.scalars["number"], r.resumes, r.start) for r in transport.pushed] == [(2, 9, 1, 2)]
    assert again.ledger.totals.total() == 0  # it was booked when it was first sent
    assert again.idle() == [1]
    assert [r.client for r in again.arrivals(QUIZ.other, count=1)] == [0]
    assert again.idle() == [0, 1]
    assert [r.client for r in again.arrivals(QUIZ.answer)] == [2]


# ---- attackers ---------------------------------------------------------------------------------------------------


def lied_to(*attackers, attack=None, **settings):
    """Client k answers k at second k; LIE with z = 0 is the mean of the honest."""
    plan = AttackPlan(attack or LIE(z=0.0), attackers, seed=0)
    return fleet_of(when=lambda request: float(request.client), attack=plan, **settings)[0]


def values(replies):
    return [(reply.client, reply.body.values.item()) for reply in replies]


EVERYBODY = {k: Question(k) for k in range(4)}


def test_attackers_wait_for_the_honest_who_do_not_wait_for_them():
    """Client 1 has seen 0, 2 and 3, whose mean is 5/3."""
    fleet = lied_to(1)
    replies = fleet.ask(QUIZ.answer, EVERYBODY)
    assert values([next(replies)]) == [(0, 0.0)]
    assert fleet.now == 0.0
    assert values(replies) == [(2, 2.0), (3, 3.0), (1, pytest.approx(5 / 3))]


def test_in_order_the_others_come_after_an_attacker_that_was_asked_before_them():
    assert values(lied_to(1).ask(QUIZ.answer, EVERYBODY, in_order=True)) == [
        (0, 0.0), (1, pytest.approx(5 / 3)), (2, 2.0), (3, 3.0),
    ]  # fmt: skip


def test_attackers_see_what_came_before_the_deadline():
    """Until second 2 came 0, 1 and 2; the honest ones are 0 and 2."""
    assert values(lied_to(1).ask(QUIZ.answer, EVERYBODY, deadline=2.5))[-1] == (1, 1.0)


def test_two_attackers_do_not_see_each_other():
    assert values(lied_to(1, 2).ask(QUIZ.answer, EVERYBODY))[2:] == [(1, 1.5), (2, 1.5)]


def test_an_attack_is_an_event_with_its_numbers_once_a_round():
    fleet = lied_to(1)
    for _ in range(2):
        list(fleet.ask(QUIZ.answer, EVERYBODY))
    numbers = {"z": 0.0, "z_formula": lie_z(3, 1)}
    why = f"z 0, z_formula {lie_z(3, 1):.4g}; saw 3 honest replies"
    assert fleet.outcomes.events == [
        {"what": "attacked", "client": 1, "handler": "answer", "why": why, "numbers": numbers}
    ]


def test_an_attacker_that_is_lost_tells_nothing():
    plan = AttackPlan(LIE(z=0.0), (1,), seed=0)
    fleet, _ = fleet_of(
        answer=lambda request: lose(request) if request.client == 1 else reply(request),
        attack=plan,
    )
    assert values(fleet.ask(QUIZ.answer, EVERYBODY)) == [(0, 0.0), (2, 2.0), (3, 3.0)]
    assert fleet.outcomes.counts.lost == 1


def test_evaluation_hears_the_truth():
    fleet = lied_to(1)
    with fleet.aside("evaluation"):
        assert (1, 1.0) in values(fleet.ask(QUIZ.answer, EVERYBODY))


def test_lies_that_need_nobody_else_reach_arrivals_too():
    fleet = lied_to(1, attack=SignFlip())
    fleet.send(QUIZ.answer, EVERYBODY)
    assert values(fleet.arrivals(QUIZ.answer)) == [(0, 0.0), (1, -1.0), (2, 2.0), (3, 3.0)]
