"""The log of what left a device."""

from __future__ import annotations

import hashlib
import json
import stat
from pathlib import Path

import pytest
import torch

from catchment.device import sent
from catchment.device.sent import REFUSED, Rate, SentLog, read_log
from catchment.exchange.message import Message
from catchment.exchange.request import Request

RUN = "ab" * 8


def test_an_answer_is_noted_tensor_by_tensor(tmp_path: Path) -> None:
    request = Request(0, "train", 4, 0, 7, Message({}))
    body = Message({"x": torch.tensor([[1, 2]], dtype=torch.int16)}, {"loss": 0.5})
    SentLog(tmp_path).sent(RUN, request, body, 99)
    (entry,) = read_log(tmp_path)
    del entry["time"]
    digest = hashlib.sha256(b"\x01\x00\x02\x00").hexdigest()
    assert entry == {
        "what": "sent", "federation": RUN, "bytes": 99, "round": 4, "handler": "train", "purpose": "training",
        "tensors": [{"name": "x", "dtype": "int16", "shape": [1, 2], "bytes": 4, "sha256": digest}],
        "scalars": {"loss": 0.5},
    }  # fmt: skip
    assert stat.S_IMODE((tmp_path / "sent.jsonl").stat().st_mode) == 0o600


def test_a_log_is_rotated_and_read_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sent, "LARGEST", 1)
    monkeypatch.setattr(sent, "FILES", 2)
    log = SentLog(tmp_path)
    for number in range(5):
        log.note(RUN, "hello", {"number": number})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sent.1.jsonl", "sent.2.jsonl", "sent.jsonl"]
    assert [entry["scalars"]["number"] for entry in read_log(tmp_path)] == [2, 3, 4]


def test_a_line_that_a_power_cut_tore_is_left_out(tmp_path: Path) -> None:
    SentLog(tmp_path).note(RUN, "hello", {})
    with (tmp_path / "sent.jsonl").open("a") as file:
        file.write('{"torn')
    assert [entry["handler"] for entry in read_log(tmp_path)] == ["hello"]


def test_a_refusal_that_is_repeated_is_noted_once_and_kept_short(tmp_path: Path) -> None:
    log = SentLog(tmp_path)
    reasons = ("a", "a", "b\x1b[31m\nc" + "d" * 5000, "a")
    assert [log.refused(RUN, "hello", why) for why in reasons] == [True, False, True, True]
    found = [entry["why"] for entry in read_log(tmp_path, REFUSED)]
    assert found[0] == found[2] == "a"
    assert len(found[1]) == sent.LONGEST
    assert "\x1b" not in json.dumps(found, ensure_ascii=False)


def test_after_an_answer_the_same_refusal_is_noted_again(tmp_path: Path) -> None:
    log = SentLog(tmp_path)
    log.refused(RUN, "ask", "too long")
    log.note(RUN, "hello", {})
    assert log.refused(RUN, "ask", "too long")


def test_a_flood_of_refusals_is_noted_in_part_and_pushes_out_nothing_that_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(sent.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(sent, "LARGEST", 1)
    monkeypatch.setattr(sent, "AT_ONCE", 3)
    monkeypatch.setattr(sent, "FILES", 5)
    log = SentLog(tmp_path)
    log.note(RUN, "hello", {})
    assert [log.refused(RUN, "ask", f"reason {number}") for number in range(50)] == [True] * 3 + [False] * 47
    assert len(list(read_log(tmp_path))) == 1
    clock[0] = sent.PAUSE
    assert log.refused(RUN, "ask", "later")
    assert not log.refused(RUN, "ask", "at once again")
    found = list(read_log(tmp_path, REFUSED))
    assert [(entry["why"], entry.get("left_out_before")) for entry in found] == [
        ("reason 0", None), ("reason 1", None), ("reason 2", None), ("later", 47),
    ]  # fmt: skip


def test_a_rate_lets_no_more_through_after_a_long_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(sent.time, "monotonic", lambda: clock[0])
    rate = Rate(2, 10.0)
    assert [rate.allows() for _ in range(3)] == [True, True, False]
    clock[0] = 10.0
    assert [rate.allows() for _ in range(2)] == [True, False]
    clock[0] = 1e9
    assert [rate.allows() for _ in range(3)] == [True, True, False]
