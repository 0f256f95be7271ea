"""Centralized: all data come, whoever is slow, and who is missing is said."""

from __future__ import annotations

from typing import Any

import pytest
from worlds import experiment

import catchment
from catchment.methods.centralized import Centralized
from catchment.simulation import inprocess

DEALT = {"train": 30, "test": 10, "clients": 3}


@pytest.fixture
def seen(monkeypatch):
    """What is known after each round: how many samples, and whose."""
    found, whole = [], Centralized.round

    def watched(self, server, state, fleet):
        whole(self, server, state, fleet)
        found.append((0 if state.labels is None else len(state.labels), state.came))

    monkeypatch.setattr(Centralized, "round", watched)
    return found


def events(**settings: Any) -> list[tuple[int, str, int]]:
    found = []

    def note(record):
        found.extend((record["round"], event["what"], event["client"]) for event in record["events"])

    catchment.run(experiment("centralized", data=DEALT, **settings), observe=note)
    return found


@pytest.mark.parametrize(
    ("profile", "deadline"), [(["sensor"], 0.01), (["laptop", "sensor"], 0.05)], ids=["all late", "some late"]
)
def test_data_are_waited_for_beyond_the_deadline(profile, deadline, seen):
    assert events(rounds=2, devices={"profile": profile}, participation={"deadline": deadline}) == []
    assert seen == [(30, [0, 1, 2]), (30, [0, 1, 2])]


def test_who_is_missing_is_an_event_and_asked_again(seen, monkeypatch):
    serve, asked = inprocess.serve, []

    def fails_first(world, request, versions, cache):
        asked.append((request.round, request.client))
        if asked[-1] in ((1, 0), (2, 0), (1, 2)):
            return inprocess.Response(request.client, request.sequence, None, error="gone")
        return serve(world, request, versions, cache)

    monkeypatch.setattr(inprocess, "serve", fails_first)
    assert events(rounds=4) == [
        (1, "lost", 0), (1, "lost", 2), (1, "missing", 0), (1, "missing", 2), (2, "lost", 0), (2, "missing", 0),
    ]  # fmt: skip
    assert asked == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 2), (3, 0)]
    assert [came for _, came in seen] == [[1], [1, 2], [0, 1, 2], [0, 1, 2]]
    assert seen[-1][0] == 30
