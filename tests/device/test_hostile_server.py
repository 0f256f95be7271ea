"""A server that asks a device for what it must not have: each wish is refused and noted, and honest work goes on."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography")

from asking import FORM, HONEST, SAMPLES, TABLE, Server, careful, dealt, experiment, limited

from catchment.device import disk
from catchment.device.policy import Policy, digest
from catchment.device.sent import read_log
from catchment.keys.keys import make_federation_key, sign_run


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    return careful(tmp_path)


# ---- what an experiment asks for


@pytest.mark.parametrize(
    ("text", "told", "why"),
    [
        (experiment(method={"name": "centralized"}), "the method is not allowed", "centralized, which allow.methods"),
        (
            experiment(method={"name": "fedgkt"}, models={"client": "resnet4", "server": "resnet10"}),
            "the device does not send features",
            "clients of fedgkt send features (features), which allow.leaves",
        ),
        (dealt(name="/etc"), "no path is followed", 'data.name is "/etc"'),
        (dealt(name="state"), "no path is followed", 'data.name is "state"'),
        (dealt(public={"name": "~/photos"}), "no path is followed", 'data.public.name is "~/photos"'),
        (dealt(partition={"name": "table", "file": "/etc/passwd"}), "no path is followed", "partition.file"),
        (dealt(name="sys:exit"), "the device imports no code that an experiment names", 'data.name is "sys:exit"'),
        (experiment(models={"client": "os:abort"}), "the device imports no code", 'models.client is "os:abort"'),
        (experiment(models={"client": ["mlp", "kgf(os:abort)"]}), "the device imports no code", "kgf(os:abort)"),
        (experiment(method={"name": "evil:Method"}), "the device imports no code", 'method.name is "evil:Method"'),
        (experiment(attack={"name": "evil:Attack"}), "the device imports no code", "attack.name"),
        (experiment(aggregation={"name": "evil:Mean"}), "the device imports no code", "aggregation.name"),
        (experiment(models={"client": "mlp(2000000000)"}), "the model is larger", "limits.parameters is 50,000,000"),
        (experiment(models={"client": "resnet(1000000000,1,1)"}), "the model is larger", "at most 2,000 tensors"),
        (experiment(models={"client": "mlp", "server": "mlp(2000000000)"}), "the model is larger", "limits.parameters"),
        (experiment(rounds=1001), "more rounds than the device allows", "limits.rounds is 1,000"),
        (experiment(threads=64), "more threads than the device allows", "limits.threads is 4"),
        (experiment(data={**TABLE["data"], "clients": 10**9}), "no such client", "1,000,000,000 clients"),
        (experiment(rounds="many"), "cannot be used on this device", "rounds is the text"),
        ("rounds = ", "cannot be used on this device", "not valid TOML"),
        ("a = " + "[" * 5000, "cannot be used on this device", "not valid TOML"),
    ],
)
def test_an_experiment_that_asks_for_too_much(policy: Policy, text: str, told: str, why: str) -> None:
    server = Server(policy)
    said = server.hello(text, federation="ee" * 8)
    assert set(said) == {"error"}
    assert told in said["error"]
    assert why in server.refusals()[-1]
    server.serves_the_honest_run()


def test_a_folder_of_the_servers_is_not_searched_for_code(policy: Policy, tmp_path: Path) -> None:
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil/planted.py").write_text("raise SystemExit('the planted module ran')")
    server = Server(policy)
    server.hello(experiment(path=str(tmp_path / "evil"), method={"name": "planted:X"}), federation="ee" * 8)
    assert "method.name" in server.refusals()[-1]
    assert server.hello(experiment(path=str(tmp_path / "evil")))["client"] == 0
    assert str(tmp_path / "evil") not in sys.path


def test_code_comes_from_the_owners_folder_alone(policy: Policy, tmp_path: Path) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/mine_of_device.py").write_text(
        "from torch import nn\n\n"
        "def net(shape, classes):\n    return nn.Sequential(nn.Flatten(), nn.Linear(16, classes))\n"
    )
    server = Server(dataclasses.replace(policy, modules=tmp_path / "modules"))
    for name in ("os:abort", "mine_of_device.x:y:z", ":net"):
        said = server.hello(experiment(models={"client": name}), federation="ee" * 8)
        assert said == {"error": "the device has no such module"}
        assert f'models.client is "{name}", which is not in' in server.refusals()[-1]
    text = experiment(models={"client": "mine_of_device:net"})
    assert server.hello(text)["samples"] == SAMPLES


STAGED = experiment(wire={"codecs": ["up:weights/*=update+stage_of_device:Half+zstd"]})


def test_a_stage_of_codecs_is_code_too(policy: Policy) -> None:
    server = Server(policy)
    said = server.hello(STAGED, federation="ee" * 8)
    assert said == {"error": "the device imports no code that an experiment names"}
    assert 'wire.codecs is "stage_of_device:Half", and the policy has no folder of modules' in server.refusals()[-1]


def test_stages_of_codecs_come_from_the_owners_folder_alone(policy: Policy, tmp_path: Path) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/stage_of_device.py").write_text(
        "from catchment.codecs.quantization import Float16\n\nclass Half(Float16):\n    name = 'half'\n"
    )
    server = Server(dataclasses.replace(policy, modules=tmp_path / "modules"))
    for module in ("os:abort", "stage_of_device.x:y:z"):
        server.hello(experiment(wire={"codecs": [f"weights/*={module}(3)"]}), federation="ee" * 8)
        assert f'wire.codecs is "{module}", which is not in' in server.refusals()[-1]
    assert server.hello(STAGED)["samples"] == SAMPLES


# ---- who asks


def test_runs_that_are_not_signed_by_the_federation(policy: Policy, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    make_federation_key(tmp_path / "other")
    server = Server(policy)
    fingerprint = digest(experiment(), json.dumps(FORM.to_dict()))
    for signature in (
        "",
        "nonsense",
        sign_run(tmp_path / "other/federation.key", HONEST, fingerprint),
        sign_run(server.key, "cd" * 8, fingerprint),
        sign_run(server.key, HONEST, "0" * 64),
    ):
        assert server.hello(signature=signature) == {
            "error": "the run is not signed by the key that this device trusts"
        }
    assert server.refusals()
    server.serves_the_honest_run()


def test_without_a_person_only_approved_runs_are_joined(policy: Policy) -> None:
    server = Server(policy, agree=None)
    for _ in range(2):
        assert server.hello() == {"error": "nobody has approved this run on the device yet", "client": 0}
    summary, refused = server.shown
    assert "asks client 0 to take part in a run" in summary
    assert refused == f"refused: {server.refusals()[0]}"
    fingerprint = digest(experiment(), json.dumps(FORM.to_dict()))
    assert refused.endswith(f"catchment policy --approve {fingerprint}")
    disk.approve(policy.state, fingerprint)
    server.serves_the_honest_run()


def test_a_person_sees_what_will_leave_and_is_asked_once(policy: Policy) -> None:
    shown: list[str] = []

    def agree(summary: str) -> bool:
        shown.append(summary)
        return len(shown) > 1

    server = Server(policy, agree)
    other = experiment(seed=1)
    for _ in range(2):
        assert server.hello(other, federation="ee" * 8) == {"error": "the device's owner said no"}
    assert len(shown) == 1
    server.serves_the_honest_run()
    server.serves_the_honest_run()
    assert len(shown) == 2
    for part in (
        "fl.example.org:9092 asks client 0",
        "fedavg, 3 rounds",
        "mlp(4) (78 parameters)",
        "weights  local_training.weights: client parameters, up to 312 B",
        "signed   by the key federation.pub",
    ):
        assert part in shown[1]


def test_another_run_is_not_joined_before_the_first_is_over(policy: Policy) -> None:
    server = Server(policy)
    server.serves_the_honest_run()
    assert server.hello(federation="cd" * 8) == {"error": "the device takes part in another run"}
    assert server.hello(experiment(seed=1)) == {"error": "the device takes part in another run"}
    server.serves_the_honest_run("0-10")
    server.device.answer("bye", {"federation": "cd" * 8}, b"")
    assert "error" in server.hello(federation="cd" * 8)
    server.device.answer("bye", {"federation": HONEST}, b"")
    assert server.hello(federation="cd" * 8)["client"] == 0


def test_nothing_is_done_for_a_run_that_was_not_joined(policy: Policy) -> None:
    server = Server(policy)
    for kind in ("ask", "fetch"):
        fields = {"federation": "cd" * 8, "key": "0-1", "part": 0, "parts": 1}
        assert server.device.answer(kind, fields, b"")[0] == {"error": "hello first"}
    server.serves_the_honest_run()
    server.device.start_anew()
    assert server.ask()[0] == {"error": "hello first"}
    server.serves_the_honest_run("0-10")


# ---- budgets


def test_too_few_samples(policy: Policy) -> None:
    server = Server(limited(policy, least_samples=SAMPLES + 1))
    assert server.hello() == {"error": "the device has too few samples"}
    assert server.refusals() == [f"there are {SAMPLES} samples; limits.least_samples is {SAMPLES + 1}"]


def test_an_epoch_without_end_is_stopped(policy: Policy) -> None:
    server = Server(limited(policy, seconds_per_request=0.5))
    text = experiment(method={"name": "fedavg", "client_epochs": 10**12})
    assert server.hello(text)["client"] == 0
    assert server.ask()[0] == {"error": "the work took longer than the device allows"}
    assert "limits.seconds_per_request, 0.5 s" in server.refusals()[-1]
    server.device.answer("bye", {"federation": HONEST}, b"")
    assert server.hello(federation="cd" * 8)["samples"] == SAMPLES


def test_an_inbox_without_end_is_refused_and_deleted(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(limited(policy, bytes_down_per_message=20_000))
    server.serves_the_honest_run()
    monkeypatch.setattr("catchment.core.transport.PART", 2_000)

    def send(part: int, parts: int, size: int = 2_000) -> dict[str, Any]:
        fields = {"federation": HONEST, "key": "0-10", "part": part, "parts": parts}
        return server.device.answer("ask", fields, bytes(size))[0]

    longer = {"error": "the request is longer than the device allows"}
    more = {"client": 0, "parts": 0}
    assert send(0, 10**9) == longer
    assert [send(part, 10) for part in range(5)] == [more] * 5
    assert list(policy.state.rglob("inbox"))
    assert send(5, 10, 20_000) == longer
    assert not list(policy.state.rglob("inbox"))
    assert send(6, 10) == {"error": "the message cannot be read"}
    assert "part 6 of a request came without those before it" in server.refusals()[-1]
    monkeypatch.undo()
    server.serves_the_honest_run("0-11")


def test_more_bytes_than_a_message_may_have(policy: Policy) -> None:
    server = Server(limited(policy, bytes_up_per_message=500))
    server.hello()
    assert server.ask()[0] == {"error": "the answer is longer than the device allows"}
    assert not [e for e in read_log(policy.state) if e["what"] == "sent" and e["bytes"]]
    assert not list(policy.state.rglob("outbox"))


def test_more_bytes_than_a_run_may_have(policy: Policy) -> None:
    other = Server(dataclasses.replace(policy, state=policy.state.with_name("other")))
    other.hello()
    size = len(other.ask()[1])
    server = Server(limited(policy, bytes_up_per_run=2 * size))
    server.hello()
    used_up = USED_UP.format("bytes")
    assert [server.ask(key=f"0-{n}")[0].get("error") for n in range(4)] == [None, None, used_up, used_up]
    assert sum(entry["bytes"] for entry in read_log(policy.state) if entry["what"] == "sent") == 2 * size
    assert [server.ask(key="0-1")[0].get("error")] == [used_up]


USED_UP = "the run has used up the {} that the device allows"


def asked_anew(server: Server, federation: str, key: str, round: int = 1) -> str | None:
    """The error of a question in a run that the server starts under another name."""
    server.device.answer("bye", {"federation": server.device._disk.current}, b"")
    assert server.hello(federation=federation)["client"] == 0
    return server.ask(round, key=key, federation=federation)[0].get("error")


def test_a_run_that_is_started_again_under_another_name_has_no_budget_of_its_own(policy: Policy) -> None:
    shown: list[str] = []
    server = Server(limited(policy, bytes_up_per_run=2_000), lambda summary: not shown.append(summary))
    names = [f"{number:016x}" for number in range(8)]
    said = [asked_anew(server, name, f"0-{name}") for name in names]
    assert said[0] is None
    assert said[-1] == USED_UP.format("bytes")
    assert sum(entry["bytes"] for entry in read_log(policy.state)) <= 2_000
    assert len(shown) == 1
    fingerprint = digest(experiment(), json.dumps(FORM.to_dict()))
    assert server.refusals()[-1].endswith(f"to allow as much again: catchment policy --approve {fingerprint}")
    disk.approve(policy.state, fingerprint)
    assert asked_anew(server, "ef" * 8, "0-again") is None
    assert 2_000 < sum(entry["bytes"] for entry in read_log(policy.state)) <= 4_000


def test_a_round_that_is_asked_for_again_and_again(policy: Policy) -> None:
    server = Server(limited(policy, requests_per_round=3))
    server.hello()
    too_often = USED_UP.format("requests of a round")
    assert [server.ask(key=f"0-{n}")[0].get("error") for n in (1, 2, 2, 3)] == [None, None, None, too_often]
    assert server.ask(round=2, key="0-4")[0].get("error") is None
    assert asked_anew(server, "cd" * 8, "0-5") == too_often
    assert server.ask(10**6, key="0-6", federation="cd" * 8)[0] == {"error": "the run has fewer rounds"}
    assert "limits.requests_per_round allows 3 for 1 approval(s)" in server.refusals()[0]


def test_more_seconds_than_a_run_may_have(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000, 10))
    server = Server(limited(policy, seconds_per_run=15))
    server.hello()
    monkeypatch.setattr("catchment.device.answering.time.monotonic", lambda: float(next(clock)))
    assert [server.ask(key=f"0-{n}")[0].get("error") for n in range(3)] == [None, None, USED_UP.format("time")]
    server.device._lock.close()
    again = Server(server.policy)
    again.hello()
    assert again.ask(key="0-4")[0].get("error") == USED_UP.format("time")


def test_greetings_without_end(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("catchment.device.answering.GREETINGS", 3)
    server = Server(policy)
    for number in range(3):
        server.device.answer("bye", {"federation": server.device._disk.current}, b"")
        assert server.hello(federation=f"{number:016x}")["client"] == 0
    for number in range(3, 6):
        assert server.hello(federation=f"{number:016x}") == {"error": "the device was greeted too often"}
    assert len(list(read_log(policy.state))) == 3


def test_a_flood_of_refusals_pushes_out_nothing_that_was_sent(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("catchment.device.sent.LARGEST", 2_000)
    server = Server(policy)
    server.serves_the_honest_run()
    sent = (policy.state / "sent.jsonl").read_bytes()
    for number in range(500):
        server.device.answer(f"kind {number}", {"federation": "é" * 64}, b"")
    assert (policy.state / "sent.jsonl").read_bytes() == sent
    assert 0 < len(server.refusals()) <= 100


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not hold a process to this limit")
def test_more_memory_than_the_device_gives(tmp_path: Path) -> None:
    program = (
        "import torch\nfrom catchment.flower.joining import _hold_to\n"
        "_hold_to(2e9)\ntry:\n    torch.ones(10**9)\nexcept RuntimeError:\n    print(torch.ones(3).sum().item())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "3.0\n", done.stderr


def test_more_rounds_than_were_said(policy: Policy) -> None:
    server = Server(policy)
    server.hello()
    assert server.ask(round=4)[0] == {"error": "the run has fewer rounds"}
    server.serves_the_honest_run()
