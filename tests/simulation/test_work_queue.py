"""The queue of requests before the workers."""

from concurrent.futures import ThreadPoolExecutor

from catchment.exchange.message import Message
from catchment.exchange.request import Request, Response
from catchment.simulation.work_queue import SHORT, WorkQueue


def request(client):
    return Request(client, "train", 1, 0, client, Message({}))


def answer(seconds):
    return lambda request: Response(request.client, request.sequence, None, seconds=seconds)


def test_without_workers_a_request_is_served_when_its_response_is_wanted():
    served = []
    queue = WorkQueue(lambda request: served.append(request.client) or answer(1.0)(request), None, 2)
    for client in (4, 2):
        queue.add(request(client))
    assert (served, len(queue), queue.clients()) == ([], 2, {2, 4})
    assert queue.next()[0].client == 4
    assert (served, len(queue), queue.clients()) == ([4], 1, {2})


def test_no_more_are_begun_ahead_than_may_be_and_responses_come_in_the_order_of_requests():
    with ThreadPoolExecutor(2) as pool:
        queue = WorkQueue(answer(SHORT), pool, ahead=2)
        for client in range(5):
            queue.add(request(client))
        assert (len(queue._begun), len(queue._waiting)) == (2, 3)
        assert [queue.next()[1].client for _ in range(2)] == [0, 1]
        assert (len(queue._begun), len(queue._waiting)) == (2, 1)
        assert [queue.next()[1].client for _ in range(3)] == [2, 3, 4]


def test_after_short_work_nothing_is_begun_ahead_until_eight_long_ones():
    seconds = iter([SHORT / 2] + [SHORT] * 20)
    with ThreadPoolExecutor(1) as pool:
        queue = WorkQueue(lambda request: answer(next(seconds))(request), pool, ahead=2)
        queue.add(request(0))
        assert len(queue._begun) == 1
        queue.next()
        for client in range(1, 12):
            queue.add(request(client))
        begun = []
        for _ in range(9):
            begun.append(len(queue._begun))
            queue.next()
        assert begun == [0] * 8 + [2]
