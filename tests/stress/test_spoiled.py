"""A reply that one client spoils does no harm: a sample of the sweep in tests/stress/spoiled.py, for every method."""

from __future__ import annotations

import random
from collections import deque

import pytest
from marks import quick
from spoiling import WORLDS, Found, Spoil, Spoiling, honest_run, small_experiment, sweep, ways
from worlds import ONE_EACH

SAMPLE = 6  # spoiled replies in each world


def harm(name, carrier, more=lambda handlers: []):
    """What a sample of spoiled replies did to a world."""
    trial = small_experiment(name)
    replies, memory = honest_run(trial, carrier)
    spoils = [way for handler, reply in replies.items() for way in ways(handler, reply, replies)] + more(replies)
    found = Found()
    deque(sweep(trial, random.Random(name).sample(spoils, SAMPLE), memory, found, carrier), maxlen=0)
    assert found.spoiled + len(found.unreached) == SAMPLE
    assert found.spoiled > SAMPLE // 2
    return found.harm


@pytest.mark.parametrize("name", quick([*ONE_EACH, "fedavg, coded", "own"], WORLDS))
def test_in_one_process(name):
    assert harm(name, Spoiling) == []


@pytest.mark.parametrize("name", ["fedavg, coded", "fedgkt", "split learning", "own"])
def test_over_flower(name):
    pytest.importorskip("flwr")
    from spoiled_nodes import field_ways, over_flower

    assert harm(name, over_flower, field_ways) == []


def test_harm_would_be_seen(monkeypatch):
    """Without the check of replies, the same sweep finds what it is there for."""
    monkeypatch.setattr("catchment.core.intake.Intake._checked", lambda self, request, message: message)
    trial = small_experiment("standalone")
    _, memory = honest_run(trial)
    spoils = [Spoil("test", "tensor", what, "numbers") for what in ("a million times", "1e10 or 1000", "zero")]
    found = Found()
    deque(sweep(trial, spoils, memory, found), maxlen=0)
    assert [spoil.what for spoil, _ in found.harm] == ["a million times", "1e10 or 1000"]
    assert found.spoiled == 3
