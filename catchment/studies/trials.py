"""Methods tried on a part of one's own data by successive halving: what `catchment plan --advise --try` does.

Every method that fits begins with three learning rates of the clients, and is measured on validation samples after a
quarter of the rounds. The best third goes on to half of them; of these the best three methods, each with its best rate,
go on to the end, beside the baselines, and then with a second seed. What is worse after a rung than after an earlier
one, beyond noise, stops.

A trial is a run that pauses after a rung and goes on from its checkpoint. Which trials go on depends on what they
reached and on nothing else. How large they are depends on the time that is given and on the speed of this machine,
which is measured once and kept in the folder; so the same command goes on where it was stopped. Time decides nothing
else: when it is over, what counts is the last rung that all its trials have reached.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from catchment.config.experiment import Experiment
from catchment.errors import ExperimentError
from catchment.report.showing import human_seconds
from catchment.runs.journal import Lines, Record
from catchment.runs.records import Round
from catchment.studies.candidates import Candidate, Facts, Size, part_of, sizes
from catchment.studies.file import Row
from catchment.studies.identity import digest
from catchment.studies.statistics import Spread, spread
from catchment.studies.work import Folder, Job
from catchment.tasks import CLASSIFICATION

RATES = (1.0, 3.0, 1 / 3)  # times that of the experiment, in the order in which they are tried
FINALISTS, SEEDS = 3, 2
LARGEST = 1 / 8  # of the time, for one trial


class Trial(NamedTuple):
    """A method with one learning rate of the clients."""

    candidate: Candidate
    rate: float

    @property
    def method(self) -> str:
        """Its name."""
        return self.candidate.method

    def __str__(self) -> str:
        return f"{self.method}, lr {self.rate:g}"


class Standing(NamedTuple):
    """How far a trial came."""

    trial: Trial
    rounds: int
    accuracy: Spread | None  # on validation samples after these rounds, over seeds
    why: str  # it came no farther, or is not to be chosen; else ""


@dataclass(frozen=True)
class Outcome:
    """What the trials found."""

    size: Size
    standings: list[Standing]  # those that came farthest first, and of these the best
    chosen: Standing | None  # None if nothing was measured
    finished: bool  # or time was over
    not_tried: dict[str, str]  # by method: why
    constant: float | None = None  # the accuracy of always answering the most frequent class

    def frugal(self) -> Standing | None:
        """Of those beside the chosen one as good up to noise that with the fewest bytes, if that is at most half."""

        def moved(one: Standing) -> int:
            return one.trial.candidate.up + one.trial.candidate.down

        if self.chosen is None or self.chosen.accuracy is None:
            return None
        best = self.chosen.accuracy.mean
        near = [
            one
            for one in self.standings
            if one.accuracy and not one.why and not one.trial.candidate.baseline and one.rounds == self.chosen.rounds
            if one.accuracy.mean >= best - noise(best, self.size.validation) and 2 * moved(one) <= moved(self.chosen)
        ]
        return min(near, key=moved, default=None)

    def none_ahead(self) -> list[str]:
        """A sentence if devices that learn alone are as good as the chosen method."""
        if self.chosen is None or self.chosen.accuracy is None:
            return []
        best = self.chosen.accuracy.mean
        return [
            f"Devices that learn alone (standalone) reach {100 * one.accuracy.mean:.1f} %: no method is ahead of that."
            for one in self.standings
            if one.trial.method == "standalone" and one.accuracy and one.accuracy.mean >= best
            if one.rounds == self.chosen.rounds
        ]

    def as_json(self) -> dict[str, Any]:
        """For programs."""

        def plain(one: Standing) -> dict[str, Any]:
            accuracy = None if one.accuracy is None else one.accuracy._asdict()
            costs = asdict(one.trial.candidate)
            return {"lr": one.trial.rate, "rounds": one.rounds, "accuracy": accuracy, "why": one.why, **costs}

        return {
            **self.size._asdict(), "finished": self.finished, "constant": self.constant,
            "chosen": None if self.chosen is None else plain(self.chosen),
            "trials": list(map(plain, self.standings)), "not_tried": self.not_tried,
        }  # fmt: skip


class Progress(NamedTuple):
    """How far the trials are."""

    doing: str
    done: int  # rounds
    of: int


class Step(NamedTuple):
    """So many trials go from one rung to the next."""

    trials: int
    before: int
    rung: int


class _Pause(BaseException):
    """A rung is reached; no fault of the run, so nothing that looks for faults takes it for one."""


class _TimeIsOver(BaseException):
    """No round begins any more."""


def noise(share: float, samples: int) -> float:
    """Two standard errors of a share of so many samples, as if one more were right and one more wrong."""
    likely = (share * samples + 1) / (samples + 2)
    return 2 * math.sqrt(likely * (1 - likely) / samples)


def third(count: int) -> int:
    """How many of so many trials go on."""
    return min(count, max(FINALISTS, math.ceil(count / 3)))


class Trials:
    """The trials of one experiment, in a folder that keeps what was done."""

    def __init__(self, experiment: Experiment, facts: Facts, seconds: float, folder: Path) -> None:
        self.experiment = experiment
        self.facts = facts
        self.seconds = seconds
        self.folder = Folder(folder)
        self.not_tried = {one.method: one.why_not for one in facts.candidates if one.why_not}
        if len(self.not_tried) == len(facts.candidates):
            raise self._nothing()
        all_sizes = sizes(experiment, facts.train)
        self.smallest = all_sizes[-1]
        candidates = [one for one in facts.candidates if not one.why_not and self._is_affordable(one)]
        rate = experiment.optimizer.client.lr
        self.baselines = [Trial(one, rate) for one in candidates if one.baseline]
        methods = [one for one in candidates if not one.baseline]
        self.trials = [Trial(one, float(f"{rate * times:.3g}")) for times in RATES for one in methods]
        if not self.trials:
            raise self._nothing()
        self.finalists = min(FINALISTS, len(methods))
        self.size = next((size for size in all_sizes if self._estimate(size) <= seconds), self.smallest)
        self.seeds = [experiment.seed + number for number in range(SEEDS)]
        self._failed: dict[Trial, str] = {}
        self._done = 0  # rounds
        self._watch: Callable[[Progress], None] = lambda progress: None
        self._is_over: Callable[[], bool] = lambda: False

    # ---- what is tried, and how large it is ----

    def _smallest(self, one: Candidate) -> float:
        """Seconds for the smallest trial."""
        return self._takes(one, self.smallest, self.smallest.rounds)

    def _is_affordable(self, one: Candidate) -> bool:
        """Whether the smallest trial leaves time for others."""
        takes = self._smallest(one)
        if takes > LARGEST * self.seconds:
            self.not_tried[one.method] = (
                f"even a small trial of it would take about {human_seconds(takes)}: {_more_time(takes)}"
            )
        return takes <= LARGEST * self.seconds

    def _nothing(self) -> ExperimentError:
        takes = [self._smallest(one) for one in self.facts.candidates if not one.why_not and not one.baseline]
        if takes:
            return ExperimentError(
                f"{human_seconds(self.seconds)} is too short: even the smallest trial would take about "
                f"{human_seconds(min(takes))}; {_more_time(min(takes))}"
            )
        why = "; ".join(f"{method}: {why}" for method, why in self.not_tried.items())
        return ExperimentError(f"no method can be tried; {why}")

    def _takes(self, one: Candidate, size: Size, rounds: int) -> float:
        """Seconds for so many rounds."""
        share = size.samples / self.facts.train * rounds / self.experiment.rounds
        return self.facts.start + one.work * share * self.facts.pace

    def _steps(self, size: Size) -> Iterator[Step]:
        """What is to be done, baselines left out."""
        *early, last = size.rungs
        going, before = len(self.trials), 0
        for rung in early or [last]:
            yield Step(going, before, rung)
            going, before = third(going), rung
        yield Step(self.finalists, before, last)
        yield Step(self.finalists * (SEEDS - 1), 0, last)

    def _estimate(self, size: Size) -> float:
        """Seconds for everything, as if those that go on were like the mean of all."""

        def mean(rounds: int) -> float:
            return sum(self._takes(trial.candidate, size, rounds) for trial in self.trials) / len(self.trials)

        compared = sum(self._takes(one.candidate, size, size.rounds) for one in self.baselines) * SEEDS
        return compared + sum(step.trials * mean(step.rung - step.before) for step in self._steps(size))

    @property
    def rounds(self) -> int:
        """Rounds of everything, if no trial fails or falls."""
        compared = len(self.baselines) * SEEDS * self.size.rounds
        return compared + sum(step.trials * (step.rung - step.before) for step in self._steps(self.size))

    # ---- doing it ----

    def run(
        self,
        watch: Callable[[Progress], None] = lambda progress: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> Outcome:
        """Do what is missing until time is over; what was done before is read from the folder."""
        ends = clock() + self.seconds
        self._watch, self._is_over = watch, lambda: clock() >= ends
        self._failed, self._done = {}, 0
        ranked: list[Trial] = []
        behind: set[Trial] = set()
        finished = False
        with suppress(_TimeIsOver):
            for stage in self._rungs():
                ranked, behind = stage  # the last one counts, however it ends
            finished = True
        return self._outcome(ranked, behind, finished)

    def _rungs(self) -> Iterator[tuple[list[Trial], set[Trial]]]:
        """After each rung, the trials that reached it, best first, and all that do not go on."""
        *early, last = self.size.rungs
        early = early or [last]
        first, *others = self.seeds
        going, before = self.trials, 0
        for rung in early:
            for trial in going:
                self._reach(trial, first, before, rung)
            ranked = self._ranked(going, rung, [first])
            rates: dict[str, Trial] = {}  # the best of each method
            for trial in ranked:
                rates.setdefault(trial.method, trial)
            best = list(rates.values())[:FINALISTS]
            share = [] if rung == early[-1] else ranked[: third(len(going))]
            going, before = [trial for trial in ranked if trial in best or trial in share], rung
            behind = {*self.trials} - {*going}
            yield ranked, behind
        for trial in going:
            self._reach(trial, first, before, last)
        yield self._ranked(going, last, [first]), behind
        for trial in self.baselines:
            self._reach(trial, first, 0, last)
        for seed in others:
            for trial in (*going, *self.baselines):
                self._reach(trial, seed, 0, last)
        yield self._ranked(going, last, self.seeds), behind

    def _reach(self, trial: Trial, seed: int, before: int, rung: int) -> None:
        """Take a trial from one rung to the next, unless that is done."""

        def show(round: int) -> None:
            self._watch(Progress(str(trial), self._done + max(0, round - before), self.rounds))

        def observe(record: Record) -> None:
            show(record["round"])
            if record["round"] == self.size.rounds:
                return  # it ends by itself, and writes what it came to
            if record["round"] >= rung:
                raise _Pause
            if self._is_over():
                raise _TimeIsOver

        show(before)
        job = self._job(trial, seed)
        if self.folder.rounds(job) < rung:
            if self._is_over():
                raise _TimeIsOver
            with suppress(_Pause), self.folder.claim(job):
                self.folder.do(job, observe)
            if self.folder.rounds(job) < rung:
                self._failed[trial] = f"it failed: {self.folder.failure(job)}"
            elif rung not in self._curve(trial, seed, rung):
                self._failed[trial] = "it was not measured on validation samples"
        self._done += rung - before

    def experiment_of(self, trial: Trial, seed: int) -> Experiment:
        """What a trial runs."""
        made = part_of(self.experiment, trial.method, trial.rate, self.size, self.facts.test)
        return dataclasses.replace(made, seed=seed, name=str(trial))

    def _job(self, trial: Trial, seed: int) -> Job:
        made = self.experiment_of(trial, seed)
        return Job(Row(str(trial), {}), seed, made, digest(made))

    # ---- what was reached ----

    def _curve(self, trial: Trial, seed: int, until: int) -> dict[int, float]:
        """The validation accuracy after each rung up to one."""
        path = self.folder.directory(self._job(trial, seed)) / "rounds.jsonl"
        found = {record.round: record.validation for record in Lines(path, Round, may_be_torn=True)}
        reached = {rung: found.get(rung) for rung in self.size.rungs if rung <= until}
        return {rung: value for rung, value in reached.items() if value is not None}

    def _fall(self, trial: Trial, until: int) -> str:
        """What to say of a trial that is worse after a rung than after an earlier one, beyond noise; or ""."""
        curve = self._curve(trial, self.seeds[0], until)
        end, value = max(curve.items(), default=(0, 0.0))
        before, best = max(curve.items(), key=lambda point: point[1], default=(0, 0.0))
        if value >= best - noise(best, self.size.validation):
            return ""
        return f"it falls, from {100 * best:.1f} % after {before} rounds to {100 * value:.1f} % after {end}"

    def _ranked(self, trials: Sequence[Trial], rung: int, seeds: Sequence[int]) -> list[Trial]:
        """The best first, without those that failed, and without those that fall unless all do."""

        def value(trial: Trial) -> float:
            return -spread([self._curve(trial, seed, rung)[rung] for seed in seeds]).mean

        there = [trial for trial in trials if trial not in self._failed]
        return sorted([trial for trial in there if not self._fall(trial, rung)] or there, key=value)

    def _outcome(self, ranked: Sequence[Trial], behind: set[Trial], finished: bool) -> Outcome:
        standings = {}
        for trial in (*self.trials, *self.baselines):
            curves = [self._curve(trial, seed, self.size.rounds) for seed in self.seeds]
            rounds = max(curves[0], default=0)
            values = [curve[rounds] for curve in curves if rounds in curve]
            why = self._failed.get(trial) or self._fall(trial, self.size.rounds)
            if not why and rounds < self.size.rounds:
                why = "others were ahead" if trial in behind else "time was over"
            if values or trial in self._failed:
                standings[trial] = Standing(trial, rounds, spread(values) if values else None, why)
        order = sorted(standings.values(), key=lambda one: (-one.rounds, -one.accuracy.mean if one.accuracy else 0))
        best = [standings[trial] for trial in ranked] or [
            one for one in order if one.accuracy and not one.trial.candidate.baseline
        ]
        chosen = next(iter(best), None)
        return Outcome(self.size, order, chosen, finished, self.not_tried, self._constant(chosen))

    def _constant(self, chosen: Standing | None) -> float | None:
        """The share of the most frequent class among the validation samples, mean over the seeds of a trial."""
        if chosen is None or chosen.accuracy is None:
            return None
        seeds = self.seeds[: chosen.accuracy.runs]
        divisions = [self.experiment_of(chosen.trial, seed).divide() for seed in seeds]
        if any(one.validation is None or one.dataset.task is not CLASSIFICATION for one in divisions):
            return None
        labels = [one.validation.targets for one in divisions if one.validation is not None]
        return fmean(float(own.bincount().max()) / len(own) for own in labels)


def _more_time(takes: float) -> str:
    """What to do where the smallest trial takes so many seconds."""
    return f"give --try {math.ceil(takes / LARGEST / 60)}m, or make its rounds shorter"
