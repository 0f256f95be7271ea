"""What a run left in its directory, read and checked, so that the rest of the report can rely on its form."""

from __future__ import annotations

import json
import math
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from catchment.errors import UserError

Record = dict[str, Any]
PNG = b"\x89PNG\r\n\x1a\n"  # what such a file begins with

# The parts of the files that a report relies on. A key with "?" may be missing or null, `{str: kind}` is a table with
# any keys, `[kind]` a list, `{"a", "b"}` one of these words. Numbers are finite.
NUMBER = (int, float)
_SPREAD = {"accuracy": {"mean": NUMBER, "min": NUMBER, "max": NUMBER}}
_BY_MODEL = {str: {"accuracy": NUMBER}}
_MEASURED = {
    "server?": {"accuracy?": NUMBER},
    "clients?": _SPREAD,
    "models?": _BY_MODEL,
    "more?": dict,
    "self_reported?": [str],
}
_BYTES = {"up": int, "down": int, "evaluation": int}
_SPENT = {"bytes": _BYTES, "seconds": NUMBER, "virtual_seconds": NUMBER}
_MODELS = {str: {"parameters": int, "macs_per_sample": int}}
TROUBLES = ("lost", "late", "failed", "refused")  # what did not arrive as asked
NEWS = ("joined", "left", "forgot", "revoked", "restarted", "resumed", "undone", "suspended")  # of clients and rounds
_EVENT = {
    "what": {*TROUBLES, *NEWS, "attacked", "flagged"},
    "client?": int,
    "handler": str,
    "why": str,
    "numbers?": {str: NUMBER},
}
_ENTRY = {"direction": {"up", "down"}, "purpose": str, "clients": [int], "tensors": {str: int}}
EXPERIMENT = {"name": str, "rounds": int, "method": {"name": str}, "data": {"name": str, "clients": int}}
_LIKENESS = {"correlation": NUMBER, "psnr": NUMBER, "ssim": NUMBER, "identified": NUMBER}
_PROBE = {"client": int, "images": int, "private": int, "best": str, "attacks": {str: _LIKENESS}}
ROUND = {
    "round": int,
    "accuracy?": NUMBER,
    **_MEASURED,
    "notes?": {str: NUMBER},
    **_SPENT,
    "events": [_EVENT],
    "probe?": _PROBE,
}
LEDGER = {"round": int, "entries": [_ENTRY]}
RESULT = {
    "accuracy": NUMBER,
    "best": {"accuracy": NUMBER, "round": int},
    **_MEASURED,
    **_SPENT,
    "lost": int,
    "late": int,
    "failed": int,
    "refused?": int,
    "attack?": {"name": str, "attackers": [int], "used": [{str: NUMBER}]},
    "leaves?": [{"field": str, "kind": str, "shape": str, "when": str, "shows": str}],
    "bytes_by_field?": {"up": {str: int}},
    "costs?": {"clients?": _MODELS, "server?": _MODELS, "peak_memory?": dict},
    "data?": dict,
    "fingerprint?": str,
}


class Point(NamedTuple):
    """An accuracy, and what training had moved by then."""

    moved: int  # bytes, up and down
    accuracy: float  # the clients' mean if known
    up: int  # bytes


@dataclass(frozen=True)
class RunFiles:
    """The files of one run, finished or not."""

    directory: Path
    toml: str  # of the experiment, as it was written
    experiment: Record
    rounds: list[Record]
    ledger: list[Record]
    result: Record | None  # None if the run is not finished
    images: dict[str, bytes] = field(default_factory=dict)  # PNG files of the last evaluation, by name

    @staticmethod
    def read(directory: str | Path) -> RunFiles:
        """Read a run's directory; what is no run, or is damaged, is refused with one sentence."""
        directory = Path(directory)
        path = directory / "experiment.toml"
        if not path.is_file():
            raise UserError(f"{directory} holds no run (it has no experiment.toml)")
        try:
            toml = _bytes(path).decode()
            experiment = tomllib.loads(toml)
        except ValueError as error:
            raise UserError(f"{path} is damaged: {error}") from None
        _check(experiment, EXPERIMENT, str(path))
        result = _result(directory / "result.json")
        killed = result is None
        rounds = _lines(directory / "rounds.jsonl", ROUND, may_be_torn=killed)
        ledger = _lines(directory / "ledger.jsonl", LEDGER, may_be_torn=killed)
        return RunFiles(directory, toml, experiment, rounds, ledger, result, _images(directory / "images"))

    @property
    def name(self) -> str:
        """The name of the experiment."""
        return str(self.experiment["name"])

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.experiment["method"]["name"])

    @property
    def planned(self) -> int:
        """How many rounds the experiment asks for."""
        return int(self.experiment["rounds"])

    @property
    def done(self) -> int:
        """How many rounds are finished."""
        return self.planned if self.result is not None else len(self.rounds)

    @property
    def unfinished(self) -> str:
        """`"unfinished: 3 of 8 rounds"`; empty for a finished run."""
        return "" if self.result is not None else f"unfinished: {self.done} of {self.planned} rounds"

    @cached_property
    def attack(self) -> Record:
        """Name, attackers and the strengths used, as in the result; empty if nobody lied or the run is not finished."""
        return (self.result or {}).get("attack") or {}

    @property
    def aggregation(self) -> str:
        """The name of the aggregation."""
        return str(self.experiment.get("aggregation", {}).get("name", "mean"))

    @cached_property
    def flags(self) -> dict[int, list[tuple[int, str]]]:
        """By client: the rounds in which it was flagged, and why at first."""
        found: dict[int, dict[int, str]] = {}
        for record in self.rounds:
            for event in record["events"]:
                if event["what"] == "flagged":
                    found.setdefault(event["client"], {}).setdefault(record["round"], event["why"])
        return {client: list(rounds.items()) for client, rounds in sorted(found.items())}

    def self_reported(self, number: str) -> bool:
        """Whether `"accuracy"` or `"clients"` is what clients say of themselves, and the server did not measure."""
        return number in (self.outcome.get("self_reported") or ())

    @cached_property
    def evaluated(self) -> list[Record]:
        """The rounds after which accuracy was measured."""
        return [record for record in self.rounds if record.get("accuracy") is not None]

    @cached_property
    def curve(self) -> list[Point]:
        """A point for each evaluated round."""
        points, up, down = [], 0, 0
        for record in self.rounds:
            up, down = up + record["bytes"]["up"], down + record["bytes"]["down"]
            if record.get("accuracy") is not None:
                clients = (record.get("clients") or {}).get("accuracy")
                points.append(Point(up + down, float(clients["mean"] if clients else record["accuracy"]), up))
        return points

    def bytes_to_reach(self, accuracy: float) -> int | None:
        """ComU@x of DS-FL and FedGEMS: what training moved until an accuracy was first reached; None if it was not."""
        return next((point.moved for point in self.curve if point.accuracy >= accuracy), None)

    @cached_property
    def outcome(self) -> Record:
        """The result; of an unfinished run, what is known of it so far."""
        if self.result is not None:
            return self.result
        last = self.evaluated[-1] if self.evaluated else {}
        best = max(self.evaluated, key=lambda record: float(record["accuracy"]), default=None)
        events = Counter(event["what"] for record in self.rounds for event in record["events"])
        return {
            "accuracy": last.get("accuracy"),
            "best": best and {"accuracy": best["accuracy"], "round": best["round"]},
            "server": last.get("server"),
            "clients": last.get("clients"),
            "models": last.get("models"),
            "more": last.get("more"),
            "self_reported": last.get("self_reported") or [],
            "bytes": {way: sum(record["bytes"][way] for record in self.rounds) for way in _BYTES},
            "seconds": sum(record["seconds"] for record in self.rounds),
            "virtual_seconds": self.rounds[-1]["virtual_seconds"] if self.rounds else 0.0,
            **{what: events[what] for what in TROUBLES},
        }


def labels(runs: Sequence[RunFiles]) -> list[str]:
    """A name for every run that no other of them has: where names are equal, directories tell them apart."""
    names = Counter(run.name for run in runs)
    found = [run.name if names[run.name] == 1 else _with_directory(run) for run in runs]
    again = Counter(found)
    return [label if again[label] == 1 else f"{label} #{number}" for number, label in enumerate(found, start=1)]


def _with_directory(run: RunFiles) -> str:
    directory = run.directory.resolve().name
    return directory if directory.startswith(run.name) else f"{run.name} ({directory})"


def _result(path: Path) -> Record | None:
    if not path.exists():
        return None
    try:
        result = json.loads(_bytes(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {error}") from None
    _check(result, RESULT, str(path))
    return result  # type: ignore[no-any-return]


def _images(directory: Path) -> dict[str, bytes]:
    """The pictures that a method left."""
    images = {path.stem: _bytes(path) for path in sorted(directory.glob("*.png"))}
    for name, image in images.items():
        if not image.startswith(PNG):
            raise UserError(f"{directory / name}.png is damaged: it is not a PNG file")
    return images


def _lines(path: Path, shape: Any, *, may_be_torn: bool) -> list[Record]:
    """The records of a file with one JSON object a line; a run that was killed may have left half a line."""
    if not path.exists():
        return []
    *whole, rest = _bytes(path).split(b"\n")
    records = []
    for number, line in enumerate([*whole, rest] if rest else whole, start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            if may_be_torn and number > len(whole):
                break
            raise UserError(f"{path}, line {number}, is damaged: {error}") from None
        _check(record, shape, f"{path}, line {number},")
        records.append(record)
    return records


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


def _check(value: Any, shape: Any, where: str) -> None:
    wrong = _misfit(value, shape, "")
    if wrong is not None:
        raise UserError(f"{where} is not what a run writes: {wrong}")


def _misfit(value: Any, shape: Any, place: str) -> str | None:
    """What is wrong with a value and where; None if it fits."""
    if isinstance(shape, list) and isinstance(value, list):
        return _first(_misfit(item, shape[0], f"{place}[{index}]") for index, item in enumerate(value))
    if isinstance(shape, dict) and isinstance(value, dict):
        if str in shape:
            return _first(_misfit(item, shape[str], f"{place}.{key}") for key, item in value.items())
        return _first(_misfit_at(key, value, kind, place) for key, kind in shape.items())
    if isinstance(shape, list | dict):
        fits = False
    elif isinstance(shape, set):
        fits = isinstance(value, str) and value in shape
    else:
        fits = isinstance(value, shape) and (not isinstance(value, float) or math.isfinite(value))
    return None if fits else f"{place or 'it'} is {json.dumps(value, default=str)[:40]}"


def _misfit_at(key: str, table: Record, shape: Any, place: str) -> str | None:
    name = key.removesuffix("?")
    inner = f"{place}.{name}" if place else name
    if table.get(name) is not None:
        return _misfit(table[name], shape, inner)
    return f"{inner} is missing" if name == key else None


def _first(findings: Iterable[str | None]) -> str | None:
    return next((finding for finding in findings if finding is not None), None)
