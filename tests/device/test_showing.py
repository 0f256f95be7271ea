"""A policy in plain words."""

from __future__ import annotations

import math
from pathlib import Path

from catchment.device.disk import approve
from catchment.device.policy import KINDS, Allow, Limits, Policy
from catchment.device.sent import SentLog
from catchment.device.showing import described


def test_everything_that_a_policy_says_is_shown(tmp_path: Path) -> None:
    policy = Policy(
        "h:1", 2, tmp_path / "state", tmp_path / "data", None, tmp_path / "ca.crt", tmp_path / "k", tmp_path / "f.pub",
        allow=Allow(("fedavg", "fedmd"), ("weights", "logits"), ("0" * 64,)),
        limits=Limits(1024, 2048, 4096, 600, 60, 7, 9, 1000, 8192, math.inf, 2, 3, 5),
    )  # fmt: skip
    approve(policy.state, "f" * 64)
    assert described(policy).splitlines() == [
        f"Client 2 of h:1, certified by {tmp_path}/ca.crt; runs must be signed by {tmp_path}/f.pub.",
        f"Data are read from {tmp_path}/data, code from nowhere.",
        "",
        "May be sent:      weights, logits",
        "Is never sent:    masks, counts, metrics, features, labels, ids, images, unknown",
        "Methods:          fedavg, fedmd",
        f"Approved runs:    {'0' * 64}, {'f' * 64}",
        "",
        "Per run:          at most 1.00 KiB up, 600 s, 7 rounds of 9 requests",
        "Per request:      at most 4.00 KiB down, 2.00 KiB up, 60 s",
        "This machine:     at most 8.00 KiB of memory, any number of bytes of disk, 2 threads, models of 1,000 "
        "parameters, 3 runs kept",
        "With fewer than 5 samples of its own the device does not take part.",
        "",
        "Nothing has been sent so far.",
    ]


def test_a_server_that_may_have_everything_is_named_so(tmp_path: Path) -> None:
    policy = Policy("h:1", 0, tmp_path, insecure=True, allow=Allow((), KINDS, (), trusted=True))
    shown = described(policy)
    assert "not encrypted; runs must be signed by nobody." in shown
    assert "Is never sent:    everything may be sent" in shown
    assert "Methods:          none" in shown
    assert "The server is trusted" in shown


def test_what_left_is_summed_by_run_and_the_last_refusals_are_shown(tmp_path: Path) -> None:
    policy = Policy("h:1", 0, tmp_path, insecure=True)
    log = SentLog(tmp_path)
    for run, size in (("aa" * 8, 100), ("bb" * 8, 50), ("aa" * 8, 200)):
        log.note(run, "hello", {}, size)
    for number in range(7):
        log.refused("aa" * 8, "ask", f"reason {number}")
    lines = described(policy).splitlines()
    start = lines.index(f"Sent so far ({tmp_path}/sent.jsonl):")
    assert lines[start + 1 : start + 4] == [
        f"  run {'aa' * 8}: 300 B in 2 answers",
        f"  run {'bb' * 8}: 50 B in 1 answers",
        "Refusals so far: 7; the last:",
    ]
    assert [line.split(" ask: ")[1] for line in lines[start + 4 :]] == [f"reason {number}" for number in range(2, 7)]
