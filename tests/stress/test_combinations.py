"""Random combinations run as they should: a few of those in tests/stress/combinations.py."""

from __future__ import annotations

from collections import Counter
from itertools import count

from combining import WORLDS, Trial, drawn
from judging import judged

from catchment.methods.fedavg import FedAvg


def test_a_few_combinations_run_as_they_should(tmp_path):
    outcomes: Counter[str] = Counter()
    for number in count():
        verdict = judged(drawn(0, number, only=("fedavg", "fedprox")), tmp_path / str(number))
        outcomes[verdict.outcome] += 1
        assert verdict.findings == []
        if outcomes["ran"] == 2:
            break
    assert outcomes["refused"]


def test_what_is_wrong_would_be_seen(tmp_path, monkeypatch):
    """A method whose results differ from run to run, and a codec for a field that it does not have."""
    before, calls = FedAvg.round, count()

    def drifting(self, server, state, fleet):
        before(self, server, state, fleet)
        state.weights = {name: weights + next(calls) for name, weights in state.weights.items()}

    monkeypatch.setattr(FedAvg, "round", drifting)
    data = {"clients": 2, "train": 20, "test": 10}
    table = {**WORLDS["fedavg"], "name": "fedavg", "rounds": 2, "data": data, "models": {"client": "mlp(4)"}}
    verdict = judged(Trial(table), tmp_path)
    assert [found.partition(":")[0] for found in verdict.findings] == ["3 workers, strict", "stopped and resumed"]
    assert verdict.runs == 3
