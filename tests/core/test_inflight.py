"""Numbers of requests, and what waits for whom."""

from __future__ import annotations

from contextlib import closing

from fake import Fake

from catchment.core.inflight import FOREVER, InFlight
from catchment.exchange.message import Message
from catchment.exchange.request import Request, Response

EMPTY = Message({})


def answer(request: Request) -> Response:
    return Response(request.client, request.sequence, EMPTY, aside=request.aside)


def in_flight(when=lambda request: 0.0) -> tuple[InFlight, Fake, list]:
    """Nothing in flight, its transport, and the list of what is booked."""
    transport, booked = Fake(4, answer, when), []
    return InFlight(transport, booked.append), transport, booked


def push(flight: InFlight, transport: Fake, *clients: int, handler: str = "train", purpose: str = "training"):
    requests = [flight.add(client, handler, 1, purpose, EMPTY) for client in clients]
    transport.push(requests)
    return requests


def test_requests_are_numbered_over_the_run_and_turns_within_a_round():
    flight, transport, _ = in_flight()
    first = push(flight, transport, 0, 1)
    list(flight.responses(first, FOREVER))
    second = push(flight, transport, 0)
    assert [(r.client, r.sequence, r.turn) for r in (*first, *second)] == [(0, 0, 0), (1, 1, 0), (0, 2, 1)]
    list(flight.responses(second, FOREVER))
    flight.begin_round()
    assert [(r.sequence, r.turn) for r in push(flight, transport, 0)] == [(3, 0)]


def test_an_aside_has_the_number_of_what_its_client_works_on_or_of_the_next_request():
    flight, transport, _ = in_flight()
    push(flight, transport, 0, 1)
    asides = push(flight, transport, 1, 2, purpose="evaluation")
    assert [(r.client, r.sequence, r.turn) for r in asides] == [(1, 1, 0), (2, 2, 0)]
    assert flight.sequence == 2
    assert flight.busy == {0, 1}


def test_responses_stop_at_a_time_and_what_comes_later_is_late():
    flight, transport, booked = in_flight(lambda request: float(request.client))
    requests = push(flight, transport, 0, 1, 2)
    assert [arrival.request.client for arrival in flight.responses(requests, 1.5)] == [0, 1]
    assert flight.busy == {2}
    arrival = flight.take("train")
    assert (arrival.request.client, arrival.late) == (2, True)
    assert [(a.request.client, a.late) for a in booked] == [(0, False), (1, False), (2, True)]
    assert flight.take("train") is None


def test_giving_up_makes_the_rest_late_and_forgets_asides():
    flight, transport, booked = in_flight()
    with closing(flight.responses(push(flight, transport, 0, 1), FOREVER)) as responses:
        next(responses)
    asides = flight.responses(push(flight, transport, 2, 3, purpose="evaluation"), FOREVER)
    next(asides)  # that of client 1 comes first, late
    asides.close()
    assert [(a.request.client, a.request.aside, a.late) for a in booked] == [
        (0, False, False), (1, False, True), (2, True, False),
    ]  # fmt: skip
    assert flight.take("evaluate") is None  # client 3's answer is passed over
    assert len(booked) == 3


def test_what_came_for_another_handler_waits_in_the_order_it_came():
    flight, transport, _ = in_flight(lambda request: float(request.client))
    push(flight, transport, 0, 1, handler="other")
    push(flight, transport, 2)
    assert flight.take("train").request.client == 2
    assert flight.waiting == {0, 1}
    assert [flight.take("other").request.client for _ in range(2)] == [0, 1]
    assert flight.waiting == set()


def test_a_new_life_asks_again_and_says_what_is_disowned():
    """Clients 0 and 2 owe a response at the checkpoint: they go back before it, client 1 before the next number."""
    flight, transport, _ = in_flight(lambda request: float(request.client == 1) * -1)
    push(flight, transport, 0, 1, 2)
    assert flight.take("train").request.client == 1
    snapshot = flight.snapshot()
    again, other, booked = in_flight()
    again.restore(snapshot)
    assert [(r.client, r.sequence, r.resumes, r.start, r.base) for r in other.pushed] == [
        (0, 0, 1, 0, 0),
        (2, 2, 1, 2, 2),
    ]
    assert booked == []
    assert [again.take("train").request.client for _ in range(2)] == [0, 2]
    more = push(again, other, 0, 1, 2)
    assert [(r.sequence, r.resumes, r.start, r.base) for r in more] == [(3, 1, 0, 0), (4, 1, 3, 3), (5, 1, 2, 2)]
    again.saved()
    assert again.add(3, "train", 1, "training", EMPTY).base == 6
