"""What a client remembers, and how far back it can go."""

from __future__ import annotations

import torch

from catchment.client.state import StoredVersions, Versions, state_from_message, state_to_message
from catchment.exchange.message import Message
from catchment.exchange.request import Request


def kept(value: float):
    return {"kept": {"n": torch.tensor([value])}}


def request(sequence: int, **fields) -> Request:
    return Request(0, "count", 1, 0, sequence, Message({}), **fields)


def number(state) -> float | None:
    return state["kept"]["n"].item() if state else None


def test_a_request_starts_from_the_newest_version_before_itself():
    versions = Versions()
    assert number(versions.before(request(0))) is None
    versions.keep(request(0), kept(10))
    versions.keep(request(4), kept(14))
    assert number(versions.before(request(7))) == 14
    assert number(versions.before(request(4))) == 10  # asked again


def test_a_new_life_disowns_what_older_lives_did_after_the_checkpoint():
    versions = Versions()
    versions.keep(request(0), kept(10))
    versions.keep(request(3, base=2), kept(13))
    versions.keep(request(6, base=2), kept(16))
    assert number(versions.before(request(8, resumes=1, start=2))) == 10
    assert number(versions.newest(100)) == 10


def test_what_the_last_checkpoint_and_the_reply_under_way_need_is_kept_and_no_more():
    versions = Versions()
    for sequence in range(20):
        versions.keep(request(sequence, base=12), kept(sequence))
    assert sorted(versions._kept) == [11, 18, 19]


def test_states_survive_their_bytes():
    state = {"model": {"a.b": torch.randn(3, 2), "n": torch.tensor(3)}, "cursor": {"at": torch.tensor([1, 2])}}
    again = state_from_message(Message.from_bytes(state_to_message(state).to_bytes())[0])
    assert {k: list(v) for k, v in again.items()} == {k: list(v) for k, v in state.items()}
    assert all(torch.equal(again[group][name], t) for group, ts in state.items() for name, t in ts.items())


# ---- on a device's disk ------------------------------------------------------------------------------------------


def test_versions_on_the_disk_are_those_in_memory_after_every_step(tmp_path):
    stored, versions = StoredVersions(tmp_path), Versions()
    for sequence in range(5):
        for each in (stored, versions):
            each.keep(request(sequence, base=3), kept(sequence))
    again = StoredVersions(tmp_path)
    assert sorted(again._kept) == sorted(versions._kept) == [2, 3, 4]
    assert again.count == 3
    assert [number(again.newest(before)) for before in (3, 4, 100)] == [2, 3, 4]


def test_a_new_life_removes_the_files_that_it_disowns(tmp_path):
    stored = StoredVersions(tmp_path)
    for sequence in (0, 3):
        stored.keep(request(sequence, base=2), kept(sequence))
    (tmp_path / "notes.txt").write_text("not a version")
    assert number(stored.before(request(8, resumes=1, start=2))) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0000000000-000000.safetensors", "notes.txt"]
