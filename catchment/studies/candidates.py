"""What `catchment plan --advise --try` may try: methods that fit, what each costs, and how large a trial is."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from catchment.config.experiment import Experiment
from catchment.config.settings import CheckpointSettings, PublicSettings
from catchment.data.partition import DIRICHLET_MINIMUM
from catchment.files import private_directories, write_atomically
from catchment.launch import run
from catchment.planning.advice import BASELINES, Advised, advise, with_method
from catchment.privacy.inversion import ProbeSettings
from catchment.reading import read_json
from catchment.runs.journal import file_bytes, to_dict
from catchment.studies.identity import digest

LEAST_SAMPLES, LEAST_EACH, LEAST_ROUNDS = 200, 50, 4  # in all and for each client: trials are not made smaller
VALIDATION = 200  # samples at least, if that is at most a fifth of all
TEST = 200  # samples at most: they decide nothing
PLANNING = 0.5  # seconds for the walk of one method


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A method, and what it costs in the experiment as it is; or why it is not tried."""

    method: str
    why_not: str = ""
    work: int = 0  # MACs of all devices and the server in all rounds
    macs: int = 0  # the most of one device in a round
    up: int = 0  # bytes of all devices in all rounds, at most
    down: int = 0
    leaves: list[str] = dataclasses.field(default_factory=list, hash=False)  # kinds of knowledge

    @property
    def baseline(self) -> bool:
        """Whether it is there to compare with, not to choose."""
        return self.method in BASELINES


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is found out once, before any trial."""

    candidates: list[Candidate]  # in the order in which they are tried: by what our studies found
    train: int = 0  # samples of the data set
    test: int = 0
    start: float = 0.0  # seconds until the first round of a trial
    pace: float = 0.0  # seconds for a MAC


class Size(NamedTuple):
    """How large trials are."""

    samples: int  # of the training data, public ones among them
    validation: int  # others, on which accuracies are measured
    rounds: int
    share: float  # of the samples that could be trained on

    @property
    def rungs(self) -> tuple[int, ...]:
        """The rounds after which trials are compared: a quarter, half, all."""
        return tuple(dict.fromkeys(math.ceil(self.rounds / part) for part in (4, 2, 1)))


def sizes(experiment: Experiment, train: int) -> list[Size]:
    """All sizes, from the whole experiment down: what is farther from its least is halved."""

    def size(samples: int, rounds: int) -> Size:
        return Size(samples, max(samples // 4, min(VALIDATION, train // 5)), rounds, samples / whole)

    whole = train - train // 5
    least = min(whole, max(LEAST_SAMPLES, LEAST_EACH * experiment.data.clients))
    shortest = min(experiment.rounds, LEAST_ROUNDS)
    samples, rounds = whole, experiment.rounds
    found = [size(samples, rounds)]
    while (samples, rounds) != (least, shortest):
        if samples / least >= rounds / shortest:
            samples = max(samples // 2, least)
        else:
            rounds = max(math.ceil(rounds / 2), shortest)
        found.append(size(samples, rounds))
    return found


def part_of(experiment: Experiment, method: str, rate: float, size: Size, test: int) -> Experiment:
    """The experiment with another method and learning rate, a part of its data and rounds, and validation samples."""
    made = with_method(experiment, method)
    public = made.data.public
    if isinstance(public, PublicSettings):
        public = dataclasses.replace(public, train=min(public.train or size.samples, size.samples))
    drawn = size.samples + size.validation
    data = dataclasses.replace(
        made.data, train=drawn, validation=size.validation / drawn, test=min(test, TEST), public=public,
        partition=_smaller(made.data.partition, size.share),
    )  # fmt: skip
    client = dataclasses.replace(made.optimizer.client, lr=rate)
    return dataclasses.replace(
        made,
        rounds=size.rounds,
        engine="inprocess",
        data=data,
        optimizer=dataclasses.replace(made.optimizer, client=client),
        evaluation=dataclasses.replace(made.evaluation, every=size.rounds),  # of test samples
        checkpoint=CheckpointSettings(),
        probe=ProbeSettings(),
    )


def _smaller(partition: dict[str, Any], share: float) -> dict[str, Any]:
    """The partition of a part of the data: what it says in samples shrinks."""
    if partition["name"] == "table":
        return {**partition, "scale": True}
    if partition["name"] == "dirichlet" and share < 1:
        return {**partition, "minimum": int(share * partition.get("minimum", DIRICHLET_MINIMUM))}
    return partition


def find_facts(experiment: Experiment, folder: Path, clock: Callable[[], float] = time.monotonic) -> Facts:
    """Plan every method and measure the speed of this machine; what the folder has of this experiment is read."""
    path = folder / f"{digest(experiment)}.json"
    if path.exists():
        return read_json(Facts, file_bytes(path), str(path))
    facts = Facts(candidates=[_candidate(one) for one in advise(experiment, PLANNING).methods])
    if fitting := sorted((one for one in facts.candidates if not one.why_not), key=lambda one: one.work):
        facts = _measured(experiment, facts, fitting[len(fitting) // 2], clock)
    private_directories(folder)
    write_atomically(path, (json.dumps(to_dict(facts), indent=1) + "\n").encode())
    return facts


def _candidate(one: Advised) -> Candidate:
    if one.plan is None or not one.fits:
        return Candidate(method=one.method, why_not=one.why_not)
    found = one.plan
    return Candidate(
        method=one.method,
        work=found.work,
        macs=max(kind.macs for kind in found.devices),
        up=found.up.high,
        down=found.down.high,
        leaves=list(found.leaves),
    )


def _measured(experiment: Experiment, facts: Facts, one: Candidate, clock: Callable[[], float]) -> Facts:
    """With the sizes of the data, and the speed of a few rounds of one method."""
    dataset = experiment.divide().dataset
    train, test = len(dataset.train), len(dataset.test)
    size = sizes(experiment, train)[-1]
    short = part_of(experiment, one.method, experiment.optimizer.client.lr, size._replace(rounds=1), test)
    run(short)  # the first run of a process is slower
    times = [clock()]
    run(dataclasses.replace(short, rounds=3), observe=lambda record: times.append(clock()))
    began, first, *_, last = times
    each = (last - first) / 2
    work = one.work * (size.samples / train) / experiment.rounds
    return dataclasses.replace(
        facts, train=train, test=test, start=max(0.0, first - began - each), pace=each / max(1.0, work)
    )
