"""A device: what it answers, keeps, notes and tells, whatever it is sent."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import stat
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography")

from asking import HONEST, SAMPLES, Server, careful, experiment, limited
from PIL import Image

import catchment
from catchment.device import RealDevice, answering
from catchment.device.policy import Allow, Policy
from catchment.device.sent import read_log
from catchment.errors import UserError
from catchment.exchange.request import Response
from catchment.runtimes.torch import serve

KINDS = ("hello", "ask", "fetch", "bye")


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    return careful(tmp_path)


@pytest.fixture
def server(policy: Policy) -> Server:
    server = Server(policy)
    server.serves_the_honest_run("0-0")
    return server


# ---- messages of every kind


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("field", ["version", "experiment", "form", "signature", "federation", "key", "part", "parts"])
@pytest.mark.parametrize("value", [None, "0", b"0", 1.0, True, -1, 10**30, [], {}, "../..", "a\nb", "x" * 10**5])
def test_fields_of_a_wrong_kind_are_an_error_in_the_reply(server: Server, kind: str, field: str, value: Any) -> None:
    fields = {
        "version": catchment.__version__, "experiment": experiment(), "form": "{}", "signature": "",
        "federation": HONEST, "key": "0-1", "part": 0, "parts": 1, field: value,
    }  # fmt: skip
    said, raw = server.device.answer(kind, fields, b"nonsense")
    assert raw == b""
    assert set(said) == ({"error"} if kind != "bye" or type(fields["federation"]) is not str else {"client"})
    server.device.answer(kind, {}, b"")


@pytest.mark.parametrize(("kind", "fields"), [("dance", {}), ("", {}), (None, {}), ("hello", None), ("ask", [])])
def test_other_messages_are_an_error_in_the_reply(server: Server, kind: Any, fields: Any) -> None:
    assert set(server.device.answer(kind, fields, b"")[0]) == {"error"}


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, MemoryError, RecursionError, ValueError])
def test_whatever_is_raised_the_device_answers(
    server: Server, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def raising(*_: Any) -> Response:
        raise error("in /home/ann/xrays")

    monkeypatch.setattr(answering, "serve", raising)
    said, _ = server.ask(key="0-1")
    assert said["error"] in ("the device could not do it", "the device does not have enough memory")
    assert server.refusals()[-1] == f"{error.__name__}: in /home/ann/xrays"
    monkeypatch.setattr(answering, "serve", serve)
    server.serves_the_honest_run("0-2")


def test_ctrl_c_ends_the_device(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(*_: Any) -> Response:
        raise KeyboardInterrupt

    monkeypatch.setattr(answering, "serve", raising)
    with pytest.raises(KeyboardInterrupt):
        server.ask(key="0-1")


def test_another_version_is_told_so(server: Server) -> None:
    assert server.hello(version="0.0.1") == {"error": f"this device has Catchment {catchment.__version__}"}


def test_work_that_fails_is_a_failed_reply_without_details(server: Server) -> None:
    said, raw = server.ask(handler="no_such_handler", key="0-1")
    assert said == {"client": 0, "parts": 1}
    response = Response.from_bytes(raw)
    assert (response.failed, response.error) == (True, "the work failed; the device's log says why")
    assert "no client handler no_such_handler" in server.refusals()[-1]


# ---- what the server is told of the data


@pytest.mark.parametrize(
    "arrays",
    [
        {"images": np.zeros((2, 9, 9), np.uint8), "labels": np.array(["cat", "dog"])},
        {"images": np.zeros((2, 4, 4), np.uint8), "labels": np.array(["cat", "HIV"])},
        {"labels": np.array(["cat", "HIV"])},
    ],
)
def test_errors_name_no_path_and_no_class(policy: Policy, arrays: dict[str, Any]) -> None:
    np.savez(policy.data / "train.npz", **arrays)
    server = Server(policy)
    assert server.hello() == {"error": "the data cannot be read"}
    assert str(policy.data) in server.refusals()[-1]


def test_own_images_in_folders_are_scaled_and_the_owner_is_told_what_was_left_out(policy: Policy) -> None:
    (policy.data / "train.npz").unlink()
    for row in range(SAMPLES):
        file = policy.data / ("cat", "dog")[row % 2] / f"{row}.png"
        file.parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((5 + row, 6), row, np.uint8)).save(file)
    (policy.data / "cat/bad.png").write_bytes(b"no image")
    data = {"clients": 2, "partition": {"name": "own"}, "size": 4}
    server = Server(policy)
    assert server.hello(experiment(data=data)) == {"client": 0, "samples": SAMPLES}
    assert "train: images left out (the image in" in server.shown[-1]
    assert server.shown[-1].endswith("): 1")


def test_own_data_that_no_policy_names_are_not_looked_for(policy: Policy) -> None:
    server = Server(dataclasses.replace(policy, data=None))
    assert server.hello() == {"error": "the data cannot be read"}
    assert "set data" in server.refusals()[-1]


def test_a_trusted_server_is_told_everything(policy: Policy) -> None:
    trusted = dataclasses.replace(policy, allow=Allow(trusted=True), data=policy.data / "nothing")
    server = Server(trusted)
    assert str(trusted.data) in server.hello()["error"]


def test_a_policy_without_counts_hides_the_number_of_samples(policy: Policy) -> None:
    policy = dataclasses.replace(policy, allow=Allow(leaves=("weights", "metrics")))
    server = Server(policy)
    assert server.hello() == {"error": "the device does not send counts"}


# ---- answers are kept


def test_a_request_that_comes_again_is_answered_again_without_work(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = server.ask(key="0-1")
    monkeypatch.setattr(answering, "serve", None)
    assert server.ask(key="0-1") == first
    fields = {"federation": HONEST, "key": "0-1", "part": 0}
    assert server.device.answer("fetch", fields, b"") == ({"client": 0}, first[1])
    assert "error" in server.device.answer("fetch", {**fields, "part": 1}, b"")[0]
    assert "error" in server.device.answer("fetch", {**fields, "key": "0-0"}, b"")[0]
    again = [entry for entry in read_log(server.policy.state) if entry.get("handler") == "the last answer again"]
    assert [entry["bytes"] for entry in again] == [len(first[1])]


def test_an_answer_that_a_power_cut_tore_is_computed_again(server: Server) -> None:
    first = server.ask(key="0-1")[1]
    (outbox,) = server.policy.state.rglob("outbox")
    outbox.write_bytes(outbox.read_bytes()[:-1])
    again = server.ask(key="0-1")[1]
    assert (Response.from_bytes(again).body.scalars) == Response.from_bytes(first).body.scalars


def test_a_device_that_was_restarted_goes_on_after_a_greeting(policy: Policy) -> None:
    first = Server(policy)
    first.serves_the_honest_run()
    first.device._lock.close()
    asked: list[str] = []
    second = Server(policy, lambda summary: bool(asked.append(summary)))
    second.device.start_anew()
    assert second.ask()[0] == {"error": "hello first"}
    second.serves_the_honest_run("0-2")
    assert asked == []


# ---- the disk


def test_folders_and_files_are_for_the_owner_alone(policy: Policy) -> None:
    before = os.umask(0o077)
    try:
        Server(policy).serves_the_honest_run()
    finally:
        os.umask(before)
    assert stat.S_IMODE(policy.state.stat().st_mode) == 0o700
    for path in policy.state.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def join_many(server: Server, count: int) -> list[str]:
    """Join runs one after the other; what is left of them."""
    for number in range(count):
        name = f"{number:016x}"
        assert server.hello(federation=name)["client"] == 0
        for path in server.policy.state.glob("*/client-0/run.json"):
            if path.parent.parent.name == name:
                os.utime(path, (number, number))
        (server.policy.state / name / "client-0" / "versions").mkdir()
        (server.policy.state / name / "client-0" / "versions" / "old").write_bytes(bytes(10_000))
        server.device.answer("bye", {"federation": name}, b"")
    return sorted(path.name for path in server.policy.state.iterdir() if path.is_dir())


def test_only_the_newest_runs_are_kept(policy: Policy) -> None:
    assert join_many(Server(limited(policy, runs_kept=2)), 4) == ["0000000000000002", "0000000000000003"]


def test_old_runs_make_room_on_the_disk(policy: Policy) -> None:
    server = Server(limited(policy, bytes_of_disk=100_000))
    assert len(join_many(server, 4)) == 4
    server.serves_the_honest_run()
    (server.policy.state / HONEST / "client-0" / "large").write_bytes(bytes(60_000))
    assert "error" not in server.ask(key="0-1")[0]
    kept = sorted(path.name for path in policy.state.iterdir() if path.is_dir())
    assert HONEST in kept
    assert "0000000000000000" not in kept
    assert "0000000000000003" in kept
    (server.policy.state / HONEST / "client-0" / "large").write_bytes(bytes(100_000))
    assert server.ask(key="0-2")[0] == {"error": "the run needs more disk space than the device allows"}


def test_a_run_that_has_been_silent_for_long_is_over(policy: Policy) -> None:
    server = Server(policy)
    server.serves_the_honest_run()
    long_ago = time.time() - 2 * 86_400
    os.utime(policy.state / "client-0.run", (long_ago, long_ago))
    assert server.hello(federation="cd" * 8)["client"] == 0


def test_two_processes_do_not_share_a_state(policy: Policy) -> None:
    device = RealDevice(policy)
    with pytest.raises(
        UserError, match=r"client-0\.lock is in use: another process is client 0; give each its own state"
    ):
        RealDevice(policy)
    del device


def test_a_state_that_cannot_be_made_is_one_sentence(policy: Policy, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be used for the state of client 0"):
        RealDevice(dataclasses.replace(policy, state=tmp_path / "file"))


# ---- the log


def test_all_that_left_is_in_the_log(server: Server) -> None:
    raw = server.ask(key="0-1")[1]
    hello, _, entry = [e for e in read_log(server.policy.state) if e["what"] == "sent"]
    assert hello["scalars"] == {"client": 0, "samples": SAMPLES}
    body = Response.from_bytes(raw).body
    assert entry["bytes"] == len(raw)
    assert (entry["federation"], entry["handler"], entry["round"]) == (HONEST, "local_training", 1)
    assert entry["scalars"] == body.scalars
    assert {tensor["name"] for tensor in entry["tensors"]} == set(body.tensors)
    for tensor in entry["tensors"]:
        there = body.tensors[tensor["name"]]
        assert tensor["sha256"] == hashlib.sha256(there.numpy().tobytes()).hexdigest()
        assert (tensor["dtype"], tensor["shape"], tensor["bytes"]) == ("float32", list(there.shape), there.numel() * 4)


def test_nothing_leaves_that_cannot_be_noted(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    said, raw = server.ask(key="0-1")
    assert (said, raw) == ({"error": "the device could not do it"}, b"")
