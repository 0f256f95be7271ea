"""Every method gives the same results, bit for bit, when other ranks serve its clients."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import job
from marks import quick
from worlds import METHODS, TROUBLE, experiment

import catchment
from catchment import launch
from catchment.client.seats import Seat
from catchment.simulation import work_queue
from catchment.testing import Outcome

QUICK = (
    "fedavg", "standalone", "centralized", "split learning", "fedgkt, coded", "fedgkt, asynchronous, sign-flip",
    "fedzkt", "dgc",
)  # fmt: skip


@pytest.fixture(scope="module")
def ranks():
    with job(2) as (ranks, _):
        yield ranks


@pytest.fixture
def served(monkeypatch):
    """The requests that another rank answers: also short ones, which rank 0 would keep to itself."""
    monkeypatch.setattr(work_queue, "SHORT", 0.0)
    served, answer = [], Seat.answer

    def noted(self, request, versions):
        served.append(request)
        return answer(self, request, versions)

    monkeypatch.setattr(Seat, "answer", noted)
    return served


def outcome(out: Path, ranks, name, **settings):
    """All that must be equal."""
    launch.run(experiment(name, rounds=2, few=True, **settings), out, ranks=ranks)
    return Outcome.of(out)


@pytest.mark.parametrize("name", quick(QUICK, METHODS))
def test_ranks_change_nothing(name, ranks, served, reference, tmp_path):
    expected = reference(name, rounds=2, **TROUBLE)
    assert not served
    assert outcome(tmp_path / "run", ranks, name, **TROUBLE) == expected
    assert served


def test_strict_mode_on_ranks_changes_nothing(ranks, served, reference, tmp_path):
    name = "fedgkt, coded"
    assert outcome(tmp_path / "run", ranks, name, strict=True) == reference(name, rounds=2)
    assert any(request.aside for request in served)
    assert not all(request.aside for request in served)


@pytest.mark.parametrize("name", ["standalone", "fedgkt, asynchronous"])
def test_a_run_may_go_on_with_another_number_of_ranks(name, ranks, served, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    settings = experiment(name, rounds=4, few=True, **TROUBLE)
    catchment.run(settings, whole)

    class Died(Exception):
        pass

    def die(record):
        if record["round"] in (1, 3):
            raise Died

    with pytest.raises(Died):
        launch.run(settings, broken, ranks=ranks, observe=die)
    with pytest.raises(Died):
        launch.continue_run(settings, broken, observe=die)
    launch.continue_run(settings, broken, ranks=ranks)
    assert served
    assert Outcome.of(broken) == Outcome.of(whole)
