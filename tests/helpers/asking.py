"""A device with data of its own, and a server that speaks to it without a network."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

import catchment
from catchment import Experiment
from catchment.data import Form, Normalisation, own_division
from catchment.device import RealDevice
from catchment.device.policy import Policy, digest
from catchment.device.sent import REFUSED, read_log
from catchment.exchange.request import Request, Response
from catchment.families.weights import GlobalModel
from catchment.keys.keys import make_federation_key, sign_run

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


def careful(folder: Path) -> Policy:
    """The policy of a device that has some samples, with the defaults."""
    make_federation_key(folder)
    data = folder / "data"
    data.mkdir()
    images = np.arange(SAMPLES * 16, dtype=np.uint8).reshape(SAMPLES, 4, 4)
    np.savez(data / "train.npz", images=images, labels=np.array(["cat", "dog"] * (SAMPLES // 2)))
    return Policy(
        "fl.example.org:9092",
        0,
        folder / "state",
        data,
        root_certificate=folder / "ca.crt",
        key=folder / "device.key",
        federation=folder / "federation.pub",
    )


class Server:
    """Speaks to one device; signs what it says with the federation's key."""

    def __init__(self, policy: Policy, agree: Callable[[str], bool] | None = lambda summary: True) -> None:
        self.policy = policy
        self.shown: list[str] = []
        self.device = RealDevice(policy, agree, self.shown.append)
        self.key = policy.federation.with_name("federation.key")

    def hello(self, text: str | None = None, federation: str = HONEST, **fields: Any) -> dict[str, Any]:
        told = {"experiment": experiment() if text is None else text, "form": json.dumps(FORM.to_dict())}
        signature = sign_run(self.key, federation, digest(**told))
        told |= {"version": catchment.__version__, "federation": federation, "signature": signature, **fields}
        return self.device.answer("hello", told, b"")[0]

    def ask(
        self, round: int = 1, handler: str = "local_training", key: str = "0-1", **fields: Any
    ) -> tuple[Any, bytes]:
        world = Experiment.from_toml(experiment()).build_world(own_division(self.policy.data, FORM, 0, 2))
        architecture = world.client_architecture(0)
        body = GlobalModel.of(architecture, architecture.facts.initial).pack()
        raw = Request(0, handler, round, 0, round, body).to_bytes()
        return self.device.answer("ask", {"federation": HONEST, "key": key, "part": 0, "parts": 1, **fields}, raw)

    def refusals(self) -> list[str]:
        return [entry["why"] for entry in read_log(self.policy.state, REFUSED)]

    def serves_the_honest_run(self, key: str = "0-9") -> None:
        assert self.hello() == {"client": 0, "samples": SAMPLES}
        said, raw = self.ask(key=key)
        assert said == {"client": 0, "parts": 1}
        assert set(Response.from_bytes(raw).body.scalars) == {"buffers", "samples", "loss"}


def limited(policy: Policy, **limits: float) -> Policy:
    """The policy with other budgets."""
    return dataclasses.replace(policy, limits=dataclasses.replace(policy.limits, **limits))


def dealt(**data: Any) -> str:
    """The experiment with data that are dealt."""
    return experiment(data={"name": "digits", "clients": 2, **data})
