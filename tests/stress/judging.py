"""What must hold of every experiment that `check` lets through, and what did not.

An experiment is run with one worker; with three, strict; and stopped after every round and resumed; perhaps by two
ranks. What these leave must be equal to the last byte. An error must be one that `check` cannot know of, nobody may be
blamed for what nobody did, every number must be finite, and the bytes must be those of the plan.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from unittest.mock import patch

import tomli_w
import torch
import torch.nn.functional as F
from combining import MISTAKEN, PLANTED, SANE, Trial
from jobs import surroundings
from spoiling import peak_memory, reset_peak
from worlds import HERE

from catchment import Experiment
from catchment.codecs.rules import Rule, parse_rule
from catchment.core.method import contract, handlers
from catchment.core.world import World
from catchment.errors import RunError, UserError
from catchment.exchange.payload import fields_of
from catchment.learning.averaging import WeightedMean
from catchment.planning.plan import plan
from catchment.simulation import work_queue
from catchment.testing import Outcome, difference, lived, not_finite

MOST_MEMORY = 256e6  # bytes by which an experiment may grow the process
NEAR = 0.2  # FedAvg's accuracy below that of a plain loop over the same clients
RANKED = 120  # seconds for two ranks
WIDE = [sys.executable, "-c", "from catchment.simulation import work_queue; work_queue.SHORT = 0.0\n"
        "from catchment.cli import main; main()"]  # fmt: skip


@dataclass
class Verdict:
    """What became of an experiment."""

    outcome: str  # "refused", "ran", or "ended" with an error as it should
    why: str = ""  # it was refused, or ended
    runs: int = 0
    findings: list[str] = field(default_factory=list)
    traces: list[str] = field(default_factory=list)


def judged(trial: Trial, folder: Path) -> Verdict:
    """Try an experiment in every way."""
    table = trial.table
    try:
        experiment = Experiment.from_dict({**table, "workers": 1, "path": HERE})
        world = experiment.build_world()
    except UserError as error:
        return Verdict("refused", str(error))
    except Exception as error:
        found = f"check raises {type(error).__name__}: {error}"
        return Verdict("ran", findings=[found], traces=[traceback.format_exc()])
    reset_peak()
    before = peak_memory()
    whole = lived(experiment, folder / "whole")
    verdict = Verdict("ended" if whole.error else "ran", whole.said, runs=1)
    findings = verdict.findings
    if whole.error is not None:
        verdict.traces.append("".join(traceback.format_exception(whole.error)))
    findings += _of_error(table, whole)
    findings += _of_blame(table, whole)
    findings += _of_numbers(whole)
    findings += _of_codecs(experiment, world, whole)
    if (grown := peak_memory() - before) > MOST_MEMORY:
        findings.append(f"memory: it grows by {grown / 1e6:.0f} MB")
    with patch.object(work_queue, "SHORT", 0.0):  # else short work stays with one thread
        wide = lived(dataclasses.replace(experiment, workers=3, strict=True), folder / "wide")
    findings += _of_difference("3 workers, strict", whole, wide)
    findings += _of_difference("stopped and resumed", whole, lived(experiment, folder / "broken", stops=True))
    verdict.runs += 2
    if whole.error is None:
        findings += _of_plan(table, experiment, whole, verdict.traces)
        if table["name"] == SANE:
            findings += _of_accuracy(experiment, world, whole)
    if trial.ranks:
        verdict.runs += 1
        findings += _of_ranks(experiment, whole, folder / "ranks")
    return verdict


def _tensors(life: Outcome, direction: str) -> Iterator[tuple[str, list[int]]]:
    """Tensors of training as the ledger has them, and whose they are."""
    for entry in (entry for record in life.ledger for entry in record["entries"]):
        if (entry["direction"], entry["purpose"]) == (direction, "training"):
            yield from ((name, entry["clients"]) for name in entry["tensors"])


# ---- what must hold ---------------------------------------------------------------------------------------------


def _of_error(table: Mapping[str, Any], life: Outcome) -> Iterator[str]:
    """A run ends with an error only if clients fail that are said to fail, or the author made a mistake."""
    if life.error is None or PLANTED in life.said:
        return
    troubled = _has(table, "attack") or "faults" in table or "deadline" in table.get("participation", {})
    if not (troubled and isinstance(life.error, RunError)):
        yield f"ends with {life.said}"


def _of_blame(table: Mapping[str, Any], life: Outcome) -> Iterator[str]:
    """Events are about what was asked for."""
    expected = {"attacked", "flagged"}
    faults = table.get("faults", {})
    if faults.get("drop") or faults.get("crash"):
        expected.add("lost")
    if "deadline" in table.get("participation", {}) and ("delay" in faults or "devices" in table):
        expected.add("late")
    if _has(table, "attack") or _has(table, "inspection"):
        expected |= {"refused", "failed", "suspended", "undone"}
    if table["name"] == MISTAKEN and table["method"].get("where", "handler") == "handler":
        expected.add("failed")
    seen: set[str] = set()
    for event in life.events:
        if event["what"] not in expected | seen:
            seen.add(event["what"])
            yield f"{event['what']}, client {event['client']}: {event['why']}"
    if table["method"]["name"] == "centralized" and life.result:
        heard = {client for _, clients in _tensors(life, "up") for client in clients}
        noted = {event["client"] for event in life.events}
        asked = {client for _, clients in _tensors(life, "down") for client in clients}
        if missing := sorted(asked - heard - noted):
            yield f"the data of clients {missing} never come, and no event says so"


def _of_numbers(life: Outcome) -> Iterator[str]:
    """All numbers are finite, but those of an attack."""
    if found := not_finite(life):
        yield found


def _of_codecs(experiment: Experiment, world: World, life: Outcome) -> Iterator[str]:
    """A rule is about a field of some message, and does what it says."""
    method = type(world.method)
    found = {"up": set[str](), "down": set[str]()}
    for handler in handlers(method):
        agreed = contract(method, handler)
        found["up"] |= {field.name for field in fields_of(agreed.reply)}
        found["down"] |= {field.name for field in fields_of(agreed.request)}
    coded = {
        way: {name.partition("/")[0].partition(":")[0] for name, _ in _tensors(life, way) if ":" in name}
        for way in found
    }
    sent = {way: {name.partition("/")[0] for name, _ in _tensors(life, way) if "/" in name} for way in found}
    rules = [parse_rule(text) for text in experiment.wire.codecs]
    for rule in rules:
        ways = (rule.direction,) if rule.direction else ("up", "down")
        numbers = len(rules) == 1 and any(stage.place == "precision" for stage in rule.chain.stages)
        if not any(_fits(rule, name) for way in ways for name in found[way]):
            yield f"codec rule {rule} is for no field, and nobody says so"
        elif numbers and any(rule.pattern in sent[way] - coded[way] for way in ways):
            yield f"codec rule {rule} changes nothing, and nobody says so"


def _fits(rule: Rule, name: str) -> bool:
    return fnmatchcase(name, rule.pattern) or fnmatchcase(f"{name}/any", rule.pattern)


def _of_difference(how: str, whole: Outcome, other: Outcome) -> Iterator[str]:
    """All that a run leaves is as in the undisturbed run."""
    if found := difference(whole, other):
        yield f"{how}: {found}"


def _of_plan(table: Mapping[str, Any], experiment: Experiment, life: Outcome, traces: list[str]) -> Iterator[str]:
    """Bytes are those of the plan, or within its range; not where a lie or a time that it cannot know decides."""
    if table["name"] == MISTAKEN or _has(table, "attack") or _has(table, "inspection"):
        return
    try:
        planned = plan(experiment, measure=False)
    except Exception as error:
        traces.append(traceback.format_exc())
        yield f"plan raises {type(error).__name__}: {error}"
        return
    exact = planned.up.exact and planned.down.exact
    if not exact and ("devices" in table or "faults" in table):
        return  # who comes when depends on sizes
    sent = life.result["bytes"]
    for way in ("up", "down"):
        amount = getattr(planned, way)
        if not amount.low <= sent[way] <= amount.high:
            yield f"plan: {sent[way]} bytes {way}, planned were {amount.low} to {amount.high}"
    if planned.evaluation != sent["evaluation"]:
        yield f"plan: {sent['evaluation']} bytes of evaluation, planned were {planned.evaluation}"


def _of_accuracy(experiment: Experiment, world: World, life: Outcome) -> Iterator[str]:
    """FedAvg learns what a plain loop learns."""
    plain = plain_fedavg(experiment, world)
    if life.result["accuracy"] < plain - NEAR:
        yield f"accuracy {life.result['accuracy']:.2f}, that of a plain loop is {plain:.2f}"


def plain_fedavg(experiment: Experiment, world: World) -> float:
    """The accuracy of FedAvg as a loop in PyTorch."""
    data, settings = world.data, world.client_optimizer
    draw = torch.Generator().manual_seed(0)
    model = world.client_architecture(0).build()
    weights = dict(world.client_architecture(0).facts.initial)
    for _ in range(experiment.rounds):
        mean = WeightedMean()
        for client in range(world.clients):
            own = data.client(client)
            model.load_state_dict(weights)
            optimizer = settings.build(model.parameters())
            for rows in torch.randperm(len(own), generator=draw).split(settings.batch_size):
                batch = own.select(rows)
                loss = F.cross_entropy(model(world.normalise(batch.images[batch.index])), batch.targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            mean.add({name: tensor.clone() for name, tensor in model.state_dict().items()}, len(own))
        weights = mean.value()
    model.load_state_dict(weights)
    with torch.no_grad():
        test = data.test
        outputs = model.eval()(world.normalise(test.images[test.index]))
    return float((outputs.argmax(1) == test.targets).float().mean())


def _of_ranks(experiment: Experiment, whole: Outcome, folder: Path) -> Iterator[str]:
    """Two ranks end a run, and as one process does unless they share the server's steps."""
    folder.mkdir()
    file, out = folder / "experiment.toml", folder / "run"
    file.write_text(tomli_w.dumps(experiment.to_dict()))
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    command = [*WIDE, "run", str(file), "--out", str(out)]
    with (folder / "said").open("wb") as said:
        ranks = [
            subprocess.Popen(command, env=os.environ | surroundings(rank, 2, port), stdout=said, stderr=said)
            for rank in range(2)
        ]
        try:
            codes = [rank.wait(RANKED) for rank in ranks]
        except subprocess.TimeoutExpired:
            yield f"2 ranks take more than {RANKED} s"
            return
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    life = Outcome.of(out)
    if (not life.result) is not (whole.error is not None):
        words = (folder / "said").read_text(errors="replace").split("\n")
        yield f"2 ranks: codes {codes}: {' '.join(words[-4:])[-300:]}"
    elif not experiment.data_parallel and whole.error is None:
        yield from _of_difference("2 ranks", whole, life)
    elif experiment.data_parallel:
        yield from (
            f"2 ranks: {event['what']}: {event['why']}" for event in life.events if event not in [*whole.events]
        )


def _has(table: Mapping[str, Any], key: str) -> bool:
    """Whether somebody lies, or uploads are looked at."""
    return table.get(key, {}).get("name" if key == "attack" else "action", "none") != "none"
