"""A server that asks a device for what it must not have: each wish is refused and noted, and honest work goes on."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch

import catchment
from catchment import Experiment
from catchment.data import Form, Normalisation
from catchment.device import RealDevice, disk, patience
from catchment.device.sent import read_log
from catchment.flower.keys import make_federation_key, sign_run
from catchment.message import Message, Request, Response
from catchment.policy import Allow, Limits, Policy, digest

HONEST = "ab" * 8
FORM = Form((1, 4, 4), ("cat", "dog"), Normalisation(255, (0.5,), (0.5,)))
TABLE: dict[str, Any] = {
    "rounds": 3,
    "models": {"client": "mlp(4)"},
    "data": {"name": "digits", "clients": 2, "partition": {"name": "own"}},
}
SAMPLES = 12


def experiment(**changes: Any) -> str:
    """The honest experiment with some tables changed."""
    return tomli_w.dumps({**TABLE, **changes})


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_federation_key(tmp_path)
    return tmp_path


@pytest.fixture
def policy(keys: Path, tmp_path: Path) -> Policy:
    data = tmp_path / "data"
    data.mkdir()
    images = np.arange(SAMPLES * 16, dtype=np.uint8).reshape(SAMPLES, 4, 4)
    np.savez(data / "train.npz", images=images, labels=np.array(["cat", "dog"] * (SAMPLES // 2)))
    return Policy(
        "fl.example.org:9092",
        0,
        tmp_path / "state",
        data,
        root_certificate=tmp_path / "ca.crt",
        key=tmp_path / "device.key",
        federation=keys / "federation.pub",
    )


class Server:
    """Speaks to one device; signs what it says with the federation's key."""

    def __init__(self, policy: Policy, agree: Callable[[str], bool] | None = lambda summary: True) -> None:
        self.policy = policy
        self.device = RealDevice(policy, agree)
        self.key = policy.federation.with_name("federation.key")

    def hello(self, text: str | None = None, federation: str = HONEST, **fields: Any) -> dict[str, Any]:
        told = {"experiment": experiment() if text is None else text, "form": json.dumps(FORM.to_dict())}
        signature = sign_run(self.key, federation, digest(**told))
        told |= {"version": catchment.__version__, "federation": federation, "signature": signature, **fields}
        return self.device.answer("hello", told, b"")[0]

    def ask(
        self, round: int = 1, handler: str = "local_training", key: str = "0-1", **fields: Any
    ) -> tuple[Any, bytes]:
        weights = Experiment.from_toml(experiment()).build_world(own(self.policy)).client_architecture(0).probe.initial
        body = Message({f"weights/{name}": tensor for name, tensor in weights.items()})
        raw = Request(0, handler, round, 0, round, body).to_bytes()
        return self.device.answer("ask", {"federation": HONEST, "key": key, "part": 0, "parts": 1, **fields}, raw)

    def refusals(self) -> list[str]:
        return [entry["why"] for entry in read_log(self.policy.state) if entry["what"] == "refused"]

    def serves_the_honest_run(self, key: str = "0-9") -> None:
        assert self.hello() == {"client": 0, "samples": SAMPLES}
        said, raw = self.ask(key=key)
        assert said == {"client": 0, "parts": 1}
        assert set(Response.from_bytes(raw).body.scalars) == {"samples", "loss"}


def own(policy: Policy) -> Any:
    from catchment.data import own_division

    return own_division(policy.data, FORM, 0, 2)


def limited(policy: Policy, **limits: float) -> Policy:
    return dataclasses.replace(policy, limits=dataclasses.replace(policy.limits, **limits))


def dealt(**data: Any) -> str:
    return experiment(data={"name": "digits", "clients": 2, **data})


# ---- what an experiment asks for


@pytest.mark.parametrize(
    ("text", "told", "why"),
    [
        (experiment(method={"name": "centralized"}), "the method is not allowed", "centralized, which allow.methods"),
        (
            experiment(method={"name": "fedgkt"}, models={"client": "resnet4", "server": "resnet10"}),
            "the device does not let features leave",
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
    import sys

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
        "from torch import nn\ndef net(shape, classes):\n    return nn.Sequential(nn.Flatten(), nn.Linear(16, classes))\n"
    )
    server = Server(dataclasses.replace(policy, modules=tmp_path / "modules"))
    for name in ("os:abort", "mine_of_device.x:y:z", "..mine_of_device:net", ":net"):
        assert "error" in server.hello(experiment(models={"client": name}), federation="ee" * 8)
        assert f'models.client is "{name}", which is not in' in server.refusals()[-1] or name.startswith(".")
    text = experiment(models={"client": "mine_of_device:net"})
    assert server.hello(text)["samples"] == SAMPLES


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
    assert server.hello() == {"error": "nobody has approved this run on the device yet"}
    fingerprint = digest(experiment(), json.dumps(FORM.to_dict()))
    assert f"catchment policy --approve {fingerprint}" in server.refusals()[-1]
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
        "local_training: weights",
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
    assert server.refusals() == [f"{SAMPLES} samples are here; limits.least_samples is {SAMPLES + 1}"]


def test_an_epoch_without_end_is_stopped(policy: Policy) -> None:
    server = Server(limited(policy, seconds_per_request=0.5))
    text = experiment(method={"name": "fedavg", "client_epochs": 10**12})
    assert server.hello(text)["client"] == 0
    assert server.ask()[0] == {"error": "the work took longer than the device allows"}
    assert "limits.seconds_per_request, 0.5 s" in server.refusals()[-1]
    server.device.answer("bye", {"federation": HONEST}, b"")
    assert server.hello(federation="cd" * 8)["samples"] == SAMPLES


def test_work_that_never_looks_up_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "GRACE", 0.2)
    ended: list[str] = []

    def stubborn() -> None:
        try:
            while True:
                try:
                    while True:
                        math.sqrt(2)
                except Exception:
                    continue
        finally:
            ended.append("yes")

    limited = patience.Patience(0.1)
    with pytest.raises(catchment.CatchmentError, match="the work took longer"):
        limited.do(stubborn)
    assert ended == ["yes"]
    assert limited.do(lambda: 3) == 3


def test_nothing_is_begun_while_work_cannot_be_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "GRACE", 0.05)
    limited = patience.Patience(0.05)
    with pytest.raises(catchment.CatchmentError, match="the work took longer"):
        limited.do(lambda: time.sleep(1.5))
    with pytest.raises(catchment.CatchmentError, match="has not ended yet"):
        limited.do(lambda: 3)
    limited._left_behind.join()
    assert limited.do(lambda: 3) == 3


@pytest.mark.parametrize("parts", [10**9, 11])
def test_an_inbox_without_end_is_refused_and_deleted(
    policy: Policy, monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    server = Server(limited(policy, bytes_down_per_message=20_000))
    server.serves_the_honest_run()
    monkeypatch.setattr("catchment.transports.base.PART", 2_000)
    fields = {"federation": HONEST, "key": "0-10", "parts": parts}
    replies = [server.device.answer("ask", {**fields, "part": part}, bytes(2_001))[0] for part in range(11)]
    assert replies[-1] == {"error": "the request is longer than the device allows"} or "error" in replies[0]
    assert "limits.bytes_down_per_message is 20,000" in server.refusals()[0]
    assert not list(policy.state.rglob("inbox"))
    monkeypatch.undo()
    server.serves_the_honest_run("0-11")


def test_more_bytes_than_a_message_may_have(policy: Policy) -> None:
    server = Server(limited(policy, bytes_up_per_message=500))
    server.hello()
    assert server.ask()[0] == {"error": "the answer is longer than the device allows"}
    assert not [e for e in read_log(policy.state) if e["what"] == "sent" and e["bytes"]]
    assert not list(policy.state.rglob("outbox"))


def test_more_bytes_than_a_run_may_have(policy: Policy) -> None:
    size = len(self_answer(policy))
    server = Server(limited(policy, bytes_up_per_run=2 * size))
    server.hello()
    assert [server.ask(key=f"0-{n}")[0].get("error") for n in range(4)] == [
        None,
        None,
        *["the run has used up the bytes that the device gives it"] * 2,
    ]


def self_answer(policy: Policy) -> bytes:
    server = Server(dataclasses.replace(policy, state=policy.state.with_name("other")))
    server.hello()
    return server.ask()[1]


def test_more_rounds_than_were_said(policy: Policy) -> None:
    server = Server(policy)
    server.hello()
    assert server.ask(round=4)[0] == {"error": "the run has fewer rounds"}
    server.serves_the_honest_run()
