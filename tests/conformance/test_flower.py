"""Every method gives the same results over Flower, with real processes, as in one process."""

from __future__ import annotations

import pytest
from marks import quick
from worlds import METHODS

pytest.importorskip("flwr")

from federations import outcome

QUICK = ("fedavg",)  # tests/flower/test_faults.py has FedGKT, with processes that are killed
UNORDERED = [name for name in METHODS if "asynchronous" in name]  # who is faster decides
CLIENTS = {"fedgkt, poisoned": 4}  # where one of them is named; otherwise 3


@pytest.mark.parametrize("name", quick(QUICK, METHODS))
def test_flower_changes_nothing(name, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # for the server routine, as here
    data = {"clients": CLIENTS.get(name, 3)}
    here = outcome(name, tmp_path / "here", data=data)
    there = outcome(name, tmp_path / "there", data=data, engine="flower")
    if name in UNORDERED:
        assert len(there.rounds) == len(here.rounds)
        assert there.result["lost"] == there.result["failed"] == 0
    else:
        assert there == here
