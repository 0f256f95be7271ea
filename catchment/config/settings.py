"""The tables of an experiment file as frozen dataclasses; each refuses values that cannot work.

The docstring below a field is what `catchment schema` and docs/experiment.md say of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from catchment import data
from catchment.errors import ExperimentError
from catchment.learning.optimizers import OptimizerSettings
from catchment.names import did_you_mean
from catchment.reading import Count, NonNegative, Positive, Share, ShareFrom0, ShareTo1
from catchment.simulation.devices import PROFILES, DeviceProfile


@dataclass(frozen=True)
class PublicSettings:
    """`data.public` as a table: another data set, which everybody sees."""

    name: str
    """A data set, as in `data.name`."""
    train: Count | None = None
    """At most this many of its training samples, drawn with the seed."""


@dataclass(frozen=True)
class DataSettings:
    """`[data]`."""

    name: str = "digits"
    """A data set by its built-in name, the path of a folder or a file, or `"module:function"`."""
    root: str | None = None
    """The folder that holds `NAME/train.parquet` and `NAME/test.parquet`, or `.npz` files of these names; without it,
    the environment variable `CATCHMENT_DATA`."""
    clients: Count = 8
    """The number of clients that the training samples are dealt to."""
    train: Count | None = None
    """At most this many training samples, drawn with the seed; only these are decoded. More than the set has are
    refused."""
    test: Count | None = None
    """At most this many test samples, likewise."""
    public: Share | PublicSettings | None = None
    """The share of training and test samples that everybody sees; clients get the rest. Or another data set:
    `{ name = "cifar100", train = 5000 }`."""
    validation: ShareFrom0 = 0.0
    """The share of the training samples that nobody trains on, drawn with the seed before anything is public or dealt;
    the method is evaluated on them after every round."""
    partition: dict[str, Any] = field(default_factory=lambda: {"name": "iid"})
    """How training samples are dealt to the clients: a name, and the options of that partition."""
    size: Count | None = None
    """The side of the squares that images are scaled into, in pixels; without it 416 for images with boxes, and no
    scaling for others."""
    channels: Annotated[Literal[1, 3], Field(title="1 (grey) or 3 (colour)")] | None = None
    """1 makes images grey, 3 makes them colour; without it, a set is colour if one of its images is."""
    test_share: Share | None = None
    """The share of each class for testing, drawn with the seed, where there is no test split; without it 0.2 of data
    that are not divided into splits, and a train split alone is not divided."""
    augment: tuple[str, ...] = ()
    """`"crop"`, `"flip"`; with boxes `"flip"`, `"colour"`, `"mosaic"`. Derived from seed, client, round and sample."""
    download: bool = False
    """Download a missing set from the Hugging Face hub into `root`, which must be set; not the sets with boxes."""
    mean: tuple[float, ...] | None = None
    """The mean of each channel after pixels are scaled to 0..1, for uint8 images alone; without it, the known mean of a
    built-in set, 0.5 for others."""
    std: tuple[float, ...] | None = None
    """The standard deviation of each channel, likewise."""
    classes: tuple[str, ...] | None = None
    """The names of the classes in the order of their numbers, for folders that do not say them, or not all."""
    most_samples: Count = 10_000
    """With partition `own`: the most samples that a client may claim, which is its weight in a mean; the number of its
    first accepted reply stays."""

    def __post_init__(self) -> None:
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


Names = Annotated[tuple[str, ...], Field(min_length=1, title="at least one name")]


@dataclass(frozen=True)
class ModelSettings:
    """`[models]`."""

    client: Annotated[str, Field(min_length=1, title="a name")] | Names = "cnn"
    """The model of the clients, or a list of models that is dealt to the clients in turn."""
    server: str | None = None
    """The model of the server, where the method has one; without it, one that goes with the model of the clients."""
    initial: Literal["own", "glorot"] = "own"
    """First weights: `own` are the weights that the model gives itself, `glorot` are uniform weights after Glorot and
    Bengio for linear and convolutional layers, and biases of zero."""
    weights: str | None = None
    """A safetensors file. Every model takes from it the tensors that have the name and the shape of one of its own, and
    keeps its first weights elsewhere."""


@dataclass(frozen=True)
class OptimizerTables:
    """`[optimizer.client]` and `[optimizer.server]`."""

    client: OptimizerSettings = field(default_factory=OptimizerSettings)
    """The optimiser of every client."""
    server: OptimizerSettings = field(default_factory=OptimizerSettings)
    """The optimiser of the server, where it trains."""


@dataclass(frozen=True)
class ParticipationSettings:
    """`[participation]`."""

    fraction: ShareTo1 = 1.0
    """The share of the reachable clients that is drawn each round."""
    deadline: Positive | None = None
    """Seconds that a synchronous method waits for replies, on the virtual clock; over Flower, real seconds."""


@dataclass(frozen=True)
class DeviceSettings:
    """`[devices]`."""

    profile: str | tuple[str, ...] = "ideal"
    """A kind of device, or a list that is dealt to the clients in turn."""
    profiles: dict[str, DeviceProfile] = field(default_factory=dict)
    """Kinds of devices of your own, by name."""

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

    codecs: tuple[str, ...] = ()
    """Rules that say how tensors are coded on the wire, such as `["up:features=int8+zstd"]`."""


@dataclass(frozen=True)
class FlowerSettings:
    """`[flower]`: for `engine = "flower"`."""

    local: bool = True
    """The clients are processes of this machine, started and ended with the run."""
    host: str = "127.0.0.1"
    """Where the server listens."""
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """The port of the server; 0 is one that is free."""
    keys: str | None = None
    """The folder made by `catchment keys`; without it nothing is encrypted."""
    wait: NonNegative = 300.0
    """Seconds to wait for clients: for all before the first round, later for those that left."""
    least: Count = 1
    """The minimum number of connected clients for a round."""
    answer: NonNegative = 3600.0
    """Seconds that a device has to answer one request."""


@dataclass(frozen=True)
class EvaluationSettings:
    """`[evaluation]`."""

    every: Count = 1
    """Evaluate every n-th round, and after the last."""
    average: Annotated[float, Field(ge=0, lt=1, title="a decay from 0 to below 1")] | None = None
    """The decay of the moving averages of weights that are evaluated and exported; without it, the default of the
    method."""
    clients: Count | None = None
    """Where clients keep models of their own, at most this many evaluate theirs, the same clients every round; without
    it, all."""
    headline: Literal[
        "accuracy", "balanced_accuracy", "macro_f1", "worst_recall", "auroc", "calibration_error"
    ] = "accuracy"  # fmt: skip
    """The number that is shown first and that studies compare."""


@dataclass(frozen=True)
class CheckpointSettings:
    """`[checkpoint]`."""

    every: Count = 1
    """Keep every n-th round, and the last."""
