"""What clients remember, in memory and on the disk."""

from __future__ import annotations

import random

import pytest
import torch

from catchment.client.state import Versions
from catchment.exchange.message import Message
from catchment.exchange.request import Request
from catchment.simulation import states as module
from catchment.simulation.states import BLOCK, Changed, ClientStates

SIZE = 1000  # bytes of a state


def state(value: float) -> dict[str, dict[str, torch.Tensor]]:
    return {"model": {"a": torch.full((SIZE // 8,), value), "b": torch.full((SIZE // 8,), -value)}}


def request(client: int, sequence: int, **fields) -> Request:
    return Request(client, "train", 1, 0, sequence, Message({}), **fields)


def number(found) -> float | None:
    assert not found or bool((found["model"]["b"] == -found["model"]["a"]).all())
    return found["model"]["a"][0].item() if found else None


def test_memory_is_bounded_and_every_client_finds_its_own_state(tmp_path):
    states = ClientStates(tmp_path, resident=10 * SIZE)
    for client in range(100):
        with states.of(client) as versions:
            versions.keep(request(client, client), state(client))
        assert states.resident <= 10 * SIZE
    for client in random.Random(0).sample(range(100), 100):
        with states.of(client) as versions:
            assert number(versions.before(request(client, 1000 + client))) == client
        assert states.resident <= 10 * SIZE
    assert sum(client in states for client in range(200)) == 100
    assert list(tmp_path.iterdir()) == []  # the file has no name


def test_versions_behave_as_if_all_were_in_memory(tmp_path):
    """Random requests with checkpoints and resumes; the same calls on plain versions must find the same."""
    chance, states = random.Random(1), ClientStates(tmp_path, resident=4 * SIZE)
    plain = {client: Versions() for client in range(12)}
    base = start = resumes = 0
    for sequence in range(600):
        client = chance.randrange(12)
        asked = request(client, sequence, resumes=resumes, start=start, base=base)
        with states.of(client) as versions:
            assert number(versions.before(asked)) == number(plain[client].before(asked))
            for kept in (versions, plain[client]):
                kept.keep(asked, state(sequence))
        if chance.random() < 0.1:
            base = sequence + 1
        if chance.random() < 0.02:
            resumes, start = resumes + 1, base
    for client, kept in plain.items():
        with states.of(client) as versions:
            assert {v: number(s) for v, s in versions.kept.items()} == {v: number(s) for v, s in kept.kept.items()}


def test_the_file_is_as_large_as_what_is_kept_at_a_time(tmp_path):
    states = ClientStates(tmp_path, resident=0)
    for sequence in range(300):
        client = sequence % 5
        with states.of(client) as versions:
            versions.keep(request(client, sequence, base=sequence), state(sequence))
    assert states._disk.size <= 5 * 3 * BLOCK


def test_a_client_in_use_stays_in_memory_and_one_that_was_only_asked_is_not_kept(tmp_path):
    states = ClientStates(tmp_path, resident=0)
    with states.of(7) as versions:
        versions.keep(request(7, 0), state(1))
        with states.of(8) as other:
            assert other.kept == {}
        with states.of(7) as same:
            assert same is versions
    assert (7 in states, 8 in states, states.resident) == (True, False, 0)


def test_a_checkpoint_reads_each_state_when_it_is_wanted(tmp_path):
    states = ClientStates(tmp_path, resident=2 * SIZE)
    for client in range(8):
        states.restore(client, state(client))
    with states.of(3) as versions:
        versions.keep(request(3, 5), state(50))
    changed = Changed(states, {3: 5, 4: 9})
    assert {client: number(found) for client, found in changed.items()} == {3: 3, 4: 4}
    assert number(Changed(states, {3: 6})[3]) == 50
    assert (len(changed), states.resident <= 2 * SIZE) == (2, True)
    with pytest.raises(KeyError):
        changed[5]


def test_freed_memory_goes_back_to_the_system_after_some_bytes_of_states(tmp_path, monkeypatch):
    """States that stay lie scattered in the memory of a turn, which later turns could not use again."""
    returned = []
    monkeypatch.setattr(module, "PASSING", 1000)
    monkeypatch.setattr(module, "return_freed_memory", lambda: returned.append(client))
    states = ClientStates(tmp_path)
    for client in range(8):
        states.restore(client, {"model": {"w": torch.zeros(100)}})  # 400 bytes
    assert returned == [2, 5]
