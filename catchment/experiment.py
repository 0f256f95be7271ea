"""An experiment: frozen dataclasses that mirror its TOML file, and the way from there to a world and a transport.

Every mistake in a file is one sentence that names the key, what was given and what is expected.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import tomli_w
import torch

from catchment import data
from catchment.aggregators import AGGREGATORS, Aggregator, Mean
from catchment.attacks import ATTACKS, Attack, Intrusion, SignFlip
from catchment.codecs import Wire
from catchment.data import Division
from catchment.data.augment import check as check_augmentations
from catchment.errors import ExperimentError, at_least
from catchment.inspection import Inspection
from catchment.inversion import ProbeSettings
from catchment.method import Method, replies
from catchment.names import did_you_mean, resolve
from catchment.optimizers import OptimizerSettings
from catchment.transports.base import Transport
from catchment.transports.devices import DEVICES, Device, Faults
from catchment.transports.inprocess import InProcess
from catchment.world import World

METHODS = {
    "centralized": "catchment.methods.centralized:Centralized",
    "cronus": "catchment.methods.cronus:Cronus",
    "dgc": "catchment.methods.dgc:DGC",
    "dsfl": "catchment.methods.dsfl:DSFL",
    "fedavg": "catchment.methods.fedavg:FedAvg",
    "fedcams": "catchment.methods.fedcams:FedCAMS",
    "fedcom": "catchment.methods.fedcom:FedCOM",
    "feddf": "catchment.methods.feddf:FedDF",
    "fedgem": "catchment.methods.fedgem:FedGEM",
    "fedgems": "catchment.methods.fedgem:FedGEMS",
    "fedgkt": "catchment.methods.fedgkt:FedGKT",
    "fedkgf": "catchment.methods.fedkgf:FedKGF",
    "fedmd": "catchment.methods.fedmd:FedMD",
    "fedpm": "catchment.methods.fedpm:FedPM",
    "fedprox": "catchment.methods.fedprox:FedProx",
    "fedzkt": "catchment.methods.fedzkt:FedZKT",
    "smartidx": "catchment.methods.smartidx:SmartIdx",
    "split": "catchment.methods.split:Split",
    "splitfed": "catchment.methods.splitfed:SplitFed",
    "standalone": "catchment.methods.standalone:Standalone",
}
_DEFAULTS = {
    "method": "fedavg",
    "aggregation": "mean",
    "attack": "none",
}  # names of tables whose name says which other keys they have
T = TypeVar("T")


# ---- the tables of a file ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PublicSet:
    """`data.public` as a table: another data set, which everybody sees."""

    name: str
    train: int | None = None  # at most so many of its training samples, drawn with the seed


@dataclass(frozen=True)
class DataSettings:
    """`[data]`."""

    name: str = "digits"
    root: str | None = None  # folder of the Parquet files; CATCHMENT_DATA if not given
    clients: int = 8
    train: int | None = None  # at most so many training samples, drawn with the seed
    test: int | None = None
    public: float | PublicSet | None = None  # share of the data that is public, or another set
    partition: dict[str, Any] = field(default_factory=lambda: {"name": "iid"})
    augment: tuple[str, ...] = ()  # "crop", "flip"
    download: bool = False  # fetch a missing set from the hub
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    classes: tuple[str, ...] | None = None  # names, in the order of their numbers, where the set does not say
    most_samples: int = 10_000  # that a client with data of its own may say it has; its weight in a mean

    @property
    def own(self) -> bool:
        """Whether clients bring data of their own."""
        return self.partition.get("name") == data.OWN


@dataclass(frozen=True)
class ModelSettings:
    """`[models]`."""

    client: str | tuple[str, ...] = "cnn"  # a list is dealt to the clients in turn
    server: str | None = None
    initial: Literal["own", "glorot"] = "own"  # first weights


@dataclass(frozen=True)
class OptimizerTables:
    """`[optimizer.client]` and `[optimizer.server]`."""

    client: OptimizerSettings = field(default_factory=OptimizerSettings)
    server: OptimizerSettings = field(default_factory=OptimizerSettings)


@dataclass(frozen=True)
class Participation:
    """`[participation]`."""

    fraction: float = 1.0  # of the reachable clients, drawn each round
    deadline: float | None = None  # seconds a synchronous method waits for replies


@dataclass(frozen=True)
class DeviceSettings:
    """`[devices]`."""

    profile: str | tuple[str, ...] = "ideal"  # a list is dealt to the clients in turn
    profiles: dict[str, Device] = field(default_factory=dict)  # the user's own, by name

    def chosen(self) -> list[Device]:
        """The devices to deal."""
        known = {**DEVICES, **self.profiles}
        names = (self.profile,) if isinstance(self.profile, str) else self.profile
        if not names:
            raise ExperimentError(f"devices.profile is empty; known: {', '.join(known)}")
        for name in names:
            if name not in known:
                raise ExperimentError(f'unknown devices.profile "{name}"; {did_you_mean(name, known)}')
        return [known[name] for name in names]


@dataclass(frozen=True)
class WireSettings:
    """`[wire]`."""

    codecs: tuple[str, ...] = ()  # rules such as "up:features=int8+zstd"


@dataclass(frozen=True)
class FlowerSettings:
    """`[flower]`: for `engine = "flower"`."""

    local: bool = True  # the clients are processes of this machine, started and ended with the run
    host: str = "127.0.0.1"  # where the server listens
    port: int = 0  # 0: one that is free
    keys: str | None = None  # folder made by `catchment keys`; without it nothing is encrypted
    wait: float = 300.0  # seconds to wait for clients: for all of them before the first round, later for who left
    least: int = 1  # minimum number of connected clients for a round
    answer: float = 3600.0  # seconds that a device has to answer one request

    def __post_init__(self) -> None:
        at_least("flower.least", self.least, 1)
        if not 0 <= self.port < 65536:
            raise ExperimentError(f"flower.port is {self.port}; a number from 0 to 65535 is expected")
        at_least("flower.wait", self.wait, 0)
        at_least("flower.answer", self.answer, 0)


@dataclass(frozen=True)
class Every:
    """`[evaluation]` and `[checkpoint]`: every so many rounds, and after the last."""

    every: int = 1


@dataclass(frozen=True)
class Experiment:
    """One experiment, complete: the same file gives the same results."""

    name: str = "experiment"
    seed: int = 0
    rounds: int = 10
    engine: Literal["inprocess", "flower"] = "inprocess"
    workers: int = field(default_factory=lambda: os.cpu_count() or 1)  # threads that serve clients
    threads: int = 1  # PyTorch threads of one client's work; results may depend on it, never on `workers`
    strict: bool = False  # every message and every client state through bytes
    device: str = "cpu"
    path: str | None = None  # folder of the user's own modules; the file's folder if not given
    method: dict[str, Any] = field(default_factory=lambda: {"name": _DEFAULTS["method"]})
    data: DataSettings = field(default_factory=DataSettings)
    models: ModelSettings = field(default_factory=ModelSettings)
    optimizer: OptimizerTables = field(default_factory=OptimizerTables)
    participation: Participation = field(default_factory=Participation)
    devices: DeviceSettings = field(default_factory=DeviceSettings)
    faults: Faults = field(default_factory=Faults)
    wire: WireSettings = field(default_factory=WireSettings)
    aggregation: dict[str, Any] = field(default_factory=lambda: {"name": _DEFAULTS["aggregation"]})
    attack: dict[str, Any] = field(default_factory=lambda: {"name": _DEFAULTS["attack"]})
    inspection: Inspection = field(default_factory=Inspection)
    probe: ProbeSettings = field(default_factory=ProbeSettings)
    flower: FlowerSettings = field(default_factory=FlowerSettings)
    evaluation: Every = field(default_factory=Every)
    checkpoint: Every = field(default_factory=Every)

    def __post_init__(self) -> None:
        for name, least in (("rounds", 1), ("workers", 1), ("threads", 1), ("seed", 0)):
            at_least(name, getattr(self, name), least)
        at_least("data.clients", self.data.clients, 1)
        at_least("data.most_samples", self.data.most_samples, 1)
        for name in ("train", "test"):
            if (limit := getattr(self.data, name)) is not None:
                at_least(f"data.{name}", limit, 1)
        if not self.models.client:
            raise ExperimentError("models.client is empty; at least one model is expected")
        if self.participation.deadline is not None and not self.participation.deadline > 0:
            raise ExperimentError(
                f"participation.deadline is {self.participation.deadline}; seconds above 0 are expected"
            )
        at_least("evaluation.every", self.evaluation.every, 1)
        at_least("checkpoint.every", self.checkpoint.every, 1)
        if not 0 < self.participation.fraction <= 1:
            raise ExperimentError(
                f"participation.fraction is {self.participation.fraction}; a share above 0 up to 1 is expected"
            )
        if isinstance(self.data.public, PublicSet):
            if self.data.public.train is not None:
                at_least("data.public.train", self.data.public.train, 1)
        elif self.data.public is not None and not 0 < self.data.public < 1:
            raise ExperimentError(f"data.public is {self.data.public}; a share between 0 and 1 is expected")
        if self.data.classes is not None and len(set(self.data.classes)) < max(1, len(self.data.classes)):
            raise ExperimentError(f"data.classes is {list(self.data.classes)}; different names are expected")
        for name in ("train", "public"):
            if self.data.own and getattr(self.data, name) is not None:
                raise ExperimentError(
                    f'data.{name} is about samples that are dealt, and with partition "own" clients bring theirs; '
                    "leave it out (public data are a split of that name in the folders of server and clients)"
                )
        if self.probe.inversion and self.engine == "flower":
            raise ExperimentError(
                "probe.inversion scores itself with private images, which a real federation does not have; use "
                'engine = "inprocess"'
            )
        self.devices.chosen()
        Wire.parse(self.wire.codecs)

    # ---- from and to files ----

    @staticmethod
    def load(path: str | Path, changes: Mapping[str, Any] | None = None) -> Experiment:
        """Read a TOML file and those that it extends; `changes` maps dotted keys (`"method.mu"`) to other values."""
        path = Path(path)
        table = _read_file(path)
        table.setdefault("path", str(path.resolve().parent))
        return Experiment.from_dict(table, changes)._with_absolute_paths()

    @staticmethod
    def from_dict(table: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> Experiment:
        """An experiment from nested dicts, as a TOML file gives them."""
        merged = _copy(table)
        for key, value in (changes or {}).items():
            *parents, last = key.split(".")
            place = merged
            for parent in parents:
                place = place.setdefault(parent, {})
                if not isinstance(place, dict):
                    raise ExperimentError(f"{key} cannot be set: {parent} is a value, not a table")
            place[last] = value
        for key, name in _DEFAULTS.items():
            if isinstance(named := merged.setdefault(key, {}), dict):
                named.setdefault("name", name)
        experiment = _read(Experiment, merged, "")
        complete = experiment.to_dict()
        return dataclasses.replace(experiment, **{key: complete[key] for key in _DEFAULTS})

    @staticmethod
    def from_toml(text: str) -> Experiment:
        """An experiment from what `to_toml` gave."""
        try:
            return Experiment.from_dict(tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise ExperimentError(f"this is not valid TOML: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """Every setting, the method's defaults included; None is left out, as TOML has no such value."""
        table = _plain(dataclasses.asdict(self))
        built = {"method": self.build_method(), "aggregation": self.build_aggregator(), "attack": self.build_attack()}
        for key, thing in built.items():
            options = {} if thing is None else _plain(dataclasses.asdict(thing))  # type: ignore[arg-type]
            table[key] = {"name": getattr(self, key).get("name", _DEFAULTS[key]), **options}
        return typing.cast(dict[str, Any], table)

    def to_toml(self) -> str:
        """The file that gives this experiment again."""
        return tomli_w.dumps(self.to_dict())

    # ---- to things that run ----

    def build_method(self) -> Method[Any]:
        """The method with its hyper-parameters."""
        return self._named("method", Method, METHODS)  # type: ignore[type-abstract]

    def build_aggregator(self) -> Aggregator:
        """What the method averages uploads with."""
        return self._named("aggregation", Aggregator, AGGREGATORS)  # type: ignore[type-abstract]

    def build_attack(self) -> Attack | None:
        """What the attackers do, if there are any."""
        if self.attack.get("name", "none") == "none":
            return None
        return self._named("attack", Attack, {**ATTACKS, "none": None})

    def _named(self, key: str, kind: type[T], builtin: Mapping[str, Any]) -> T:
        """What a table stands for whose `name` says which other keys it has."""
        self._see_own_modules()
        table = dict(getattr(self, key))
        name = table.pop("name", _DEFAULTS[key])
        if not isinstance(name, str):
            raise ExperimentError(
                f'{key}.name is {_said(name)}; text in quotes is expected, such as "{_DEFAULTS[key]}"'
            )
        found = resolve(key, name, builtin)
        if not (isinstance(found, type) and issubclass(found, kind) and dataclasses.is_dataclass(found)):
            raise ExperimentError(f'{key} "{name}" must be a subclass of catchment.{kind.__name__} and a dataclass')
        return typing.cast(T, _read(found, table, key))

    def build_world(self, division: Division | None = None) -> World:
        """Data, models and method; every mismatch that can be found before training is found here.

        A device that brings its own data gives its `division`; otherwise data are loaded and dealt.
        """
        self._see_own_modules()
        d = self.data
        division = self.divide() if division is None else division
        attack = self.build_attack()
        intrusion = None if attack is None else Intrusion.plan(attack, d.clients, self.seed)
        division = division if intrusion is None else intrusion.poison(division)
        client, method = self.models.client, self.build_method()
        world = World(
            seed=self.seed,
            method=method,
            data=division,
            client_models=tuple(map(method.client_name, (client,) if isinstance(client, str) else client)),
            server_model=self.models.server,
            client_optimizer=self.optimizer.client,
            server_optimizer=self.optimizer.server,
            augment=d.augment,
            device=_device(self.device),
            wire=Wire.parse((*method.codecs, *self.wire.codecs)),
            aggregator=self.build_aggregator(),
            intrusion=intrusion,
            inspection=self.inspection,
            initial=self.models.initial,
            most_samples=d.most_samples,
        )
        if isinstance(attack, SignFlip) and attack.around == "request" and world.wire.remembers("down"):
            raise ExperimentError(
                'attack.around is "request", which the server does not keep where wire.codecs has delta, feedback, '
                'momentum or a warm-up downwards; set attack.around = "zero", or use a codec without memory'
            )
        if not world.method.aggregates and world.aggregator != Mean():
            raise ExperimentError(
                f'aggregation.name is "{self.aggregation["name"]}", but {self.method["name"]} does not average what '
                "clients send; leave [aggregation] out"
            )
        if self.inspection.action != "none" and not replies(type(world.method)) & {"features", "logits"}:
            raise ExperimentError(
                f'inspection.action is "{self.inspection.action}", but clients of {self.method["name"]} send neither '
                "features nor logits; where weights are averaged, choose an [aggregation]"
            )
        check_augmentations(d.augment)
        world.check_models()
        world.method.check(world)
        self.probe.check(world)
        return world

    def divide(self) -> Division:
        """The data set, dealt to the clients."""
        d = self.data
        if d.own and self.engine == "inprocess":
            raise ExperimentError(
                "only clients that join over the network have data of their own; use engine = flower, or another "
                "data.partition"
            )
        root = None if d.root is None else Path(d.root)
        dataset = data.load(
            d.name,
            root,
            train=d.train,
            test=d.test,
            seed=self.seed,
            download=d.download,
            mean=d.mean,
            std=d.std,
            classes=d.classes,
            own=d.own,
        )
        public: float | data.Dataset | None
        if isinstance(d.public, PublicSet):  # of its test samples one is decoded, as none is used
            other, limit = d.public.name, d.public.train
            public = data.load(other, root, train=limit, test=1, seed=self.seed, download=d.download)
        else:
            public = d.public
        return data.divide(dataset, d.clients, d.partition, public, self.seed)

    def build_transport(self, world: World, directory: Path | None = None) -> Transport:
        """The engine; large replies may wait in files of `directory`."""
        return InProcess(
            world,
            workers=self.workers,
            threads=self.threads,
            strict=self.strict,
            devices=self.devices.chosen(),
            faults=self.faults,
            directory=directory,
        )

    def _with_absolute_paths(self) -> Experiment:
        """Folders as seen from anywhere, so that a run can be resumed from another one."""

        def absolute(path: str) -> str:
            return str(Path(path).expanduser().absolute())

        settings = self.data
        partition = dict(settings.partition)
        if "/" in str(partition.get("file", "")):
            partition["file"] = absolute(partition["file"])
        method = dict(self.method)
        if isinstance(method.get("checkpoint"), str):
            method["checkpoint"] = absolute(method["checkpoint"])

        def source(name: str) -> str:
            is_folder = name not in data.SOURCES and Path(name).expanduser().is_dir()
            return absolute(name) if is_folder else name

        public = settings.public
        if isinstance(public, PublicSet):
            public = dataclasses.replace(public, name=source(public.name))
        settings = dataclasses.replace(
            settings,
            name=source(settings.name),
            public=public,
            root=None if settings.root is None else absolute(settings.root),
            partition=partition,
        )
        return dataclasses.replace(self, data=settings, method=method)

    def _see_own_modules(self) -> None:
        if self.path is not None and self.path not in sys.path:
            sys.path.insert(0, self.path)


def parse_setting(text: str) -> tuple[str, Any]:
    """`"method.client_epochs=2"` as key and value; the value is TOML, or plain text if it is not."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip() or "\n" in text:
        raise ExperimentError(f"--set {text}: expected key=value, such as --set method.client_epochs=2")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


# ---- files to tables --------------------------------------------------------------------------------------------

# Their `name` says what the other keys mean: under another name they start afresh.
_NAMED = ("method", "aggregation", "attack", "data.partition", "optimizer.client", "optimizer.server")


def _read_file(path: Path, users: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The table of a file, merged over those of the files that it extends; `users` are the files that led here."""
    trail = (*users, path)
    if path.resolve() in [user.resolve() for user in users]:
        raise ExperimentError(f"experiment files extend each other in a circle: {' -> '.join(map(str, trail))}")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        wanted = f", which {users[-1]} extends" if users else ""
        raise ExperimentError(f"there is no experiment file {path}{wanted}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ExperimentError(f"{path} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ExperimentError(f"{path} is not valid TOML: {error}") from None
    extends = table.pop("extends", [])
    names = [extends] if isinstance(extends, str) else extends
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ExperimentError(f"extends is {_said(extends)} in {path}; a file or a list of files is expected")
    merged: dict[str, Any] = {}
    for part in (*(_read_file(path.parent / name, trail) for name in names), table):
        merged = _merged(merged, part)
    return merged


def _merged(earlier: Mapping[str, Any], later: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Two tables key by key, where the later one wins."""
    if where in _NAMED and "name" in earlier and later.get("name", earlier["name"]) != earlier["name"]:
        return dict(later)
    merged = dict(earlier)
    for key, value in later.items():
        both_tables = isinstance(value, dict) and isinstance(earlier.get(key), dict)
        merged[key] = _merged(earlier[key], value, f"{where}.{key}" if where else key) if both_tables else value
    return merged


# ---- tables to dataclasses --------------------------------------------------------------------------------------


def _read(kind: type[T], table: Any, where: str) -> T:
    """A dataclass from a table; unknown keys and wrong types are errors with a place."""
    if not isinstance(table, dict):
        raise ExperimentError(f"{where} is {_said(table)}; a table is expected")
    hints = typing.get_type_hints(kind)
    known = {f.name for f in dataclasses.fields(kind) if f.init}  # type: ignore[arg-type]
    values = {}
    for key, value in table.items():
        place = f"{where}.{key}" if where else key
        if key not in known:
            raise ExperimentError(f'unknown key "{place}"; {did_you_mean(key, known)}')
        values[key] = _convert(hints[key], value, place)
    try:
        return kind(**values)
    except ExperimentError as error:
        raise ExperimentError(f"[{where}] {error}" if where else str(error)) from None
    except (TypeError, ValueError) as error:
        raise ExperimentError(f"[{where}] {error}") from None


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (types.UnionType, typing.Union):
        wrong = None

        def comes_late(option: Any) -> bool:  # lists and tables are tried as such first: the error names the item
            if isinstance(value, dict):
                return not dataclasses.is_dataclass(option)
            return isinstance(value, list) and typing.get_origin(option) is not tuple

        for option in sorted(arguments, key=comes_late):
            if option is type(None):
                continue
            try:
                return _convert(option, value, where)
            except ExperimentError as error:
                wrong = wrong or error
        raise wrong or ExperimentError(where)
    if origin is Literal:
        if value not in arguments:
            raise ExperimentError(f"{where} is {_said(value)}; expected one of {', '.join(map(str, arguments))}")
        return value
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_convert(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {key: _convert(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(hint):
        return _read(typing.cast(type, hint), value, where)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint in (int, float, bool, str) and type(value) is hint:
        return value
    raise ExperimentError(f"{where} is {_said(value)}; {_EXPECTED.get(origin or hint, str(hint))} is expected")


_EXPECTED = {
    int: "a whole number", float: "a number", bool: "true or false", str: "text in quotes",
    tuple: "a list", dict: "a table",
}  # fmt: skip


def _said(value: Any) -> str:
    return (
        f'the text "{value}"'
        if isinstance(value, str)
        else str(value).lower()
        if value in (True, False)
        else f"{value}"
    )


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ExperimentError(f'device "{name}" cannot be used here: {str(error).splitlines()[0]}') from None
    return device


def _copy(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in table.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
