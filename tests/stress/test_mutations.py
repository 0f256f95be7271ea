"""Messages that were changed on their way: a sample of the million in tests/stress/mutations.py."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("flwr")

from mutating import MUTATIONS, bombs, coded_target, flower_target, many_tensors, mutate, targets_of
from spoiling import peak_memory, reset_peak

from catchment.exchange.request import Response

MEGABYTE = 10**6


@pytest.fixture(scope="module")
def targets():
    worlds = [target for name in ("fedgkt, coded", "fedavg, coded", "fedpm") for target in targets_of(name)]
    return [coded_target(), flower_target(), *worlds]


def start() -> int:
    """The memory that is in use now, above which the peak is looked at."""
    reset_peak()
    return peak_memory()


def test_sound_messages_are_taken(targets):
    assert {target.name: target.read(target.raw) for target in targets} == {t.name: "taken" for t in targets}


def test_whatever_is_changed_is_refused_or_sound_and_takes_no_memory(targets):
    mutate(targets, 100, "warm")
    before = start()
    outcome = mutate(targets, 4000, "quick")
    assert outcome.escaped == []
    assert peak_memory() - before < 64 * MEGABYTE
    assert outcome.read.keys() >= {mutation.__name__ for mutation in MUTATIONS} - {"many_tensors"}


def test_no_bomb_goes_off(targets):
    coded = Response.from_bytes(targets[0].raw).body
    raws = [bomb() for bomb in bombs(coded)]
    assert len(raws) == 60
    before = start()
    assert {targets[0].read(raw) for raw in raws} == {"refused"}
    assert peak_memory() - before < 64 * MEGABYTE


def test_a_header_of_300000_tensors_is_not_read(targets):
    raw = many_tensors(random.Random(), targets[0], targets[0])
    before = start()
    assert targets[0].read(raw) == "refused"
    assert peak_memory() - before < 64 * MEGABYTE
