"""Momentum correction, worked by hand."""

import pytest
import torch

from catchment.codecs import Codecs
from catchment.errors import ExperimentError
from catchment.exchange.message import Message


def test_what_is_not_sent_grows_and_starts_anew_where_it_was_sent():
    codecs = Codecs.parse(["up:w=update+momentum(0.5)+topk(0.01)"])
    base, change = Message({"w": torch.zeros(100)}), torch.zeros(100)
    change[:3] = torch.tensor([4.0, 3.0, 1.0])
    memory, told, kept = {}, [], []
    for _ in range(3):
        travelling, memory = codecs.encode(Message({"w": change}), "up", memory, base=base)
        told.append(codecs.decode(travelling, "up", base=base).tensors["w"])
        kept.append(memory)
    # 1: u = v = (4, 3, 1), 4 goes.   2: u = (4, 4.5, 1.5), v = (4, 7.5, 2.5), 7.5 goes.
    # 3: u = (6, 3, 1.75), v = (10, 3, 4.25), 10 goes.
    assert [t.nonzero().tolist() for t in told] == [[[0]], [[1]], [[0]]]
    assert [float(t.sum()) for t in told] == [4, 7.5, 10]
    assert [list(memory) for memory in kept] == [["velocity/w", "residual/w"]] * 3
    assert kept[1]["velocity/w"][:3].tolist() == [4, 0, 1.5]
    assert kept[1]["residual/w"][:3].tolist() == [4, 0, 2.5]
    assert kept[2]["velocity/w"][:3].tolist() == [0, 3, 1.75]
    assert kept[2]["residual/w"][:3].tolist() == [0, 3, 4.25]


def test_momentum_is_for_what_is_left_out():
    with pytest.raises(ExperimentError, match="has momentum without topk or smartidx; momentum is for what waits"):
        Codecs.parse(["up:w=update+momentum(0.5)+int8"])


def test_momentum_is_below_one():
    with pytest.raises(ExperimentError, match=r"momentum\(1\) needs m, from 0 to below 1, as in momentum\(0.9\)"):
        Codecs.parse(["up:w=update+momentum(1)+topk(0.01)"])
