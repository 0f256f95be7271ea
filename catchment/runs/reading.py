"""A run's directory as it was left, read and checked, so that a report can rely on its form."""

from __future__ import annotations

import json
import tomllib
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from catchment.errors import UserError
from catchment.reading import read_json
from catchment.runs.journal import Lines, file_bytes
from catchment.runs.records import (
    AttackRecord,
    Bytes,
    LedgerRound,
    Plan,
    Result,
    Round,
    best_of,
    total_spent,
)

BEFORE = Round(round=0, bytes=Bytes(up=0, down=0, evaluation=0), seconds=0.0, virtual_seconds=0.0, events=[])
PNG = b"\x89PNG\r\n\x1a\n"  # what such a file begins with


class Point(NamedTuple):
    """An accuracy, and what training had moved by then."""

    moved: int  # bytes, up and down
    accuracy: float  # the clients' mean if known
    up: int  # bytes


def number_of(record: Round | Result, name: str) -> float | None:
    """`"accuracy"` or another share; None if it is not known."""
    return record.accuracy if name == "accuracy" else record.scores.get(name)


def shown_headline(record: Round | Result, headline: str) -> str:
    """The headline, or `"accuracy"` where that was not measured."""
    return "accuracy" if number_of(record, headline) is None else headline


@dataclass(frozen=True)
class RunFiles:
    """The files of one run, finished or not."""

    directory: Path
    toml: str  # of the experiment, as it was written
    plan: Plan
    rounds: list[Round]
    ledger: Lines[LedgerRound]  # read anew whenever it is gone through
    result: Result | None  # None if the run is not finished
    images: dict[str, bytes] = field(default_factory=dict)  # PNG files of the last evaluation, by name

    @staticmethod
    def read(directory: str | Path) -> RunFiles:
        """Read a run's directory; what is no run, or is damaged, is refused with one sentence."""
        directory = Path(directory)
        toml, plan = _toml(directory)
        file = directory / "result.json"
        result = read_json(Result, file_bytes(file), str(file)) if file.exists() else None
        rounds = list(Lines(directory / "rounds.jsonl", Round, may_be_torn=result is None))
        ledger = Lines(directory / "ledger.jsonl", LedgerRound, may_be_torn=result is None)
        deque(ledger, maxlen=0)  # a damaged line is found now
        return RunFiles(directory, toml, plan, rounds, ledger, result, _images(directory / "images"))

    @property
    def name(self) -> str:
        """The name of the experiment."""
        return self.plan.name

    @property
    def method(self) -> str:
        """The name of the method."""
        return self.plan.method.name

    @property
    def headline(self) -> str:
        """The number that is shown first."""
        return "accuracy" if self.plan.evaluation is None else self.plan.evaluation.headline

    def number(self, name: str, record: Round | Result | None = None) -> float | None:
        """`"accuracy"` or another share of a round, or of the outcome; None if it is not known."""
        return number_of(self.outcome if record is None else record, name)

    @property
    def planned(self) -> int:
        """How many rounds the experiment asks for."""
        return self.plan.rounds

    @property
    def done(self) -> int:
        """How many rounds are finished."""
        return self.planned if self.result is not None else len(self.rounds)

    @property
    def unfinished(self) -> str:
        """`"unfinished: 3 of 8 rounds"`; empty for a finished run."""
        return "" if self.result is not None else f"unfinished: {self.done} of {self.planned} rounds"

    @property
    def attack(self) -> AttackRecord | None:
        """Who lied and how; None if nobody did, or the run is not finished."""
        return None if self.result is None else self.result.attack

    @property
    def aggregation(self) -> str:
        """The name of the aggregation."""
        return "mean" if self.plan.aggregation is None else self.plan.aggregation.name

    @cached_property
    def flags(self) -> dict[int, list[tuple[int, str]]]:
        """By client: the rounds in which it was flagged, and why at first."""
        found: dict[int, dict[int, str]] = {}
        for record in self.rounds:
            for event in record.events:
                if event.what == "flagged" and event.client is not None:
                    found.setdefault(event.client, {}).setdefault(record.round, event.why)
        return {client: list(rounds.items()) for client, rounds in sorted(found.items())}

    def self_reported(self, number: str) -> bool:
        """Whether `"accuracy"` or `"clients"` is what clients say of themselves, and the server did not measure."""
        return number in self.outcome.self_reported

    @cached_property
    def evaluated(self) -> list[Round]:
        """The rounds after which accuracy was measured."""
        return [record for record in self.rounds if record.accuracy is not None]

    @cached_property
    def accuracies(self) -> list[float]:
        """The accuracy after each evaluated round."""
        return [record.accuracy for record in self.rounds if record.accuracy is not None]

    @cached_property
    def curve(self) -> list[Point]:
        """A point for each evaluated round."""
        points, up, down = [], 0, 0
        for record in self.rounds:
            up, down = up + record.bytes.up, down + record.bytes.down
            if record.accuracy is not None:
                accuracy = record.accuracy if record.clients is None else record.clients.accuracy.mean
                points.append(Point(up + down, accuracy, up))
        return points

    def bytes_to_reach(self, accuracy: float) -> int | None:
        """ComU@x of DS-FL and FedGEMS: what training moved until an accuracy was first reached; None if it was not."""
        return next((point.moved for point in self.curve if point.accuracy >= accuracy), None)

    @cached_property
    def outcome(self) -> Result:
        """The result; of an unfinished run, what is known of it so far."""
        if self.result is not None:
            return self.result
        last = self.evaluated[-1] if self.evaluated else BEFORE
        events = Counter(event.what for record in self.rounds for event in record.events)
        return Result(
            name=self.name,
            method=self.method,
            options=self.plan.method.options,
            accuracy=last.accuracy,
            best=best_of(self.rounds),
            scores=last.scores,
            recall=last.recall,
            confusion=last.confusion,
            server=last.server,
            clients=last.clients,
            models=last.models,
            by_client=last.by_client,
            more=last.more,
            self_reported=last.self_reported,
            rounds=len(self.rounds),
            bytes=Bytes(
                up=sum(record.bytes.up for record in self.rounds),
                down=sum(record.bytes.down for record in self.rounds),
                evaluation=sum(record.bytes.evaluation for record in self.rounds),
            ),
            seconds=sum(record.seconds for record in self.rounds),
            spent=total_spent(self.rounds),
            virtual_seconds=self.rounds[-1].virtual_seconds if self.rounds else 0.0,
            lost=events["lost"],
            late=events["late"],
            failed=events["failed"],
            refused=events["refused"],
        )


def read_plan(directory: Path) -> Plan:
    """What the experiment of a run asks for."""
    return _toml(directory)[1]


def _toml(directory: Path) -> tuple[str, Plan]:
    path = directory / "experiment.toml"
    if not path.is_file():
        raise UserError(f"{directory} holds no run (it has no experiment.toml)")
    try:
        toml = file_bytes(path).decode()
        table = tomllib.loads(toml)
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from None
    return toml, read_json(Plan, json.dumps(table, default=str), str(path))


def labels(runs: Sequence[RunFiles]) -> list[str]:
    """A name for every run that no other of them has: where names are equal, directories tell them apart."""
    names = Counter(run.name for run in runs)
    found = [run.name if names[run.name] == 1 else _with_directory(run) for run in runs]
    again = Counter(found)
    return [label if again[label] == 1 else f"{label} #{number}" for number, label in enumerate(found, start=1)]


def _with_directory(run: RunFiles) -> str:
    directory = run.directory.resolve().name
    return directory if directory.startswith(run.name) else f"{run.name} ({directory})"


def _images(directory: Path) -> dict[str, bytes]:
    """The pictures that a method left."""
    images = {path.stem: file_bytes(path) for path in sorted(directory.glob("*.png"))}
    for name, image in images.items():
        if not image.startswith(PNG):
            raise UserError(f"{directory / name}.png is damaged: it is not a PNG file")
    return images
