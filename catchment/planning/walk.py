"""A walk through an experiment: every round, every message, every decision of the method, and no training.

The run itself is done, with the method's own code, on its engine, with its clock, faults and codecs; only modules do no
work (`hollow`). So messages have the sizes, and clients the turns, that they will have, for any method: nothing is
declared twice. Where sizes depend on values, two walks tell: in a quiet one all outputs are equal and all predictions
right, in a loud one all outputs differ, all predictions are wrong and no codec finds anything to compress.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from catchment.codecs import Codecs
from catchment.codecs.chain import Chain
from catchment.codecs.stage import Form, Stage
from catchment.config.experiment import Experiment
from catchment.core.transport import Snapshot, Transport
from catchment.core.world import World
from catchment.data import Division, Samples
from catchment.exchange.request import Request, Response
from catchment.learning.parallel import Together, sharing
from catchment.planning.hollow import Values, hollow
from catchment.privacy.inversion import ProbeSettings
from catchment.robust.inspection import Inspection
from catchment.runs.loop import run_rounds
from catchment.runs.rehearsal import PeakMemory, counting, uncounted
from catchment.tasks import CLASSIFICATION

COUNTED = 160  # bytes of header that a stage may add for one tensor: names, counts, one more part


class Exchange(NamedTuple):
    """A request and its reply."""

    client: int
    round: int
    handler: str
    down: int  # bytes
    up: int
    macs: int
    seconds: float  # on the client's device


class RoundBytes(NamedTuple):
    """What is sent in one round, in bytes."""

    up: int
    down: int
    evaluation: int


@dataclass
class Walk:
    """What a run does, round by round."""

    rounds: list[RoundBytes] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)  # of training
    server_macs: int = 0
    virtual_seconds: float = 0.0
    firsts: dict[tuple[str, str], Request] = field(default_factory=dict)  # by handler and model

    def total(self, direction: str) -> int:
        """The bytes of all rounds."""
        return sum(getattr(record, direction) for record in self.rounds)


class _Enough(Exception):
    """There is no time for more rounds."""


def walk(
    experiment: Experiment,
    world: World,
    values: Values = "quiet",
    *,
    seconds: float = math.inf,
    rounds: float = math.inf,
    memory: PeakMemory | None = None,
) -> Walk:
    """Walk through an experiment, at least one round, for as many seconds and rounds as are given.

    `memory` counts that of the server.
    """
    experiment = _alone(experiment)
    codecs, label = world.codecs, 0
    if values == "loud":
        codecs, label = _of_fixed_size(world.codecs), min(1, world.classes - 1)
    margin: dict[str, int] = {
        direction: COUNTED
        for before, after in zip(world.codecs.rules, codecs.rules)
        for direction in ((before.direction,) if before.direction else ("up", "down"))
        if before != after
    }
    world = dataclasses.replace(world, codecs=codecs, data=_relabelled(world.data, label))
    world.check_models()  # finds the facts about models, by their work
    found, until = Walk(), time.monotonic() + seconds
    with hollow(values) as modules, memory or nullcontext():
        transport = _Onlooker(experiment, world, found, margin)

        def observe(record: dict[str, Any]) -> None:
            sent = record["bytes"]
            found.rounds.append(RoundBytes(**{key: sent[key] + transport.margins.pop(key, 0) for key in sent}))
            found.virtual_seconds = record["virtual_seconds"]
            if time.monotonic() > until or len(found.rounds) >= rounds:
                raise _Enough

        with suppress(_Enough):
            run_rounds(experiment, world, transport, None, observe)
    found.server_macs = modules.macs
    return found


def steps_alone(experiment: Experiment, world: World) -> dict[str, str]:
    """The losses that the server minimises in the first round: why rank 0 does it alone, or nothing if all ranks do."""
    with sharing(Together()) as noted:
        walk(experiment, world, rounds=1)
    return noted.alone


def real(experiment: Experiment, world: World) -> Walk:
    """The same with all work done: what was sent, for worlds small enough to try."""
    found = Walk()
    experiment = _alone(experiment)
    run_rounds(
        experiment,
        world,
        _Onlooker(experiment, world, found, {}),
        None,
        lambda record: found.rounds.append(RoundBytes(**record["bytes"])),
    )
    return found


def _alone(experiment: Experiment) -> Experiment:
    """Without what looks at values and changes nothing that is sent: attacks, inspection, probes, worker threads."""
    return dataclasses.replace(
        experiment,
        engine="inprocess",
        workers=1,
        attack={"name": "none"},
        inspection=Inspection(),
        probe=ProbeSettings(),
    )


def _of_fixed_size(codecs: Codecs) -> Codecs:
    """The rules without stages that make of a tensor what its values allow; without them nothing gets smaller."""

    def depends(stage: Stage) -> bool:
        before = {"values": Form(torch.float32, (4,))}
        return stage.counts(before) or any(form.shape is None for form in stage.layout(before, 1).values())

    chains = [Chain(*(stage for stage in rule.chain.stages if not depends(stage))) for rule in codecs.rules]
    return Codecs(tuple(dataclasses.replace(rule, chain=chain) for rule, chain in zip(codecs.rules, chains)))


def _relabelled(division: Division, label: int) -> Division:
    """The same samples, all of one class, where labels are classes."""
    if division.dataset.task is not CLASSIFICATION:
        return division

    def relabelled(samples: Samples | None) -> Any:
        if samples is None:
            return None
        return dataclasses.replace(samples, labels=torch.where(samples.labels < 0, samples.labels, label))

    parts = ("test", "public", "public_test", "validation")
    dataset = dataclasses.replace(
        division.dataset, train=relabelled(division.dataset.train), test=relabelled(division.dataset.test)
    )
    return dataclasses.replace(
        division, dataset=dataset, **{name: relabelled(getattr(division, name)) for name in parts}
    )


class _Onlooker(Transport):
    """The in-process engine, and a note of every message. Where memory is counted, it is that of the server alone."""

    def __init__(self, experiment: Experiment, world: World, found: Walk, margin: Mapping[str, int]) -> None:
        self._inner = experiment.build_transport(world)
        self._devices = experiment.devices.chosen()
        self._world = world
        self._found = found
        self._asked: dict[tuple[int, int, bool], Request] = {}
        self._margin = margin
        self.margins: Counter[str] = Counter()  # bytes of this round that codecs may add, by direction

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return self._inner.now

    def roster(self, round: int) -> Sequence[int]:
        """Who can be reached."""
        return self._inner.roster(round)

    def push(self, requests: Sequence[Request]) -> None:
        """Note requests of training and pass all on."""
        for request in requests:
            self._asked[request.client, request.sequence, request.aside] = request
            if not request.aside:
                model = self._world.client_architecture(request.client).name
                self._found.firsts.setdefault((request.handler, model), request)
                self.margins["down"] += self._margin.get("down", 0) * len(request.body.tensors)
        with uncounted():
            self._inner.push(requests)

    def pull(self, until: float) -> Response | None:
        """The next response."""
        with uncounted():
            response = self._inner.pull(until)
        if response is None:
            return None
        if (memory := counting()) is not None and response.body is not None:
            for tensor in response.body.tensors.values():
                memory.hold(tensor)
        request = self._asked.pop((response.client, response.sequence, response.aside))
        if not response.aside:
            device = self._devices[request.client % len(self._devices)]
            down, up = request.size(), response.size()
            took = device.seconds(down, response.macs, up)
            self.margins["up"] += self._margin.get("up", 0) * len(response.body.tensors if response.body else ())
            self._found.exchanges.append(
                Exchange(request.client, request.round, request.handler, down, up, response.macs, took)
            )
        return response

    def snapshot(self, before: Callable[[int], int]) -> Snapshot:
        """Of the engine."""
        return self._inner.snapshot(before)

    def restore(self, snapshot: Snapshot) -> None:
        """Of the engine."""
        self._inner.restore(snapshot)

    def close(self) -> None:
        """Of the engine."""
        self._inner.close()
