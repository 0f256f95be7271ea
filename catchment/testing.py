"""For tests of your own methods, models and codecs: the checks that those of Catchment go through, in some seconds.

    from catchment.testing import check_method

    def test_mine():
        check_method("mine:Mine")

Each check raises AssertionError with one sentence.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from catchment import launch, models
from catchment.codecs import Codecs
from catchment.config.experiment import Experiment
from catchment.config.objects import named
from catchment.config.toml import merged
from catchment.core.method import Method
from catchment.exchange.message import Message
from catchment.planning.plan import plan
from catchment.randomness import torch_generator
from catchment.simulation import work_queue

SMALL: dict[str, Any] = {
    "rounds": 3,
    "data": {"name": "digits", "clients": 4, "train": 80, "test": 40},
    "models": {"client": "cnn"},
    "optimizer": {"client": {"name": "adam", "lr": 0.005}},
}
TROUBLE: dict[str, Any] = {
    "devices": {"profile": ["phone", "slow-phone"]},
    "faults": {"drop": 0.15, "crash": 0.15, "delay": 0.2, "delay_seconds": 5.0},
}
NEWS = ("joined", "left", "restarted", "resumed")  # events of who came and went
BLAMED = ("failed", "refused", "suspended", "undone")  # events of replies or clients that are wrong


def check_method(method: str | Method[Any] | Experiment, *, flower: bool = False, **settings: Any) -> dict[str, Any]:
    """Check a method: the same results however it is run, the bytes of its plan, finite numbers, nobody blamed.

    It runs on a few digits with one worker; with three in strict mode, which serialises every message and every client
    state; stopped after every round and resumed; and on phones that lose messages, with one worker and with three. With
    `flower=True` it runs over Flower too, in some processes more, if it waits for its clients. `settings` are tables of
    an experiment file, such as `models={"client": "mine:net"}` or `path`, the folder of the module. An experiment is
    checked as it is. Returns the result of the first run.
    """
    experiment = method if isinstance(method, Experiment) else _small(method, settings)
    experiment = dataclasses.replace(experiment, engine="inprocess", workers=1, strict=False)
    troubled = Experiment.from_dict(merged(experiment.to_dict(), TROUBLE))
    with TemporaryDirectory() as place:
        folder = Path(place)
        whole = _well(experiment, folder / "whole", "with one worker")
        _equal(whole, _wide(experiment, folder / "wide"), "with three workers in strict mode")
        _equal(whole, lived(experiment, folder / "stopped", stops=True), "stopped after every round and resumed")
        _planned(experiment, whole)
        lossy = _well(troubled, folder / "troubled", "with messages that are lost")
        _equal(lossy, _wide(troubled, folder / "wide-troubled"), "with messages that are lost and three workers")
        if flower:
            there = lived(dataclasses.replace(experiment, engine="flower"), folder / "flower")
            _equal(whole.less_news(), there.less_news(), "over Flower")
    return whole.result


def check_model(
    model: str | Callable[..., nn.Module], shape: tuple[int, int, int] = (1, 8, 8), classes: int = 10, path: str = "."
) -> None:
    """Check a model of images: outputs, gradients, images by themselves, the same first weights from the same seed."""
    text = str(Experiment.of(models={"client": model}, path=path).models.client)
    made, images = models.build(text, shape, classes, 0), torch.randn(4, *shape, generator=torch_generator(0, "images"))
    again = models.build(text, shape, classes, 0).state_dict()
    unequal = [key for key, tensor in made.state_dict().items() if not torch.equal(tensor, again[key])]
    assert not unequal, f"{text}: first weights differ from one time to the next, such as {unequal[0]}"
    outputs = made(images)
    assert outputs.shape == (4, classes), f"{text}: outputs are {list(outputs.shape)}; [4, {classes}] is expected"
    assert outputs.requires_grad, f"{text}: nothing in it can be trained"
    outputs.sum().backward()
    for key, parameter in made.named_parameters():
        bad = parameter.grad is not None and not bool(parameter.grad.isfinite().all())
        assert not bad, f"{text}: the gradient of {key} is not finite"
    made.eval()
    with torch.no_grad():
        outputs = made(images)
        assert bool(outputs.isfinite().all()), f"{text}: outputs are not finite"
        assert torch.equal(outputs, made(images)), f"{text}: outputs differ from one time to the next in eval mode"
        halves = torch.cat([made(half) for half in torch.split(images, 2)])
        near = torch.allclose(halves, outputs, rtol=1e-4, atol=1e-5)
        assert near, f"{text}: the output of an image depends on the others of its batch in eval mode"


def check_stage(stage: str, path: str = ".") -> None:
    """Check a stage of a codec, named as in `wire.codecs`: forms, sizes, and no number lost without `loses`."""
    codecs = Codecs.parse(Experiment.of(wire={"codecs": [f"x={stage}"]}, path=path).wire.codecs)
    loses = any(part.loses for rule in codecs.rules for part in rule.chain.stages)
    draw = torch_generator(0, "numbers")
    for tensor in (
        torch.randn(1000, generator=draw), torch.randn(7, 3, 5, 5, generator=draw), torch.zeros(100),
        torch.randn(1, generator=draw), torch.tensor(2.5), torch.zeros(0, 4), torch.full((64,), 1e30),
    ):  # fmt: skip
        message, base = Message({"x": tensor}), Message({"x": torch.ones_like(tensor)})
        sent, again = (codecs.encode(message, "up", {}, base=base)[0].to_bytes() for _ in range(2))
        what = f"{stage}: a tensor of shape {list(tensor.shape)}"
        assert sent == again, f"{what} is coded in another way each time"
        came = codecs.decode(Message.from_bytes(sent)[0], "up", base=base).tensors["x"]
        assert (came.dtype, came.shape) == (tensor.dtype, tensor.shape), f"{what} comes back as {_form(came)}"
        assert bool(came.isfinite().all()), f"{what} comes back with NaN or infinity"
        assert loses or torch.equal(came, tensor), f"{what} comes back with other numbers; say loses = True"


# ---- runs, and what they leave ----------------------------------------------------------------------------------


@dataclass
class Outcome:
    """All that a run leaves in its directory, less wall times."""

    error: Exception | None
    result: dict[str, Any]
    rounds: list[dict[str, Any]]
    ledger: list[dict[str, Any]]

    @property
    def said(self) -> str:
        """The error in words; "" without one."""
        return "" if self.error is None else f"{type(self.error).__name__}: {self.error}"

    @property
    def events(self) -> list[dict[str, Any]]:
        """Of all rounds."""
        return [event for record in self.rounds for event in record["events"]]

    @classmethod
    def of(cls, out: Path, error: Exception | None = None) -> Outcome:
        """Read what is there."""

        def records(name: str) -> list[dict[str, Any]]:
            path = out / name
            return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

        found, path = cls(error, {}, records("rounds.jsonl"), records("ledger.jsonl")), out / "result.json"
        if path.exists():
            found.result = json.loads(path.read_text())
        for record in (found.result, *found.rounds):
            for key in ("seconds", "spent"):
                record.pop(key, None)
        return found

    def less_news(self) -> Outcome:
        """Without what differs over a network: times, who came, went and was greeted, and measured memory."""
        result = {key: value for key, value in self.result.items() if key != "virtual_seconds"}
        if result:
            result["costs"] = {key: value for key, value in result["costs"].items() if key != "peak_memory"}
        rounds = [
            {**record, "virtual_seconds": 0.0, "events": [e for e in record["events"] if e["what"] not in NEWS]}
            for record in self.rounds
        ]
        ledger = [
            {**record, "entries": [entry for entry in record["entries"] if entry["purpose"] != "greeting"]}
            for record in self.ledger
        ]
        return Outcome(self.error, result, rounds, ledger)


class _Stopped(Exception):
    """Raised to stop a run."""


def lived(experiment: Experiment, out: Path, *, stops: bool = False) -> Outcome:
    """A run to its end, in one life or stopped once after every round."""
    done: set[int] = set()

    def observe(record: dict[str, Any]) -> None:
        if stops and record["round"] not in done:
            done.add(record["round"])
            raise _Stopped

    error: Exception | None = None
    for life in range(experiment.rounds + 2):
        try:
            if life:
                launch.resume(out, observe=observe)
            else:
                launch.run(experiment, out, observe=observe)
        except _Stopped:
            continue
        except Exception as raised:
            error = raised
        break
    return Outcome.of(out, error)


def difference(one: Outcome, other: Outcome) -> str:
    """Where one run is not as the other; "" if all is equal."""
    if one.said != other.said:
        return f"{other.said or 'it ends well'}, and not {one.said or 'well'}"
    for what in ("result", "rounds", "ledger"):
        if found := next(_differences(getattr(one, what), getattr(other, what)), ""):
            return f"{what} differs: {found}"
    return ""


def not_finite(life: Outcome) -> str:
    """The first number of a run that is not finite; "" if all are."""
    places = {"result": life.result} | {f"round {record['round']}": record for record in life.rounds}
    return next((f"{place} has {found}" for place, value in places.items() for found in _strange(value)), "")


def _strange(value: Any, where: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key not in ("events", "attack"):  # words
                yield from _strange(item, f"{where} {key}")
    elif isinstance(value, list):
        for item in value:
            yield from _strange(item, where)
    elif (isinstance(value, float) and not math.isfinite(value)) or value in ("nan", "inf", "-inf"):
        yield f"{value} as{where}"


def _differences(one: Any, two: Any, where: str = "") -> Iterator[str]:
    if isinstance(one, dict) and isinstance(two, dict):
        for key in one.keys() | two.keys():
            yield from _differences(one.get(key), two.get(key), f"{where} {key}".strip())
    elif isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        for number, (first, second) in enumerate(zip(one, two)):
            yield from _differences(first, second, f"{where} {number}".strip())
    elif one != two:
        yield f"{where} is {str(two)[:80]}, not {str(one)[:80]}"


def _small(method: str | Method[Any], settings: Mapping[str, Any]) -> Experiment:
    given = {"method": {"name": method} if isinstance(method, str) else method, **settings}
    return Experiment.from_dict(merged(SMALL, named(given)))


def _well(experiment: Experiment, out: Path, how: str) -> Outcome:
    """A run that ends, with finite numbers, and blames nobody."""
    life = lived(experiment, out)
    if life.error is not None:
        raise AssertionError(f"{how}: the run ends with {life.said}") from life.error
    assert not (found := not_finite(life)), f"{how}: {found}"
    for event in life.events:
        blamed = event["what"] in BLAMED
        assert not blamed, f"{how}: client {event['client']} is {event['what']}: {event['why']}"
    return life


def _wide(experiment: Experiment, out: Path) -> Outcome:
    with patch.object(work_queue, "SHORT", 0.0):  # else short work stays with one thread
        return lived(dataclasses.replace(experiment, workers=3, strict=True), out)


def _equal(one: Outcome, other: Outcome, how: str) -> None:
    found = difference(one, other)
    assert not found, f"{how}: {found}"


def _planned(experiment: Experiment, life: Outcome) -> None:
    planned, sent = plan(experiment, measure=False), life.result["bytes"]
    for way in ("up", "down"):
        amount = getattr(planned, way)
        fits = amount.low <= sent[way] <= amount.high
        assert fits, f"{sent[way]} bytes went {way}; planned were {amount.low} to {amount.high}"


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {list(tensor.shape)}"
