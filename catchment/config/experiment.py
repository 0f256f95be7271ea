"""An experiment: the settings of one TOML file, and the method, world and engine that they describe.

Every mistake in a file is one sentence that names the key, what was given and what is expected.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import tomli_w
import torch

from catchment import data
from catchment.codecs import Codecs
from catchment.config.objects import check_data, named
from catchment.config.paths import absolute
from catchment.config.settings import (
    CheckpointSettings,
    DataSettings,
    DeviceSettings,
    EvaluationSettings,
    FlowerSettings,
    ModelSettings,
    OptimizerTables,
    ParticipationSettings,
    PublicSettings,
    WireSettings,
)
from catchment.config.toml import changed, parse_toml, plain, read_file
from catchment.core.method import Method, replies
from catchment.core.patterns import check_fields, check_rules
from catchment.core.transport import Transport
from catchment.core.world import World
from catchment.data import Division
from catchment.errors import ExperimentError
from catchment.learning.precision import Precision, check_precision
from catchment.methods import METHODS
from catchment.models import read_weights, server_for
from catchment.names import resolve
from catchment.privacy.inversion import ProbeSettings
from catchment.reading import Count, Whole, read_table, shown
from catchment.robust import ATTACKS, Attack, AttackPlan
from catchment.robust.aggregators import AGGREGATORS, Aggregator, Mean
from catchment.robust.inspection import Inspection
from catchment.simulation.devices import Faults
from catchment.simulation.inprocess import InProcess
from catchment.simulation.ranks import Ranks
from catchment.tasks import CLASSIFICATION

ENDED = {"batched": False, "spread": False}  # settings of earlier versions, and what files may still give them
_DEFAULTS = {"method": "fedavg", "aggregation": "mean", "attack": "none"}  # of tables with a name and its options
T = TypeVar("T")


@dataclass(frozen=True)
class Experiment:
    """One experiment, complete: the same file gives the same results."""

    name: str = "experiment"
    """Shown in tables; `runs/NAME` is the default directory, so letters, digits, `_`, `-` and `.` are expected."""
    seed: Whole = 0
    """Everything random is derived from it."""
    rounds: Count = 10
    """The number of rounds."""
    engine: Literal["inprocess", "flower"] = "inprocess"
    """`inprocess` simulates clients in this process; `flower` runs them as real processes and machines."""
    workers: Count = field(default_factory=lambda: os.cpu_count() or 1)
    """Threads that serve clients, by default one per core; results never depend on it. Ranks of a machine share
    them."""
    threads: Count = 1
    """PyTorch threads per client at work; results may depend on it in the last digits."""
    strict: bool = False
    """Serialise every message and every client state: the same results, slower."""
    data_parallel: bool = False
    """Under `torchrun`, ranks share the training of the server's model; results then depend on their number in the last
    digits."""
    device: str = "cpu"
    """The PyTorch device on which server and clients compute, such as `"cuda"`."""
    precision: Precision = "float32"
    """The precision of forward and backward passes on both sides; weights and messages are always float32."""
    path: str | None = None
    """The folder of your own modules; without it, the folder of the file."""
    method: dict[str, Any] = field(default_factory=lambda: {"name": _DEFAULTS["method"]})
    """`name`, and the hyper-parameters of that method."""
    data: DataSettings = field(default_factory=DataSettings)
    """Data sets, and how samples are dealt to the clients."""
    models: ModelSettings = field(default_factory=ModelSettings)
    """The models of both sides."""
    optimizer: OptimizerTables = field(default_factory=OptimizerTables)
    """Optimisers of both sides."""
    participation: ParticipationSettings = field(default_factory=ParticipationSettings)
    """Which clients take part in a round, and how long a round waits for them."""
    devices: DeviceSettings = field(default_factory=DeviceSettings)
    """How fast the simulated devices are."""
    faults: Faults = field(default_factory=Faults)
    """What goes wrong in a simulation."""
    wire: WireSettings = field(default_factory=WireSettings)
    """How messages are coded."""
    aggregation: dict[str, Any] = field(default_factory=lambda: {"name": _DEFAULTS["aggregation"]})
    """`name`, and the options of a rule by which uploads are averaged."""
    attack: dict[str, Any] = field(default_factory=lambda: {"name": _DEFAULTS["attack"]})
    """`name`, and the options of an attack by some clients."""
    inspection: Inspection = field(default_factory=Inspection)
    """A comparison of uploads before the method gets them."""
    probe: ProbeSettings = field(default_factory=ProbeSettings)
    """What a curious server could rebuild."""
    flower: FlowerSettings = field(default_factory=FlowerSettings)
    """The server and its clients with `engine = "flower"`."""
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    """When models are evaluated, and which weights of them."""
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    """When a run is kept on the disk, to be resumed."""

    def __post_init__(self) -> None:
        if self.probe.inversion and self.engine == "flower":
            raise ExperimentError(
                "probe.inversion compares with the private images, which the server of a real federation lacks; use "
                'engine = "inprocess"'
            )
        for side in ("client", "server"):
            if getattr(self.optimizer, side).schedule.name == "plateau" and not self.data.validation:
                raise ExperimentError(
                    f'optimizer.{side}.schedule is "plateau", which needs validation samples, and there are none: '
                    "set data.validation, such as 0.1"
                )
        self._see_own_modules()
        Codecs.parse(self.wire.codecs)

    # ---- from and to files ----

    @staticmethod
    def load(path: str | Path, changes: Mapping[str, Any] | None = None) -> Experiment:
        """Read a TOML file and those that it extends; `changes` maps dotted keys (`"method.mu"`) to other values."""
        path = Path(path)
        table = read_file(path)
        if table.keys() & {"row", "axes"}:
            raise ExperimentError(f"{path} is a study; run it with: catchment study {path}")
        table.setdefault("path", str(path.resolve().parent))
        experiment = Experiment.from_dict(table, changes)
        return dataclasses.replace(experiment, **absolute(experiment.data, experiment.models))

    @staticmethod
    def of(**settings: Any) -> Experiment:
        """An experiment from settings as in a file, with objects where a file has names.

        `Experiment.of(rounds=5, method=FedAvg(client_epochs=2), models={"client": net}, data={"name": dataset})`
        """
        table = named(settings)
        check_data(table.get("data"))
        return Experiment.from_dict(table)

    @staticmethod
    def from_dict(table: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> Experiment:
        """An experiment from nested dicts, as a TOML file gives them."""
        merged = changed(table, changes or {})
        for key, value in ENDED.items():
            if (given := merged.pop(key, value)) is not value:
                raise ExperimentError(f"{key} is {shown(given)}, which this version does not have; leave it out")
        for key, name in _DEFAULTS.items():
            if isinstance(named := merged.setdefault(key, {}), dict):
                named.setdefault("name", name)
        experiment = read_table(Experiment, merged, "")
        complete = experiment.to_dict()
        evaluation = dataclasses.replace(experiment.evaluation, average=complete["evaluation"]["average"])
        models = dataclasses.replace(experiment.models, server=complete["models"].get("server"))
        tables = {key: complete[key] for key in _DEFAULTS}
        return dataclasses.replace(experiment, evaluation=evaluation, models=models, **tables)

    @staticmethod
    def from_toml(text: str) -> Experiment:
        """An experiment from what `to_toml` gave."""
        return Experiment.from_dict(parse_toml(text))

    def to_dict(self) -> dict[str, Any]:
        """Every setting, the method's defaults included; None is left out, as TOML has no such value."""
        table = plain(dataclasses.asdict(self))
        built: dict[str, Any] = {
            "method": self.build_method(),
            "aggregation": self.build_aggregator(),
            "attack": self.build_attack(),
        }
        for key, thing in built.items():
            options = {} if thing is None else plain(dataclasses.asdict(thing))
            table[key] = {"name": getattr(self, key).get("name", _DEFAULTS[key]), **options}
        table["evaluation"].setdefault("average", built["method"].moving_average)
        if self.models.server is None and (chosen := self.default_server()) is not None:
            table["models"]["server"] = chosen
        return typing.cast(dict[str, Any], table)

    def to_toml(self) -> str:
        """The file that gives this experiment again."""
        return tomli_w.dumps(self.to_dict())

    # ---- to things that run ----

    def default_server(self) -> str | None:
        """The server's model if none is named: one that goes with the clients', if the method needs one."""
        method = self.build_method()
        if not (method.takes_features or method.needs_server_model):
            return None
        clients = (self.models.client,) if isinstance(self.models.client, str) else self.models.client
        return server_for(clients, half=method.takes_features)

    def build_method(self) -> Method[Any]:
        """The method with its hyper-parameters."""
        return self._named("method", Method, METHODS)  # type: ignore[type-abstract]

    def build_aggregator(self) -> Aggregator:
        """How the method averages uploads."""
        return self._named("aggregation", Aggregator, AGGREGATORS)  # type: ignore[type-abstract]

    def build_attack(self) -> Attack | None:
        """What the attackers do, if there are any."""
        if self.attack.get("name", "none") == "none":
            return None
        return self._named("attack", Attack, {**ATTACKS, "none": None})

    def build_attack_plan(self) -> AttackPlan | None:
        """The attack and who takes part in it, if there is one."""
        attack = self.build_attack()
        return None if attack is None else AttackPlan.draw(attack, self.data.clients, self.seed)

    def _named(self, key: str, kind: type[T], builtin: Mapping[str, Any]) -> T:
        """The object that a table describes: its `name` says which class, the other keys are that class's fields."""
        self._see_own_modules()
        table = dict(getattr(self, key))
        name = table.pop("name", _DEFAULTS[key])
        if not isinstance(name, str):
            raise ExperimentError(
                f'{key}.name is {shown(name)}; text in quotes is expected, such as "{_DEFAULTS[key]}"'
            )
        found = resolve(key, name, builtin)
        if not (isinstance(found, type) and issubclass(found, kind) and dataclasses.is_dataclass(found)):
            raise ExperimentError(f'{key} "{name}" must be a subclass of catchment.{kind.__name__} and a dataclass')
        return typing.cast(T, read_table(found, table, key))

    def build_world(self, division: Division | None = None) -> World:
        """Data, models and method; every mismatch that can be found before training is found here.

        A device that brings its own data gives its `division`; otherwise data are loaded and dealt.
        """
        self._see_own_modules()
        d = self.data
        weights = read_weights(self.models.weights) if self.models.weights and division is None else {}
        division = self.divide() if division is None else division
        plan = self.build_attack_plan()
        attack = None if plan is None else plan.attack
        division = division if plan is None else plan.poison(division)
        client, method = self.models.client, self.build_method()
        task = division.dataset.task
        if task is not CLASSIFICATION and not method.any_task:
            raise ExperimentError(
                f"{self.method['name']} works with classes of whole images, and the task of {d.name} is {task.name}; "
                "use a method that exchanges weights, such as fedavg or fedkgf"
            )
        task.check_augmentations(d.augment)
        world = World(
            seed=self.seed,
            method=method,
            data=division,
            client_models=(client,) if isinstance(client, str) else client,
            server_model=self.models.server,
            client_optimizer=self.optimizer.client,
            server_optimizer=self.optimizer.server,
            augment=d.augment,
            device=_device(self.device),
            codecs=Codecs.parse((*method.codecs, *self.wire.codecs)),
            aggregator=self.build_aggregator(),
            initial=self.models.initial,
            most_samples=d.most_samples,
            rounds=self.rounds,
            average=method.moving_average if self.evaluation.average is None else self.evaluation.average,
            precision=self.precision,
            weights=weights,
        )
        check_precision(self.precision, world.device)
        if attack is not None and attack.needs_honest and method.sends:
            raise ExperimentError(
                f'attack.name is "{self.attack["name"]}", which is made from the honest replies to the same question, '
                f"and this {self.method['name']} asks each client its own; use sign-flip or label-flip"
            )
        if self.models.weights and self.engine == "flower" and method.derives_weights:
            raise ExperimentError(
                f"models.weights is a file of the server, and clients of {self.method['name']} make their own first "
                'weights; use engine = "inprocess", or leave it out'
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
        world.check_models()
        world.method.check(world)
        check_rules(world.codecs.rules, type(method), self.method["name"], world)
        check_fields(getattr(attack, "fields", ()), type(method), self.method["name"], "attack.fields", world)
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
            size=d.size,
            channels=d.channels,
            test_share=d.test_share,
        )
        public: float | data.Dataset | None
        if isinstance(d.public, PublicSettings):  # of its test samples one is decoded, as none is used
            other, limit = d.public.name, d.public.train
            public = data.load(
                other,
                root,
                train=limit,
                test=1,
                seed=self.seed,
                download=d.download,
                size=d.size,
                channels=d.channels,
            )
        else:
            public = d.public
        return data.divide(dataset, d.clients, d.partition, public, self.seed, d.validation)

    def build_transport(self, world: World, directory: Path | None = None, ranks: Ranks | None = None) -> Transport:
        """The engine; large replies may wait in files of `directory`, and clients be served by other ranks too."""
        return InProcess(
            world,
            workers=self.workers if ranks is None else ranks.share(self.workers),
            threads=self.threads,
            strict=self.strict,
            devices=self.devices.chosen(),
            faults=self.faults,
            directory=directory,
            seats=() if ranks is None else ranks.seats(self.workers),
        )

    def _see_own_modules(self) -> None:
        if self.path is not None and self.path not in sys.path:
            sys.path.insert(0, self.path)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ExperimentError(f'PyTorch device "{name}" cannot be used here: {str(error).splitlines()[0]}') from None
    return device
