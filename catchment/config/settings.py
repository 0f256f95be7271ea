"""The tables of an experiment file as frozen dataclasses; each refuses values that cannot work."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from catchment import data
from catchment.engines.profiles import PROFILES, DeviceProfile
from catchment.errors import ExperimentError, at_least
from catchment.learning.optimizers import OptimizerSettings
from catchment.names import did_you_mean


@dataclass(frozen=True)
class PublicSettings:
    """`data.public` as a table: another data set, which everybody sees."""

    name: str
    train: int | None = None  # at most this many of its training samples, drawn with the seed

    def __post_init__(self) -> None:
        if self.train is not None:
            at_least("data.public.train", self.train, 1)


@dataclass(frozen=True)
class DataSettings:
    """`[data]`."""

    name: str = "digits"
    root: str | None = None  # folder of the Parquet files; CATCHMENT_DATA if not given
    clients: int = 8
    train: int | None = None  # at most this many training samples, drawn with the seed
    test: int | None = None
    public: float | PublicSettings | None = None  # share of the data that is public, or another set
    validation: float = 0.0  # share of the training data held out, for a measurement after every round
    partition: dict[str, Any] = field(default_factory=lambda: {"name": "iid"})
    size: int | None = None  # side of the squares that images are scaled into, in pixels; with boxes 416 if not given
    channels: int | None = None  # 1: images are made grey; 3: colour
    test_share: float | None = None  # share for testing of data that have no test part; 0.2 if they are not divided
    augment: tuple[str, ...] = ()  # "crop", "flip"; in detection "flip", "colour", "mosaic"
    download: bool = False  # fetch a missing set from the hub
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    classes: tuple[str, ...] | None = None  # names, in the order of their numbers, where the set does not say
    most_samples: int = 10_000  # that a client with data of its own may say it has; its weight in a mean

    def __post_init__(self) -> None:
        at_least("data.clients", self.clients, 1)
        at_least("data.most_samples", self.most_samples, 1)
        if self.size is not None:
            at_least("data.size", self.size, 1)
        if self.channels not in (None, 1, 3):
            raise ExperimentError(f"data.channels is {self.channels}; 1 (grey) or 3 (colour) is expected")
        if self.test_share is not None and not 0 < self.test_share < 1:
            raise ExperimentError(f"data.test_share is {self.test_share}; a share between 0 and 1 is expected")
        for name in ("train", "test"):
            if (limit := getattr(self, name)) is not None:
                at_least(f"data.{name}", limit, 1)
        if isinstance(self.public, int | float) and not 0 < self.public < 1:
            raise ExperimentError(f"data.public is {self.public}; a share between 0 and 1 is expected")
        if not 0 <= self.validation < 1:
            raise ExperimentError(f"data.validation is {self.validation}; a share from 0 to below 1 is expected")
        if self.classes is not None and len(set(self.classes)) < max(1, len(self.classes)):
            raise ExperimentError(f"data.classes is {list(self.classes)}; different names are expected")
        for name in ("train", "public", "test_share"):
            if self.own and getattr(self, name) is not None:
                raise ExperimentError(
                    f'data.{name} is about samples that are dealt, and with partition "own" clients bring theirs; '
                    "leave it out (public data are a split of that name in the folders of server and clients)"
                )
        if self.own and self.validation:
            raise ExperimentError(
                f'data.validation is {self.validation}, a share of samples that are dealt, and with partition "own" '
                "clients bring theirs, which the server cannot divide; leave it out"
            )

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
    weights: str | None = None  # a safetensors file; what of it fits a model takes the place of its first weights

    def __post_init__(self) -> None:
        if not self.client:
            raise ExperimentError("models.client is empty; at least one model is expected")


@dataclass(frozen=True)
class OptimizerTables:
    """`[optimizer.client]` and `[optimizer.server]`."""

    client: OptimizerSettings = field(default_factory=OptimizerSettings)
    server: OptimizerSettings = field(default_factory=OptimizerSettings)


@dataclass(frozen=True)
class ParticipationSettings:
    """`[participation]`."""

    fraction: float = 1.0  # of the reachable clients, drawn each round
    deadline: float | None = None  # seconds a synchronous method waits for replies

    def __post_init__(self) -> None:
        if self.deadline is not None and not self.deadline > 0:
            raise ExperimentError(f"participation.deadline is {self.deadline}; seconds above 0 are expected")
        if not 0 < self.fraction <= 1:
            raise ExperimentError(f"participation.fraction is {self.fraction}; a share above 0 up to 1 is expected")


@dataclass(frozen=True)
class DeviceSettings:
    """`[devices]`."""

    profile: str | tuple[str, ...] = "ideal"  # a list is dealt to the clients in turn
    profiles: dict[str, DeviceProfile] = field(default_factory=dict)  # the user's own, by name

    def __post_init__(self) -> None:
        self.chosen()

    def chosen(self) -> list[DeviceProfile]:
        """The profiles to deal."""
        known = {**PROFILES, **self.profiles}
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
    wait: float = 300.0  # seconds to wait for clients: for all before the first round, later for those that left
    least: int = 1  # minimum number of connected clients for a round
    answer: float = 3600.0  # seconds that a device has to answer one request

    def __post_init__(self) -> None:
        at_least("flower.least", self.least, 1)
        if not 0 <= self.port < 65536:
            raise ExperimentError(f"flower.port is {self.port}; a number from 0 to 65535 is expected")
        at_least("flower.wait", self.wait, 0)
        at_least("flower.answer", self.answer, 0)


@dataclass(frozen=True)
class EvaluationSettings:
    """`[evaluation]`."""

    every: int = 1  # evaluate every n-th round, and after the last
    average: float | None = None  # decay of the moving averages that are evaluated and exported; None: the method's own
    clients: int | None = None  # at most this many measure models of their own; None: all
    headline: Literal[  # shown first
        "accuracy", "balanced_accuracy", "macro_f1", "worst_recall", "auroc", "calibration_error"
    ] = "accuracy"  # fmt: skip

    def __post_init__(self) -> None:
        at_least("evaluation.every", self.every, 1)
        if self.clients is not None:
            at_least("evaluation.clients", self.clients, 1)
        if self.average is not None and not 0 <= self.average < 1:
            raise ExperimentError(f"evaluation.average is {self.average}; a decay from 0 to below 1 is expected")


@dataclass(frozen=True)
class CheckpointSettings:
    """`[checkpoint]`."""

    every: int = 1  # keep every n-th round, and the last

    def __post_init__(self) -> None:
        at_least("checkpoint.every", self.every, 1)
