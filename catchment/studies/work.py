"""Runs of studies in one folder, shared by everybody who works on it: processes, machines, jobs of a cluster.

`runs/DIGEST` is the directory of a run. Whoever holds the lock on `runs/.DIGEST.lock` works on it; a process that dies
gives the lock back, and another goes on from the last checkpoint. What is finished is never run again.
"""

from __future__ import annotations

import functools
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from catchment.config.experiment import Experiment
from catchment.errors import CatchmentError, RunError, printable
from catchment.files import FileLock, InUse, write_atomically
from catchment.launch import continue_run, run
from catchment.runs.directory import EXPERIMENT, load_experiment
from catchment.runs.journal import Record
from catchment.studies.file import Row
from catchment.studies.identity import digest
from catchment.studies.results import RunResult, read_run
from catchment.trackers import tracking

POLL = 0.5  # seconds between looks at what others do


@dataclass(frozen=True)
class Job:
    """One run of a study."""

    row: Row
    seed: int
    experiment: Experiment
    digest: str


class Folder:
    """Where runs of studies are; `known` has results of runs that may lie elsewhere, by digest and headline."""

    def __init__(
        self, path: Path, trackers: tuple[str, ...] = (), known: Mapping[tuple[str, str], RunResult] | None = None
    ) -> None:
        self.path = path
        self.trackers = trackers
        self._known = known or {}

    def directory(self, job: Job) -> Path:
        """The directory of a run."""
        return self.path / "runs" / job.digest

    def finished(self, job: Job) -> bool:
        """Whether a run has its result."""
        return (self.directory(job) / "result.json").exists() or self._known_result(job) is not None

    def failure(self, job: Job) -> str | None:
        """Why a run failed when it was last tried."""
        try:
            return self._error(job).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def rounds(self, job: Job) -> int:
        """How many rounds of a run are done."""
        if self.finished(job):
            return job.experiment.rounds
        try:
            return (self.directory(job) / "rounds.jsonl").read_bytes().count(b"\n")
        except OSError:
            return 0

    def result(self, job: Job) -> RunResult:
        """What a finished run found; its directory comes before what is known of it."""
        known = self._known_result(job)
        if known is not None and not (self.directory(job) / "result.json").exists():
            return known
        return read_run(self.directory(job), job.seed, job.digest, job.experiment.evaluation.headline)

    def claim(self, job: Job) -> FileLock:
        """Hold a run for this process; `InUse` if another has it."""
        (self.path / "runs").mkdir(parents=True, exist_ok=True)
        return FileLock(self.path / "runs" / f".{job.digest}.lock", "working on this run")

    def do(self, job: Job, observe: Callable[[Record], None]) -> None:
        """Run a job from its start or its last checkpoint; if it fails, keep the reason."""
        directory = self.directory(job)
        try:
            if digest(job.experiment) != job.digest:
                raise RunError("its own code was changed while the study was running; start the study again")
            with tracking(self.trackers, job.experiment, directory) as track:

                def both(record: Record) -> None:
                    track(record)
                    observe(record)

                if (directory / EXPERIMENT).exists():
                    load_experiment(directory)  # refuses what another version began
                    continue_run(job.experiment, directory, observe=both)  # whose data may lie elsewhere by now
                else:
                    run(job.experiment, directory, observe=both)
        except InUse:  # by someone who resumes this run by hand
            raise
        except CatchmentError as error:
            write_atomically(self._error(job), str(error).encode())
        except Exception as error:  # of the user's own code, mostly; other rows do not suffer for it
            write_atomically(self._error(job), _sentence(error).encode())
        else:
            self._error(job).unlink(missing_ok=True)

    def failed_at(self, job: Job) -> int | None:
        """When a run last failed, by the clock of the folder."""
        try:
            return self._error(job).stat().st_mtime_ns
        except FileNotFoundError:
            return None

    def settled(self, jobs: Sequence[Job]) -> Callable[[Job], bool]:
        """A function that says whether a job is finished, or has failed since now."""
        before = {job.digest: self.failed_at(job) for job in jobs}
        return lambda job: self.finished(job) or self.failed_at(job) != before[job.digest]

    @contextmanager
    def writing(self, name: str) -> Iterator[None]:
        """Hold a file of the folder while it is written: another process writes it too, under the same other name."""
        (self.path / "runs").mkdir(parents=True, exist_ok=True)
        while True:
            try:
                lock = FileLock(self.path / "runs" / f".{name}.lock", "writing it")
            except InUse:
                time.sleep(0.05)
            else:
                break
        with lock:
            yield

    def _known_result(self, job: Job) -> RunResult | None:
        return self._known.get((job.digest, job.experiment.evaluation.headline))

    def _error(self, job: Job) -> Path:
        return self.path / "runs" / f"{job.digest}.error"


def _sentence(error: Exception) -> str:
    """An error that nobody foresaw, and where it was raised."""
    *_, last = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__}: {printable(error)} ({Path(last.filename).name}, line {last.lineno})"


def work(
    folder: Folder,
    jobs: Sequence[Job],
    *,
    observe: Callable[[Job, Record], None] = lambda job, record: None,
) -> None:
    """Do what nobody else does, until all jobs are finished or have failed here or elsewhere."""
    settled = folder.settled(jobs)
    while left := [job for job in jobs if not settled(job)]:
        busy = 0
        for job in left:
            try:
                with folder.claim(job):
                    if settled(job):
                        continue
                    folder.do(job, functools.partial(observe, job))
            except InUse:
                busy += 1
        if busy == len(left):
            time.sleep(POLL)
