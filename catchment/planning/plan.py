"""What an experiment costs every kind of device and the server, before any training, and whether it fits.

Messages, turns and times are those of a walk (`walk`), so bytes equal those of the ledger of the run. Where they depend
on values, two walks bound them, and a short run on a few samples shows where in between to expect them. Memory is
measured, as the run does it (`runs.rehearsal`): two batches of the client's work, for every handler and model.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from catchment.config.experiment import Experiment
from catchment.core.declarations import leaving
from catchment.core.world import World
from catchment.data import Division
from catchment.data.parts import Parts
from catchment.errors import ExperimentError, RunError
from catchment.planning.walk import Walk, real, walk
from catchment.runs.rehearsal import PeakMemory, peak_memory
from catchment.simulation.devices import DeviceProfile

SECONDS = 30.0  # for the rounds of one walk; the others are taken to be like the last ones
MOST = ("macs", "up", "down", "seconds")
FEW_CLIENTS, FEW_SAMPLES, FEW_ROUNDS = 8, 64, 3  # of the run that shows what values do


@dataclass(frozen=True)
class Amount:
    """Bytes: from `low` to `high`, and what to expect; all three are equal where values do not matter."""

    low: int
    expected: int
    high: int

    @property
    def exact(self) -> bool:
        """Whether values do not matter."""
        return self.low == self.high


@dataclass(frozen=True)
class DeviceKind:
    """The clients with one model and one profile; work, bytes and seconds are the most of one of them in one round."""

    model: str
    profile: str
    clients: int
    parameters: int
    samples: int  # the most
    macs: int
    memory: int | None  # peak, in bytes; None if no handler can be measured on its own
    up: int
    down: int
    seconds: float
    problems: tuple[str, ...]  # why it does not fit


@dataclass(frozen=True)
class ServerPart:
    """The server; work is the mean of a round."""

    model: str | None
    parameters: int
    macs: int
    memory: int  # peak, in bytes


@dataclass(frozen=True)
class Plan:
    """What an experiment costs."""

    name: str
    method: str
    rounds: int
    walked: int  # rounds that were looked at; the others are taken to be like the last of these
    devices: tuple[DeviceKind, ...]
    server: ServerPart
    up: Amount  # of all clients in all rounds
    down: Amount
    evaluation: int
    work: int  # MACs of all clients and the server in all rounds
    virtual_seconds: float
    leaves: tuple[str, ...]  # kinds of knowledge that devices send

    @property
    def fits(self) -> bool:
        """Whether every device can do its part."""
        return not any(kind.problems for kind in self.devices)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {**asdict(self), "fits": self.fits}


def plan(experiment: Experiment, *, seconds: float = SECONDS, measure: bool = True) -> Plan:
    """The plan of an experiment; `seconds` is the time for the rounds of one walk.

    Where bytes depend on values, `measure` trains a little to find what to expect; otherwise the most is expected.
    """
    if experiment.data.own:
        raise ExperimentError(
            'a plan needs to know how many samples each device has; with data.partition "own" only the devices know: '
            "plan with the partition that you expect, such as --set data.partition.name=iid, and data of that size"
        )
    world = experiment.build_world()
    late = experiment.participation.deadline is not None
    quiet = _walked(lambda: walk(experiment, world, seconds=seconds))
    walked = len(quiet.rounds)
    memory = PeakMemory()
    loud = _walked(lambda: walk(experiment, world, "loud", rounds=walked, memory=memory))
    amounts = _amounts(quiet, loud, experiment.rounds, lambda: _shares(experiment, world) if measure else {})
    macs = quiet.server_macs // walked
    return Plan(
        name=experiment.name,
        method=experiment.method["name"],
        rounds=experiment.rounds,
        walked=walked,
        devices=tuple(_kinds(experiment, world, _patient(experiment, world) if late else loud)),
        server=ServerPart(world.server_model, _server_parameters(world), macs, memory.peak),
        up=amounts["up"],
        down=amounts["down"],
        evaluation=_total(quiet, "evaluation", experiment.rounds),
        work=(quiet.server_macs + sum(each.macs for each in quiet.exchanges)) * experiment.rounds // walked,
        virtual_seconds=loud.virtual_seconds * (experiment.rounds / walked),
        leaves=tuple(dict.fromkeys(field.kind for field in leaving(type(world.method)))),
    )


def _walked(go: Callable[[], Walk]) -> Walk:
    try:
        return go()
    except RunError as error:
        raise RunError(f"the run would fail without any training: {error}") from error


def _patient(experiment: Experiment, world: World) -> Walk:
    """A loud round without a deadline, which shows how long devices take that miss it."""
    participation = dataclasses.replace(experiment.participation, deadline=None)
    return walk(dataclasses.replace(experiment, participation=participation), world, "loud", rounds=1)


def _server_parameters(world: World) -> int:
    return 0 if world.server_model is None else world.server_architecture.facts.parameters


def _total(found: Walk, direction: str, rounds: int) -> int:
    """The bytes of all rounds; those that were not walked are like the later half of those that were."""
    sent: list[int] = [getattr(record, direction) for record in found.rounds]
    later = sent[len(sent) // 2 :]
    return sum(sent) + round(sum(later) / len(later) * (rounds - len(sent)))


def _amounts(quiet: Walk, loud: Walk, rounds: int, measured: Callable[[], dict[str, float]]) -> dict[str, Amount]:
    """The bytes of the run, up and down."""
    bounds = {way: tuple(_total(each, way, rounds) for each in (quiet, loud)) for way in ("up", "down")}
    shares = measured() if any(low != high for low, high in bounds.values()) else {}
    return {
        way: Amount(low, round(low + shares.get(way, 1.0) * (high - low)), high) for way, (low, high) in bounds.items()
    }


def _shares(experiment: Experiment, world: World) -> dict[str, float]:
    """Where between the two walks a real run is, up and down: found with few clients, samples and rounds."""
    experiment = dataclasses.replace(experiment, rounds=min(experiment.rounds, FEW_ROUNDS))
    world = dataclasses.replace(world, data=_few(world.data), rounds=experiment.rounds)
    walks = walk(experiment, world), real(experiment, world), walk(experiment, world, "loud")
    shares = {}
    for direction in ("up", "down"):
        low, between, high = (each.total(direction) for each in walks)
        shares[direction] = min(1.0, max(0.0, (between - low) / (high - low))) if high > low else 1.0
    return shares


def _few(division: Division) -> Division:
    def few(samples: Any) -> Any:
        return None if samples is None else dataclasses.replace(samples, index=samples.index[: 4 * FEW_SAMPLES])

    parts = ("test", "public", "public_test", "validation")
    clients = Parts.of([rows[:FEW_SAMPLES] for rows in islice(division.clients, FEW_CLIENTS)])
    return dataclasses.replace(division, clients=clients, **{name: few(getattr(division, name)) for name in parts})


def _kinds(experiment: Experiment, world: World, found: Walk) -> Iterator[DeviceKind]:
    """The kinds of devices, with the most that one of each does in a round."""
    chosen = experiment.devices.profile
    names = (chosen,) if isinstance(chosen, str) else chosen
    profiles = dict(zip(names, experiment.devices.chosen()))

    def kind_of(client: int) -> tuple[int, str]:
        return client % len(world.client_models), names[client % len(names)]

    members: dict[tuple[int, str], list[int]] = defaultdict(list)
    for client in range(world.clients):
        members[kind_of(client)].append(client)
    each: dict[tuple[int, int], dict[str, float]] = defaultdict(lambda: dict.fromkeys(MOST, 0.0))  # by client, round
    for exchange in found.exchanges:
        done = each[exchange.client, exchange.round]
        for key in MOST:
            done[key] += getattr(exchange, key)
    memory = _memory(world, found)
    for (model, profile), clients in members.items():
        facts, name = world.client_architectures[model].facts, world.client_architectures[model].name
        own = [done for (client, _), done in each.items() if kind_of(client) == (model, profile)]
        most = {key: max((done[key] for done in own), default=0.0) for key in MOST}
        yield DeviceKind(
            model=name,
            profile=profile,
            clients=len(clients),
            parameters=facts.parameters,
            samples=max(int(world.data.clients.sizes[client]) for client in clients),
            macs=int(most["macs"]),
            memory=memory.get(name),
            up=int(most["up"]),
            down=int(most["down"]),
            seconds=most["seconds"],
            problems=tuple(_problems(profiles[profile], memory.get(name), most["seconds"], experiment)),
        )


def _memory(world: World, found: Walk) -> dict[str, int]:
    """The peak memory of each model's clients."""
    peaks: dict[str, int] = {}
    for (_, model), request in found.firsts.items():
        peak = peak_memory(world, request)
        if peak is not None:
            peaks[model] = max(peak, peaks.get(model, 0))
    return peaks


def _problems(profile: DeviceProfile, memory: int | None, seconds: float, experiment: Experiment) -> Iterator[str]:
    deadline = experiment.participation.deadline
    if profile.memory is not None and memory is not None and memory > profile.memory * 2**20:
        yield f"it has {profile.memory:g} MiB of memory, and {memory / 2**20:.0f} are needed"
    if deadline is not None and seconds > deadline:
        yield f"it takes {seconds:.3g} s, and participation.deadline is {deadline:g} s"
