"""What a study found, as one JSON file per study and scale: the numbers of every run, and its curve."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from catchment.errors import UserError
from catchment.files import write_atomically
from catchment.reading import read_json
from catchment.runs.journal import file_bytes
from catchment.runs.reading import RunFiles
from catchment.runs.records import AnyNumber, ByClient, Result, Round
from catchment.studies.file import StudyFile
from catchment.studies.identity import RESULTS

CURVE = ("round", "headline", "bytes", "up", "virtual_seconds")  # columns of a curve; bytes are of training, so far


@dataclass(frozen=True)
class RunResult:
    """One seed of a row: named numbers, and how the headline came about."""

    seed: int
    digest: str
    numbers: dict[str, AnyNumber]
    curve: list[list[AnyNumber | None]]  # columns as in CURVE; None: not kept
    results: int = RESULTS  # the version of results that the numbers belong to
    notes: dict[str, list[AnyNumber | None]] = field(default_factory=dict)  # what the method noted, round by round
    method: str = ""
    by_client: ByClient | None = None


@dataclass(frozen=True)
class RowResult:
    """A row with what was run of it, and why the rest is missing."""

    label: str
    paper: int | float | str | None = None
    values: dict[str, str] = field(default_factory=dict)
    runs: list[RunResult] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)  # by seed: why

    def numbers(self, name: str) -> dict[int, float]:
        """One number of every seed that has it."""
        return {run.seed: run.numbers[name] for run in self.runs if name in run.numbers}


@dataclass(frozen=True)
class StudyResult:
    """All rows of a study at one scale."""

    name: str
    scale: str
    title: str
    seeds: tuple[int, ...]
    columns: tuple[str, ...]
    rows: list[RowResult]
    reference: str | None = None
    across: str | None = None
    note: str = ""
    headline: str = "accuracy"  # of curves, of differences, and of what is reached

    @staticmethod
    def of(study: StudyFile, rows: Iterable[RowResult]) -> StudyResult:
        """The result of a study whose rows are these."""
        first = () if study.headline in ("accuracy", *study.columns) else (study.headline,)
        return StudyResult(
            study.name, study.scale, study.title, study.seeds, first + study.columns, list(rows), study.reference,
            study.across, study.note, study.headline,
        )  # fmt: skip

    def row(self, label: str) -> RowResult | None:
        """The row with a label."""
        return next((row for row in self.rows if row.label == label), None)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Plain rows, one per run, as `pandas.DataFrame` takes them."""
        for row in self.rows:
            for run in row.runs:
                yield {"row": row.label, **row.values, "seed": run.seed, "paper": row.paper, **run.numbers}

    def write(self, path: Path) -> None:
        """Write the JSON file."""
        write_atomically(path, (json.dumps(asdict(self), indent=1) + "\n").encode())

    @staticmethod
    def read(path: Path) -> StudyResult:
        """Read what `write` wrote."""
        return read_json(StudyResult, file_bytes(path), str(path))


def read_known(place: Path) -> dict[tuple[str, str], RunResult]:
    """The runs that a result file has, or all result files of a folder, by digest and headline."""
    files = sorted(place.glob("*.json")) if place.is_dir() else [place]
    if not files:
        raise UserError(f"{place} has no results of studies (*.json)")
    results = [StudyResult.read(file) for file in files]
    return {
        (run.digest, result.headline): run
        for result in results
        for row in result.rows
        for run in row.runs
        if run.digest
    }


def read_run(directory: Path, seed: int, digest: str, headline: str = "accuracy") -> RunResult:
    """The numbers of a finished run, and the curve of its headline."""
    files = RunFiles.read(directory)
    if files.result is None:
        raise UserError(f"{directory} holds a run that is not finished")
    return RunResult(
        seed,
        digest,
        dict(_numbers(files.result)),
        list(_curve(files, headline)),
        notes=_notes(files.rounds),
        method=files.method,
        by_client=files.result.by_client,
    )


def _numbers(result: Result) -> Iterator[tuple[str, float]]:
    """Everything that is a number, under short names."""
    if result.accuracy is not None and result.best is not None:
        yield "accuracy", result.accuracy
        yield "best", result.best.accuracy
    if result.validation is not None:
        yield "validation", result.validation
    yield from result.scores.items()
    if result.server is not None:
        yield from _flat("server", {"accuracy": result.server.accuracy, **result.server.others})
    if result.clients is not None:
        yield from _flat("clients", asdict(result.clients.accuracy))
    for model, score in (result.models or {}).items():
        yield f"models.{model}", score.accuracy
    yield from _flat("", result.more)
    yield from _flat("bytes", asdict(result.bytes))
    for name in ("rounds", "virtual_seconds", "seconds", "lost", "late", "failed", "refused"):
        yield name, getattr(result, name)
    found = [asdict(probe.attacks[probe.best]) for probe in result.probe or ()]
    for name in found[0] if found else ():
        yield f"probe.{name}", max(likeness[name] for likeness in found)  # of the round that shows most
    if result.costs is not None:
        for side, models in (("client", result.costs.clients), ("server", result.costs.server)):
            if models:
                yield f"parameters.{side}", max(model.parameters for model in models.values())
                yield f"macs_per_sample.{side}", max(model.macs_per_sample for model in models.values())


def _flat(begin: str, table: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in table.items():
        if isinstance(value, int | float):
            yield f"{begin}.{name}" if begin else name, value


def _notes(rounds: Sequence[Round]) -> dict[str, list[float | None]]:
    names = dict.fromkeys(name for record in rounds for name in record.notes)
    return {name: [record.notes.get(name) for record in rounds] for name in names}


def _curve(files: RunFiles, headline: str) -> Iterator[list[float | None]]:
    moved = up = 0
    for record in files.rounds:
        moved += record.bytes.up + record.bytes.down
        up += record.bytes.up
        if record.accuracy is not None:
            yield [record.round, files.number(headline, record), moved, up, record.virtual_seconds]
