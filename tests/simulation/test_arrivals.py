"""Responses that wait for the virtual second of their arrival."""

import torch

from catchment.exchange.message import Message
from catchment.exchange.request import Response
from catchment.simulation import inprocess
from catchment.simulation.inprocess import Arrivals


def response(client, sequence, numbers=1):
    return Response(client, sequence, Message({"x": torch.full((numbers,), float(sequence))}))


def test_the_earliest_comes_first_and_equal_ones_by_their_sequence():
    on_the_way = Arrivals(None)
    for second, sequence in ((2.0, 0), (1.0, 3), (1.0, 2)):
        on_the_way.add(second, response(sequence, sequence))
    assert on_the_way.clients() == {0, 2, 3}
    assert on_the_way.next(0.9) is None
    found = [on_the_way.next(2.0) for _ in range(3)]
    assert [(second, one.sequence) for second, one in found] == [(1.0, 2), (1.0, 3), (2.0, 0)]
    assert on_the_way.next(2.0) is None


def test_a_large_body_waits_on_the_disk_and_counts_with_its_size(monkeypatch, tmp_path):
    monkeypatch.setattr(inprocess, "LARGE", 1000)
    on_the_way = Arrivals(tmp_path)
    small, large = response(0, 0), response(1, 1, numbers=300)
    assert on_the_way.hold(small) is small
    held = on_the_way.hold(large)
    assert held.body is None
    assert on_the_way.size(held) == large.size() > 1200
    on_the_way.add(0.0, held)
    _, found = on_the_way.next(0.0)
    assert torch.equal(found.body.tensors["x"], torch.ones(300))
    assert on_the_way._disk.size == 0
