"""The loop over rounds: start or resume, let the method work, evaluate, record, checkpoint."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

from catchment.config.experiment import Experiment
from catchment.core.expectations import Expectations
from catchment.core.fleet import Fleet
from catchment.core.ledger import Ledger, summarise
from catchment.core.method import Metrics
from catchment.core.server import Server
from catchment.core.stopwatch import Stopwatch
from catchment.core.transport import Transport
from catchment.core.world import World
from catchment.data.pictures import sheet
from catchment.errors import Diverged, ProtocolError, RunError, UserError
from catchment.exchange.request import VALIDATION, Request
from catchment.files import FileLock, write_atomically
from catchment.learning.evaluation import drawn
from catchment.learning.moving_average import StateAverages
from catchment.privacy.inversion import CuriousServer
from catchment.reading import read_json
from catchment.runs import summary
from catchment.runs.checkpoint import Checkpoints
from catchment.runs.directory import LEDGER, RESULT, ROUNDS
from catchment.runs.history import History
from catchment.runs.journal import Journal, Record, to_dict
from catchment.runs.records import Bytes, Event, Inversion, LedgerEntry, LedgerRound, Result, Round, Spent
from catchment.runs.rehearsal import peak_memory
from catchment.runs.state import fingerprint, unflatten
from catchment.runs.undo import broken, restorer
from catchment.tasks import Task

Observer = Callable[[Record], None]


def run_rounds(
    experiment: Experiment,
    world: World,
    transport: Transport,
    directory: Path | None = None,
    observe: Observer | None = None,
) -> Record:
    """Do the remaining rounds of the run in a directory; without one, all. Returns the result as in `result.json`."""
    return _Run(experiment, world, directory, observe, transport).go()


def ignore(record: Record) -> None:
    """The observer that does nothing."""


class _Run:
    """One run, from its start or its last checkpoint to its end."""

    def __init__(
        self,
        experiment: Experiment,
        world: World,
        directory: Path | None,
        observe: Observer | None,
        transport: Transport,
    ) -> None:
        self.experiment = experiment
        self.world = world
        self.method = world.method
        self.stopwatch = Stopwatch()
        self.server = Server(world, directory, self.stopwatch)
        self.ledger = Ledger()
        self.transport = transport
        self.expectations = Expectations.of(world.method, world)
        self.plan = experiment.build_attack_plan()
        looks = experiment.inspection.action
        participation = experiment.participation
        self.fleet = Fleet(
            self.transport,
            world.method,
            self.ledger,
            seed=experiment.seed,
            fraction=participation.fraction,
            deadline=participation.deadline,
            measured=experiment.evaluation.clients,
            codecs=world.codecs,
            expectations=self.expectations,
            attack=self.plan,
            inspection=None if looks == "none" else experiment.inspection,
            stopwatch=self.stopwatch,
        )
        self.checkpoints = None if directory is None else Checkpoints(directory / "checkpoints")
        self.history = History(experiment.evaluation.headline)
        self.rounds = Journal(None if directory is None else directory / ROUNDS, Round)
        self.crossings = Journal(None if directory is None else directory / LEDGER, LedgerRound)
        self.directory = directory
        self.observe = observe or ignore
        self.curious = CuriousServer(experiment.probe, world) if experiment.probe.inversion else None
        self.averages = StateAverages(world.average, self.method.models) if world.average else None
        self.spent: Counter[str] = Counter()  # seconds by kind of work, of all rounds
        self.peaks: dict[str, int | None] = {}  # "handler of model" -> bytes
        self.firsts: dict[str, Request] = {}  # the first request of each, until it is rehearsed

    def go(self) -> Record:
        """All remaining rounds, then the result."""
        with (
            nullcontext() if self.directory is None else FileLock(self.directory, "running it"),
            closing(self.transport),
        ):
            state, done = self._restore(self.method.init(self.server))
            if self.averages:
                self.averages.watch(state)
            self.stopwatch.lap()  # what came before is of no round
            for number in range(done + 1, self.experiment.rounds + 1):
                self._round(number, state)
            return self._finish(state)

    def _restore(self, state: Any) -> tuple[Any, int]:
        """State and round of the last checkpoint; what was given and 0 if there is none."""
        loaded = None if self.checkpoints is None else self.checkpoints.latest()
        if loaded is None:
            self._cut(0)
            return state, 0
        for record in self.rounds.until(loaded.round):
            self.history.add(record)
        deque(self.crossings.until(loaded.round), maxlen=0)  # it must be whole
        state = unflatten(loaded.state, loaded.tensors, state)
        if self.averages:
            self.averages.load(loaded.averages)
        progress = loaded.progress
        self.ledger.totals = Counter({tuple(key): size for key, size in progress["bytes"]})
        self.ledger.fields = Counter({tuple(key): size for key, size in progress["fields"]})
        self.spent = Counter(progress.get("spent") or {"server": progress["seconds"]})  # earlier versions had the sum
        self.peaks = progress["peaks"]
        self.fleet.restore(loaded.fleet)
        self._cut(loaded.round)  # last: what cannot be resumed is left as it is
        return state, loaded.round

    def _cut(self, round: int) -> None:
        """Drop the records after a round, which will be repeated."""
        self.rounds.cut(round)
        self.crossings.cut(round)

    def _round(self, number: int, state: Any) -> None:
        before = Counter(self.ledger.totals)
        last = number == self.experiment.rounds
        self._begin(number, last)
        self._train(state)
        self.fleet.check_round()
        metrics = None
        with self.stopwatch.during("evaluation", whole=True):
            if last or number % self.experiment.evaluation.every == 0:
                metrics = self._evaluate(state)
                self.fleet.check_round()
                self._show(metrics)
            if last:
                self._draw(state)
            validation = self._validate(state)
            if number == 1:
                self._rehearse()
        spent = self._lap()
        for greeting in self.transport.greetings():
            self.ledger.book_greeting(*greeting)
        crossed = {key: size - before[key] for key, size in self.ledger.totals.items()}
        record = Round(
            round=number,
            **summary.measured(metrics, self.world, self.expectations if last else None),
            validation=validation,
            notes=self.server.notes,
            bytes=Bytes(**summarise(crossed)),
            seconds=sum(spent.values()),
            spent=Spent(**spent),
            virtual_seconds=self.fleet.now,
            events=[Event(**event) for event in (*self.transport.news(), *self.fleet.outcomes.events)],
            probe=self._inverted(number, state),
        )
        self._record(record)
        if last or number % self.experiment.checkpoint.every == 0:
            with self.stopwatch.during("disk", whole=True):
                self._checkpoint(number, state)
        self.observe(to_dict(record))

    def _lap(self) -> dict[str, float]:
        """Seconds by kind of work since the last lap."""
        spent = self.stopwatch.lap()
        self.spent.update(spent)
        return spent

    def _begin(self, number: int, last: bool) -> None:
        """Start a round on server and fleet, and set who observes it."""
        validation = list(self.history.validation)
        self.server.begin_round(number, validation)
        self.fleet.begin_round(number, self.world.client_optimizer.schedule.drops(validation))
        if number == 1:
            self.fleet.watch = self._remember_first
        self.fleet.intake.observe = self.curious.observe if self.curious and (last or number == 1) else None

    def _record(self, record: Round) -> None:
        """Write a round and its bytes."""
        self.history.add(record)
        self.rounds.add(record)
        entries = [LedgerEntry(**entry) for entry in self.ledger.close_round()]
        self.crossings.add(LedgerRound(round=record.round, entries=entries))

    def _train(self, state: Any) -> None:
        """The method's round; one that breaks the server's state is undone, so that one upload cannot end a run."""
        undo = restorer([state, self.averages])
        failure: Exception | None = None
        try:
            self.method.round(self.server, state, self.fleet)
            if why := broken(state):
                failure = Diverged(why)
        except Diverged as error:
            failure = error
        except (RunError, ProtocolError):
            raise
        except Exception as error:  # a reply that fits and yet cannot be used, or a mistake in the method
            failure = error
        if failure is None:
            self.fleet.outcomes.round_kept()
            if self.averages:
                self.averages.end_round(state)
        else:
            undo()
            self.fleet.round_undone(failure)

    def _evaluate(self, state: Any) -> Metrics:
        """The method's evaluation, of moving averages where the experiment has them."""
        with self.averages.swapped_in(state) if self.averages else nullcontext():
            return self.method.evaluate(self.server, state, self.fleet)

    def _validate(self, state: Any) -> float | None:
        """The accuracy on validation samples; None if there are none."""
        if self.world.data.validation is None:
            return None
        with self.server.validating(), self.fleet.aside(VALIDATION):
            return self._evaluate(state).accuracy

    def _show(self, metrics: Metrics) -> None:
        """Keep the pictures of the last evaluation."""
        if self.directory is None or not metrics.images:
            return
        (self.directory / "images").mkdir(exist_ok=True)
        for name, images in metrics.images.items():
            write_atomically(self.directory / "images" / f"{name}.png", sheet(images, self.world.normalise))

    def _draw(self, state: Any) -> None:
        """Draw what the global model finds in a few test images, where the task has something to draw."""
        world = self.world
        if self.directory is None or type(world.task).drawn is Task.drawn or not len(world.data.test):
            return
        with self.averages.swapped_in(state) if self.averages else nullcontext():
            try:
                model = self.method.server_model(self.server, state)
            except UserError:  # there is no global model
                return
            images = drawn(model, world.data.test, world.normalise, world.device, world.task)
        if images is not None:
            (self.directory / "images").mkdir(exist_ok=True)
            picture = sheet(images, world.normalise, columns=len(images) // 2)
            write_atomically(self.directory / "images" / "found.png", picture)

    def _inverted(self, number: int, state: Any) -> Inversion | None:
        """What a curious server could rebuild from this round's features; None without the probe."""
        found = self.curious.attack(self.server, state) if self.curious else None
        if found is None:
            return None
        if self.directory is not None:
            (self.directory / "images").mkdir(exist_ok=True)
            picture = sheet(found.picture, self.world.normalise, columns=len(found.picture) // 2)
            write_atomically(self.directory / "images" / f"inversion-{number}.png", picture)
        return read_json(Inversion, json.dumps(found.record()), "the inversion")

    def _rehearse(self) -> None:
        """Measure once what each handler costs a client of each model; not without the samples that it works on."""
        self.fleet.watch = None
        for name, request in self.firsts.items():
            self.peaks[name] = None if self.world.data.own else peak_memory(self.world, request)
        self.firsts = {}

    def _remember_first(self, requests: list[Request]) -> None:
        for request in requests:
            if not request.aside:
                model = self.world.client_architecture(request.client).name
                self.firsts.setdefault(f"{request.handler} of {model}", request)

    def _checkpoint(self, number: int, state: Any) -> None:
        if self.checkpoints is None:
            return
        self.rounds.flush()
        self.crossings.flush()
        progress = {
            "bytes": [[list(key), size] for key, size in self.ledger.totals.items()],
            "fields": [[list(key), size] for key, size in self.ledger.fields.items()],
            "spent": dict(self.spent),
            "peaks": self.peaks,
        }
        averages = self.averages.tensors() if self.averages else {}
        self.checkpoints.save(number, state, self.fleet.snapshot(), progress, averages)
        self.fleet.saved()

    def _finish(self, state: Any) -> Record:
        self._lap()
        final = self.history.last
        assert final is not None  # a run has a round at least
        counts = self.fleet.outcomes.counts
        last = {key: to_dict(final).get(key) for key in ("accuracy", "server", "clients")}
        result = Result(
            name=self.experiment.name,
            method=self.experiment.method["name"],
            options={key: value for key, value in self.experiment.method.items() if key != "name"},
            accuracy=final.accuracy,
            best=self.history.best,
            fall=summary.fall(self.history, final, self.world),
            scores=final.scores,
            recall=final.recall,
            confusion=final.confusion,
            server=final.server,
            clients=final.clients,
            models=final.models,
            by_client=final.by_client,
            more=final.more,
            self_reported=final.self_reported,
            validation=final.validation,
            rounds=self.experiment.rounds,
            bytes=Bytes(**self.ledger.summary()),
            bytes_by_field=summary.bytes_by_field(self.ledger),
            leaves=summary.leaving_fields(self.world),
            seconds=self.spent.total(),
            spent=Spent(**self.spent),
            virtual_seconds=self.fleet.now,
            lost=counts.lost,
            late=counts.late,
            failed=counts.failed,
            refused=counts.refused,
            attack=summary.attack_record(self.experiment, self.plan, self.history.strengths),
            probe=self.history.probes or None,
            costs=summary.model_costs(self.world, self.peaks),
            data=summary.data_sizes(self.experiment, self.world),
            fingerprint=fingerprint(state, last),
        )
        table = to_dict(result)
        if self.directory is not None:
            write_atomically(self.directory / RESULT, (json.dumps(table, indent=2) + "\n").encode())
        return table
