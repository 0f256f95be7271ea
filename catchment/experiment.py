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
from catchment.codecs import Wire
from catchment.data.augment import check as check_augmentations
from catchment.errors import ExperimentError, at_least
from catchment.method import Method
from catchment.names import did_you_mean, resolve
from catchment.optimizers import OptimizerSettings
from catchment.transports.base import Transport
from catchment.transports.devices import DEVICES, Device, Faults
from catchment.transports.inprocess import InProcess
from catchment.world import World

METHODS = {
    "centralized": "catchment.methods.centralized:Centralized",
    "dgc": "catchment.methods.dgc:DGC",
    "fedavg": "catchment.methods.fedavg:FedAvg",
    "fedcams": "catchment.methods.fedcams:FedCAMS",
    "fedcom": "catchment.methods.fedcom:FedCOM",
    "fedgkt": "catchment.methods.fedgkt:FedGKT",
    "fedkgf": "catchment.methods.fedkgf:FedKGF",
    "fedpm": "catchment.methods.fedpm:FedPM",
    "fedprox": "catchment.methods.fedprox:FedProx",
    "smartidx": "catchment.methods.smartidx:SmartIdx",
    "split": "catchment.methods.split:Split",
    "splitfed": "catchment.methods.splitfed:SplitFed",
    "standalone": "catchment.methods.standalone:Standalone",
}
T = TypeVar("T")


# ---- the tables of a file ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DataSettings:
    """`[data]`."""

    name: str = "digits"
    root: str | None = None  # folder of the Parquet files; CATCHMENT_DATA if not given
    clients: int = 8
    train: int | None = None  # at most so many training samples, drawn with the seed
    test: int | None = None
    public: float | None = None  # share of the data that is public
    partition: dict[str, Any] = field(default_factory=lambda: {"name": "iid"})
    augment: tuple[str, ...] = ()  # "crop", "flip"
    download: bool = False  # fetch a missing set from the hub
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


@dataclass(frozen=True)
class ModelSettings:
    """`[models]`."""

    client: str | tuple[str, ...] = "cnn"  # a list is dealt to the clients in turn
    server: str | None = None


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
class Every:
    """`[evaluation]` and `[checkpoint]`: every so many rounds, and after the last."""

    every: int = 1


@dataclass(frozen=True)
class Experiment:
    """One experiment, complete: the same file gives the same results."""

    name: str = "experiment"
    seed: int = 0
    rounds: int = 10
    engine: Literal["inprocess"] = "inprocess"
    workers: int = field(default_factory=lambda: os.cpu_count() or 1)  # threads that serve clients
    threads: int = 1  # PyTorch threads of one client's work; results may depend on it, never on `workers`
    strict: bool = False  # every message and every client state through bytes
    device: str = "cpu"
    path: str | None = None  # folder of the user's own modules; the file's folder if not given
    method: dict[str, Any] = field(default_factory=lambda: {"name": "fedavg"})
    data: DataSettings = field(default_factory=DataSettings)
    models: ModelSettings = field(default_factory=ModelSettings)
    optimizer: OptimizerTables = field(default_factory=OptimizerTables)
    participation: Participation = field(default_factory=Participation)
    devices: DeviceSettings = field(default_factory=DeviceSettings)
    faults: Faults = field(default_factory=Faults)
    wire: WireSettings = field(default_factory=WireSettings)
    evaluation: Every = field(default_factory=Every)
    checkpoint: Every = field(default_factory=Every)

    def __post_init__(self) -> None:
        for name, least in (("rounds", 1), ("workers", 1), ("threads", 1), ("seed", 0)):
            at_least(name, getattr(self, name), least)
        at_least("data.clients", self.data.clients, 1)
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
        if self.data.public is not None and not 0 < self.data.public < 1:
            raise ExperimentError(f"data.public is {self.data.public}; a share between 0 and 1 is expected")
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
        if isinstance(method := merged.setdefault("method", {}), dict):
            method.setdefault("name", "fedavg")
        experiment = _read(Experiment, merged, "")
        return dataclasses.replace(experiment, method=experiment.to_dict()["method"])

    def to_dict(self) -> dict[str, Any]:
        """Every setting, the method's defaults included; None is left out, as TOML has no such value."""
        table = _plain(dataclasses.asdict(self))
        table["method"] = {"name": self.method.get("name", "fedavg"), **_plain(dataclasses.asdict(self.build_method()))}  # type: ignore[call-overload]
        return typing.cast(dict[str, Any], table)

    def to_toml(self) -> str:
        """The file that gives this experiment again."""
        return tomli_w.dumps(self.to_dict())

    # ---- to things that run ----

    def build_method(self) -> Method[Any]:
        """The method with its hyper-parameters."""
        self._see_own_modules()
        table = dict(self.method)
        name = table.pop("name", "fedavg")
        if not isinstance(name, str):
            raise ExperimentError(f'method.name is {_said(name)}; text in quotes is expected, such as "fedavg"')
        kind = resolve("method", name, METHODS)
        if not (isinstance(kind, type) and issubclass(kind, Method) and dataclasses.is_dataclass(kind)):
            raise ExperimentError(f'method "{name}" must be a subclass of catchment.Method and a dataclass')
        return typing.cast(Method[Any], _read(kind, table, "method"))

    def build_world(self) -> World:
        """Data, models and method; every mismatch that can be found before training is found here."""
        self._see_own_modules()
        d = self.data
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
        )
        division = data.divide(dataset, d.clients, d.partition, d.public, self.seed)
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
        )
        check_augmentations(d.augment)
        world.check_models()
        world.method.check(world)
        return world

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
        is_folder = settings.name not in data.SOURCES and Path(settings.name).expanduser().is_dir()
        settings = dataclasses.replace(
            settings,
            name=absolute(settings.name) if is_folder else settings.name,
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
_NAMED = ("method", "data.partition", "optimizer.client", "optimizer.server")


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

        def comes_late(option: Any) -> bool:  # a list is tried as a list first: the error then names its wrong item
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
