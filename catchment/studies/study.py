"""A study in Python: load its file, run what is missing, and have its results as rows."""

from __future__ import annotations

import fnmatch
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from catchment.config.experiment import Experiment
from catchment.errors import CatchmentError, DataError, ExperimentError, RunError, UserError
from catchment.files import write_atomically
from catchment.studies.columns import check as check_columns
from catchment.studies.file import PAPER, StudyFile, distinct_seeds
from catchment.studies.identity import digest
from catchment.studies.results import RowResult, StudyResult, read_known
from catchment.studies.work import POLL, Folder, Job, work
from catchment.trackers import check_trackers


@dataclass(frozen=True)
class Study:
    """Rows of experiments with seeds, in a folder where their runs are kept.

    `Study.load(file).run()` runs what is missing and returns a `StudyResult`, whose rows pandas takes.
    """

    file: StudyFile
    folder: Folder
    whole: StudyFile  # the same with all rows and seeds, of which `file` may have some

    @staticmethod
    def load(
        path: str | Path,
        *,
        scale: str = PAPER,
        rows: str = "*",
        seeds: int | Sequence[int] | None = None,
        vary: Mapping[str, Sequence[Any]] | None = None,
        out: str | Path = "runs",
        trackers: Sequence[str] = (),
        known: str | Path | None = None,
    ) -> Study:
        """Read a study file at one scale, or an experiment file.

        `rows` is a pattern of labels, `seeds` how many or which, `vary` has further values of settings by dotted keys,
        of which every combination is run. What result files under `known` have is not run again.
        """
        file = StudyFile.load(path, scale).varied(vary or {})
        chosen = tuple(row for row in file.rows if _is_like(row.label.lower(), rows.lower()))
        if not chosen:
            labels = ", ".join(f'"{row.label}"' for row in file.rows[:8])
            raise ExperimentError(f'no row of {path} is like "{rows}"; some rows: {labels}')
        numbers = file.seeds if seeds is None else range(seeds) if isinstance(seeds, int) else tuple(seeds)
        check_columns(file.columns)
        check_trackers(trackers)
        reference = file.reference if file.reference in {row.label for row in chosen} else None
        return Study(
            replace(file, rows=chosen, seeds=distinct_seeds(numbers), reference=reference),
            Folder(Path(out), tuple(trackers), None if known is None else read_known(Path(known))),
            replace(file, seeds=tuple(dict.fromkeys((*file.seeds, *numbers)))),
        )

    @property
    def result_file(self) -> Path:
        """Where the results of this study are put together."""
        suffix = "" if self.file.scale == PAPER else f"-{self.file.scale}"
        return self.folder.path / f"{self.file.name}{suffix}.json"

    @property
    def page_file(self) -> Path:
        """The page that shows them."""
        return self.result_file.with_suffix(".html")

    def jobs(self, workers: int | None = None) -> list[Job]:
        """All runs, seed by seed, so that every row has a first number early; wrong settings are found here."""
        found = []
        for seed in self.file.seeds:
            for row in self.file.rows:
                try:
                    table = {**row.settings, "seed": seed, "name": row.label}
                    table.setdefault("path", self.file.path)
                    if workers is not None:
                        table["workers"] = workers
                    experiment = Experiment.from_dict(table)
                except ExperimentError as error:
                    raise ExperimentError(f'{self.file.name}, row "{row.label}": {error}') from None
                found.append(Job(row, seed, experiment, digest(experiment)))
        return found

    def check(self, jobs: Sequence[Job]) -> dict[str, str]:
        """Build the world of every row once; by digest, the rows whose data are not here, and why.

        Settings that are wrong raise an error that names the row.
        """
        missing: dict[str, str] = {}
        for job in jobs:
            if job.seed != self.file.seeds[0] or self.folder.finished(job):
                continue
            try:
                job.experiment.build_world()
            except DataError as error:
                missing |= {other.digest: str(error) for other in jobs if other.row is job.row}
            except UserError as error:
                raise ExperimentError(f'{self.file.name}, row "{job.row.label}": {error}') from None
        return missing

    def run(self, jobs: int = 1, *, watch: Callable[[Progress], None] | None = None) -> StudyResult:
        """Run what is missing, `jobs` runs at a time, and return all results."""
        if jobs < 1:
            raise UserError(f"jobs is {jobs}; at least 1 is expected")
        planned = self.jobs(None if jobs == 1 else max(1, (os.cpu_count() or 1) // jobs))
        absent = self.check(planned)
        left = [job for job in planned if job.digest not in absent and not self.folder.finished(job)]
        progress = Progress(self, planned, absent, watch or (lambda progress: None))
        progress.write()  # a folder that cannot be written is found before the first run
        if jobs == 1 or len(left) <= 1:
            work(self.folder, left, observe=lambda job, record: progress.look())
        else:
            _in_processes(self.folder, left, min(jobs, len(left)), progress)
        return progress.write()

    def write(self, result: StudyResult) -> None:
        """Write the results, also of rows and seeds that were not chosen, and the page that shows them."""
        from catchment.studies.page import page  # needs matplotlib, which an install for devices does not have

        if self.whole != self.file:
            result = replace(self, file=self.whole).result()
        shown = page(result).encode()
        with self.folder.writing(self.result_file.name):
            result.write(self.result_file)
            write_atomically(self.page_file, shown)

    def result(self, jobs: Sequence[Job] | None = None, absent: Mapping[str, str] | None = None) -> StudyResult:
        """What is there so far."""
        jobs = self.jobs() if jobs is None else jobs
        rows = []
        for row in self.file.rows:
            found = RowResult(row.label, row.paper, dict(row.values))
            for job in jobs:
                if job.row is row:
                    self._add(found, job, absent or {})
            rows.append(found)
        return StudyResult.of(self.file, rows)

    def _add(self, row: RowResult, job: Job, absent: Mapping[str, str]) -> None:
        """The result of a run, or why it has none, if it was tried."""
        if not self.folder.finished(job):
            if (why := absent.get(job.digest) or self.folder.failure(job)) is not None:
                row.failed[job.seed] = why
            return
        try:
            row.runs.append(self.folder.result(job))
        except UserError as error:
            row.failed[job.seed] = f"{error}; delete {self.folder.directory(job)} to run it again"


def _is_like(label: str, pattern: str) -> bool:
    return label == pattern or fnmatch.fnmatchcase(label, pattern)  # a label may have brackets of its own


class Progress:
    """How far a study is, by what its folder holds: what other processes and machines did counts too."""

    def __init__(
        self, study: Study, jobs: Sequence[Job], absent: Mapping[str, str], watch: Callable[[Progress], None]
    ) -> None:
        self.study = study
        self.jobs = jobs
        self.absent = absent
        self._watch = watch
        self._began = time.monotonic()
        self._first, _ = self.rounds
        self._settled = -1

    @property
    def rounds(self) -> tuple[int, int]:
        """Rounds that are done, and of how many."""
        wanted = [job for job in self.jobs if job.digest not in self.absent]
        return sum(map(self.study.folder.rounds, wanted)), sum(job.experiment.rounds for job in wanted)

    @property
    def seconds_left(self) -> float | None:
        """By the pace so far; None before the first round."""
        done, total = self.rounds
        new = done - self._first
        return None if new <= 0 else (time.monotonic() - self._began) / new * (total - done)

    def look(self) -> None:
        """See what is new; when a run has ended, put the results together, if that is possible now."""
        folder = self.study.folder
        settled = sum(folder.finished(job) or folder.failed_at(job) is not None for job in self.jobs)
        if settled != self._settled:
            self._settled = settled
            with suppress(CatchmentError, OSError):  # no fault of the run that looks; `write` at the end says why
                self.write()
        self._watch(self)

    def write(self) -> StudyResult:
        """Put the results together."""
        result = self.study.result(self.jobs, self.absent)
        self.study.write(result)
        self._watch(self)
        return result


def _in_processes(folder: Folder, jobs: Sequence[Job], count: int, progress: Progress) -> None:
    context = multiprocessing.get_context("spawn")
    # One thread for each process, before PyTorch is imported there.
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = before or "1"
    processes = [context.Process(target=_worker, args=(folder, list(jobs)), daemon=True) for _ in range(count)]
    settled = folder.settled(jobs)
    try:
        for process in processes:
            process.start()
        while any(process.is_alive() for process in processes):
            time.sleep(POLL)
            progress.look()
    finally:
        for process in processes:
            if process.pid is not None:
                process.terminate()
                process.join()
        if before is None:
            os.environ.pop("OMP_NUM_THREADS", None)
    if not all(map(settled, jobs)):
        raise RunError("all processes of the study died; what they did is kept: start the study again to resume it")


def _worker(folder: Folder, jobs: Sequence[Job]) -> None:
    """What a process does: it leaves Ctrl-C to the one that started it, and ends with that one, however that ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if (parent := multiprocessing.parent_process()) is not None:
        threading.Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()
    try:
        work(folder, jobs)
    except (CatchmentError, OSError) as error:
        sys.exit(f"error: {error}")


def _end_after(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)
