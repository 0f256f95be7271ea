"""The loop over rounds: start or resume, let the method work, evaluate, record, checkpoint."""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor

from catchment.checkpoint import Checkpoints, flatten, private_directory, streamed, unflatten, write_atomically
from catchment.costs.ledger import Ledger, summarise
from catchment.disclosure import disclosed
from catchment.errors import Diverged, ProtocolError, RunError, UserError
from catchment.expectations import Expectations
from catchment.experiment import Experiment
from catchment.fleet import Fleet
from catchment.inversion import CuriousServer
from catchment.message import Message, Request
from catchment.method import Metrics
from catchment.pictures import sheet
from catchment.rehearsal import peak_memory
from catchment.server import Server
from catchment.spool import Spool
from catchment.transports.base import Transport
from catchment.undo import broken, keepsake
from catchment.world import World

Record = dict[str, Any]
Observer = Callable[[Record], None]


def run(experiment: Experiment, out: str | Path | None = None, *, observe: Observer | None = None) -> Record:
    """Run an experiment and return its result; with `out`, keep everything in that directory.

    `observe` is called with the record of every round.
    """
    if experiment.engine == "flower":
        from catchment.flower.federation import federate

        with TemporaryDirectory() if out is None else nullcontext(out) as place:
            begin(experiment, Path(place))
            return federate(Path(place), observe or _unseen)
    world = experiment.build_world()  # before anything is written
    directory = None if out is None else begin(experiment, Path(out))
    return _Run(experiment, world, directory, observe, experiment.build_transport(world, directory)).go()


def begin(experiment: Experiment, directory: Path) -> Path:
    """Make the directory of a run, which must not hold one yet."""
    if (directory / "experiment.toml").exists():
        raise UserError(f"{directory} already holds a run; resume it, or choose another --out")
    try:
        private_directory(directory)
    except OSError as error:
        raise UserError(f"{directory} cannot be made: {error.strerror}") from None
    write_atomically(directory / "experiment.toml", experiment.to_toml().encode())
    return directory


def resume(out: str | Path, *, observe: Observer | None = None) -> Record:
    """Go on with the run in a directory from its last checkpoint; a finished run is left as it is."""
    directory = Path(out)
    if not (directory / "experiment.toml").exists():
        raise UserError(f"{directory} holds no run to resume (it has no experiment.toml)")
    if (directory / "result.json").exists():
        return json.loads((directory / "result.json").read_text())  # type: ignore[no-any-return]
    experiment = Experiment.load(directory / "experiment.toml")
    if experiment.engine == "flower":
        from catchment.flower.federation import federate

        return federate(directory, observe or _unseen)
    return go_on(directory, experiment.build_transport, observe)


def go_on(
    directory: Path, carrier: Callable[[World, Path | None], Transport], observe: Observer | None = None
) -> Record:
    """Do what is left of the run in a directory over the transport that `carrier` makes."""
    experiment = Experiment.load(directory / "experiment.toml")
    world = experiment.build_world()
    return _Run(experiment, world, directory, observe, carrier(world, directory)).go()


def _unseen(record: Record) -> None:
    pass


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
        self.server = Server(world, experiment.rounds, directory)
        self.ledger = Ledger()
        self.transport = transport
        self.fleet = Fleet(
            self.transport,
            world.method,
            self.ledger,
            seed=experiment.seed,
            wire=world.wire,
            directory=directory,
            fraction=experiment.participation.fraction,
            deadline=experiment.participation.deadline,
            intrusion=world.intrusion,
            inspection=world.inspection,
            expectations=Expectations.of(world.method, world),
        )
        self.checkpoints = None if directory is None else Checkpoints(directory / "checkpoints")
        self.rounds = _Lines(None if directory is None else directory / "rounds.jsonl")
        self.crossings = _Lines(None if directory is None else directory / "ledger.jsonl")
        self.directory = directory
        self.observe = observe or _unseen
        self.curious = CuriousServer(experiment.probe, world) if experiment.probe.inversion else None
        self.seconds = 0.0
        self.peaks: dict[str, int | None] = {}  # "handler of model" -> bytes
        self.firsts: dict[str, Request] = {}  # the first request of each, until it is rehearsed

    def go(self) -> Record:
        """All remaining rounds, then the result."""
        with _alone(self.directory), closing(self.transport):
            state, done = self._restore(self.method.init(self.server))
            for number in range(done + 1, self.experiment.rounds + 1):
                self._round(number, state)
            return self._finish(state)

    def _restore(self, state: Any) -> tuple[Any, int]:
        """State and round of the last checkpoint; what was given and 0 if there is none."""
        loaded = None if self.checkpoints is None else self.checkpoints.latest()
        if loaded is None:
            self.rounds.keep(0)
            self.crossings.keep(0)
            return state, 0
        state = unflatten(loaded.state, loaded.tensors, state)
        progress = loaded.progress
        self.ledger.totals = Counter({tuple(key): size for key, size in progress["bytes"]})
        self.ledger.fields = Counter({tuple(key): size for key, size in progress["fields"]})
        self.seconds = progress["seconds"]
        self.peaks = progress["peaks"]
        self.rounds.keep(loaded.round)
        self.crossings.keep(loaded.round)
        self.fleet.restore(loaded.fleet)
        return state, loaded.round

    def _round(self, number: int, state: Any) -> None:
        began = time.perf_counter()
        before = Counter(self.ledger.totals)
        last = number == self.experiment.rounds
        self.server.round = number
        self.server.history = [record["accuracy"] for record in self.rounds.all() if "accuracy" in record]
        self.server.notes = {}
        self.fleet.begin_round(number)
        if number == 1:
            self.fleet.watch = self._remember_first
        self.fleet.overhear = self.curious.overhear if self.curious and (last or number == 1) else None
        self._train(state)
        self.fleet.check_round()
        metrics = None
        if last or number % self.experiment.evaluation.every == 0:
            metrics = self.method.evaluate(self.server, state, self.fleet)
            self.fleet.check_round()
            self._show(metrics)
        if number == 1:
            self._rehearse()
        self.seconds += (seconds := time.perf_counter() - began)
        crossed = {key: size - before[key] for key, size in self.ledger.totals.items()}
        record = {
            "round": number,
            **_measured(metrics, self.world),
            **({"notes": self.server.notes} if self.server.notes else {}),
            "bytes": summarise(crossed),
            "seconds": seconds,
            "virtual_seconds": self.fleet.now,
            "events": [*self.transport.news(), *self.fleet.events],
            **self._inverted(number, state),
        }
        self.rounds.add(record)
        self.crossings.add({"round": number, "entries": self.ledger.close_round()})
        if self.checkpoints is not None and (last or number % self.experiment.checkpoint.every == 0):
            self._checkpoint(number, state)
        self.observe(record)

    def _train(self, state: Any) -> None:
        """The method's round; one that breaks the server's state is undone, so that one upload cannot end a run."""
        undo = keepsake(state)
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
            self.fleet.kept()
        else:
            undo()
            self.fleet.undone(failure)

    def _show(self, metrics: Metrics) -> None:
        """Keep the pictures of the last evaluation."""
        if self.directory is None or not metrics.images:
            return
        (self.directory / "images").mkdir(exist_ok=True)
        for name, images in metrics.images.items():
            write_atomically(self.directory / "images" / f"{name}.png", sheet(images, self.world.normalise))

    def _inverted(self, number: int, state: Any) -> Record:
        """What a curious server could rebuild of the images behind this round's features; nothing if none is asked."""
        found = self.curious.attack(self.server, state) if self.curious else None
        if found is None:
            return {}
        if self.directory is not None:
            (self.directory / "images").mkdir(exist_ok=True)
            picture = sheet(found.picture, self.world.normalise, columns=len(found.picture) // 2)
            write_atomically(self.directory / "images" / f"inversion-{number}.png", picture)
        return {"probe": found.record()}

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
            "seconds": self.seconds,
            "peaks": self.peaks,
        }
        self.checkpoints.save(number, state, self.fleet.snapshot(), progress)
        self.fleet.saved()

    def _finish(self, state: Any) -> Record:
        records = [record for record in self.rounds.all() if "accuracy" in record]
        final = records[-1]
        best = max(records, key=lambda record: record["accuracy"])
        counts = self.fleet.counts
        result = {
            "name": self.experiment.name,
            "method": self.experiment.method["name"],
            "options": {key: value for key, value in self.experiment.method.items() if key != "name"},
            "accuracy": final["accuracy"],
            "best": {"accuracy": best["accuracy"], "round": best["round"]},
            "server": final.get("server"),
            "clients": final.get("clients"),
            "models": final.get("models"),
            "more": final.get("more", {}),
            "self_reported": final.get("self_reported", []),
            "rounds": self.experiment.rounds,
            "bytes": self.ledger.summary(),
            "bytes_by_field": self._fields(),
            "leaves": [{**row._asdict(), "shows": row.shows} for row in disclosed(type(self.method), self.world)],
            "seconds": self.seconds,
            "virtual_seconds": self.fleet.now,
            "lost": counts.lost,
            "late": counts.late,
            "failed": counts.failed,
            "refused": counts.refused,
            "attack": self._attack(),
            "probe": [record["probe"] for record in self.rounds.all() if "probe" in record] or None,
            "costs": self._costs(),
            "data": self._data(),
            "fingerprint": fingerprint(state, {key: final.get(key) for key in ("accuracy", "server", "clients")}),
        }
        if self.directory is not None:
            write_atomically(self.directory / "result.json", (json.dumps(result, indent=2) + "\n").encode())
        return result

    def _attack(self) -> Record | None:
        """What was done by whom, and the strengths that were used; None if everybody was honest."""
        if self.world.intrusion is None:
            return None
        used: list[Record] = []
        for record in self.rounds.all():
            for event in record["events"]:
                if event["what"] == "attacked" and event["numbers"] not in used:
                    used.append(event["numbers"])
        return {**self.experiment.attack, "attackers": list(self.world.intrusion.attackers), "used": used}

    def _fields(self) -> Record:
        """Bytes of training by the field of the payload that they carried, framing included."""
        found: Record = {"up": {}, "down": {}}
        for (direction, field), size in sorted(self.ledger.fields.items()):
            found[direction][field] = size
        return found

    def _costs(self) -> Record:
        costs: Record = {
            "clients": {
                a.name: {"parameters": a.probe.parameters, "macs_per_sample": a.probe.total_macs}
                for a in self.world.client_architectures
            },
            "peak_memory": self.peaks,
        }
        if self.world.server_model is not None:
            probe = self.world.server_architecture.probe
            costs["server"] = {
                self.world.server_model: {"parameters": probe.parameters, "macs_per_sample": probe.total_macs}
            }
        return costs

    def _data(self) -> Record:
        division = self.world.data
        sizes = None if division.own else [len(rows) for rows in division.clients]  # of their own: nobody else knows
        return {
            "name": self.experiment.data.name,
            "clients": len(division.clients),
            "train": sizes and sum(sizes),
            "smallest_client": sizes and min(sizes),
            "largest_client": sizes and max(sizes),
            "test": len(division.test),
            "public": 0 if division.public is None else len(division.public),
        }


@contextmanager
def _alone(directory: Path | None) -> Iterator[None]:
    """Refuse a second process on one run directory; the lock goes with the process, however it ends."""
    if directory is None or os.name != "posix":
        yield
        return
    import fcntl

    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{directory} is in use: another process is running it") from None
        yield
    finally:
        os.close(descriptor)


def fingerprint(state: Any, measured: Record) -> str:
    """A short hash of all that the server remembers and of what it measured last: equal for runs that did the same."""
    tensors: dict[str, Tensor] = {}
    spools: list[Spool] = []
    form = flatten(state, "state", tensors, spools, in_order=True)
    digest = hashlib.sha256()
    for part in streamed(Message(tensors, {"form": json.dumps([form, measured])}), spools):
        digest.update(part)
    return digest.hexdigest()[:16]


def _measured(metrics: Metrics | None, world: World) -> Mapping[str, Any]:
    if metrics is None:
        return {}
    measured: Record = {"accuracy": metrics.accuracy}
    if metrics.server is not None:
        measured["server"] = dict(metrics.server)
    if metrics.clients:
        values = list(metrics.clients.values())
        measured["clients"] = {"accuracy": {"mean": statistics.fmean(values), "min": min(values), "max": max(values)}}
        if len(set(world.client_models)) > 1:
            models: dict[str, list[float]] = {}
            for client, accuracy in sorted(metrics.clients.items()):
                models.setdefault(world.client_architecture(client).name, []).append(accuracy)
            measured["models"] = {name: {"accuracy": statistics.fmean(own)} for name, own in models.items()}
    if metrics.more:
        measured["more"] = dict(metrics.more)
    if metrics.self_reported:
        measured["self_reported"] = list(metrics.self_reported)
    return measured


class _Lines:
    """A file of one JSON object a line, one line a round; without a path, a list."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._records: list[Record] = []

    def keep(self, rounds: int) -> None:
        """Drop what lies after a round: it will be done again."""
        if self._path is None or not self._path.exists():
            return
        lines = self._path.read_text().splitlines()[:rounds]
        self._records = [json.loads(line) for line in lines]
        if len(self._records) < rounds:
            raise RunError(
                f"{self._path} has {len(self._records)} rounds, its checkpoint says {rounds}; it was changed"
            )
        write_atomically(self._path, "".join(line + "\n" for line in lines).encode())

    def add(self, record: Record) -> None:
        """Append a round."""
        self._records.append(record)
        if self._path is not None:
            try:
                with self._path.open("a") as file:
                    file.write(json.dumps(record) + "\n")
            except OSError as error:
                raise RunError(f"{self._path} cannot be written: {error.strerror}") from error

    def flush(self) -> None:
        """Make sure that the disk has it."""
        if self._path is not None:
            with self._path.open("a") as file:
                os.fsync(file.fileno())

    def all(self) -> list[Record]:
        """Every round so far."""
        return self._records
