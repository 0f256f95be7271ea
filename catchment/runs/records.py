"""What a run writes, file by file: `rounds.jsonl`, `ledger.jsonl`, `result.json`; and what is read of any run.

Fields have the names and the order of the files: `journal.to_dict` writes them, `catchment.reading.read_json` reads.
Fields with defaults may be missing in runs of other versions, and unknown keys are ignored. Numbers are finite unless a
field says `AnyNumber`. `left_out_if_empty` names fields that are not written when they are None or empty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

TROUBLES = ("lost", "late", "failed", "refused")  # replies that went wrong
SHARES = ("accuracy", "balanced_accuracy", "macro_f1", "worst_recall", "auroc")  # from 0 to 1, the higher the better
LOWER_IS_BETTER = ("calibration_error",)
NEWS = (  # of clients and rounds
    "joined", "declined", "left", "forgot", "revoked", "missing", "restarted", "resumed", "undone", "suspended",
)  # fmt: skip


AnyNumber = Annotated[float, Field(allow_inf_nan=True)] | int  # also infinite, or not a number; 3 is not 3.0


class Open:
    """A record with a field, `further_keys`, for all keys that are no fields."""

    further_keys: ClassVar[str]

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        own = {part.name for part in fields(cls)} - {cls.further_keys}  # type: ignore[arg-type]

        def gather(table: Any) -> Any:
            if not isinstance(table, dict):
                return table
            further = {key: value for key, value in table.items() if key not in own}
            return {key: value for key, value in table.items() if key in own} | {cls.further_keys: further}

        return core_schema.no_info_before_validator_function(gather, handler(source))


# ---- parts ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Bytes:
    """Bytes on the wire: of training up and down, and of evaluation."""

    up: int
    down: int
    evaluation: int


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A number over all clients."""

    mean: float
    min: float
    max: float


@dataclass(frozen=True, kw_only=True)
class ClientScores:
    """What the models of the clients reach."""

    accuracy: Spread


@dataclass(frozen=True, kw_only=True)
class ModelScore:
    """What clients with one model reach on average."""

    accuracy: float


@dataclass(frozen=True, kw_only=True)
class ServerScore(Open):
    """What the server's model reaches, and whatever else the method measured of it, such as its loss."""

    left_out_if_empty: ClassVar = ("accuracy",)
    further_keys = "others"

    accuracy: float | None = None
    others: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ByClient:
    """What the models of clients with one of their own reach, client by client."""

    clients: list[int]  # those that were measured
    samples: list[int | None]  # that they train on; None if only the client knows
    accuracy: list[float]
    balanced_accuracy: list[float | None]


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened to a client, a reply or a round."""

    left_out_if_empty: ClassVar = ("numbers",)

    what: str  # one of TROUBLES or NEWS, "attacked" or "flagged"
    client: int | None
    handler: str
    why: str
    numbers: dict[str, AnyNumber] | None = None  # the strength of an attack


@dataclass(frozen=True, kw_only=True)
class Likeness:
    """How similar rebuilt images are to the private ones: means over images."""

    correlation: AnyNumber
    psnr: AnyNumber  # dB
    ssim: AnyNumber
    identified: AnyNumber  # share of rebuilt images whose nearest private image is the original


@dataclass(frozen=True, kw_only=True)
class Inversion:
    """What a curious server rebuilt of the images of one client."""

    round: int | None = None
    client: int
    images: int  # that were rebuilt
    private: int  # among which they were to be identified
    best: str  # of the attacks: the one with the highest correlation
    attacks: dict[str, Likeness]


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Seconds of wall time by kind of work of the server's thread."""

    clients: float = 0.0  # waiting for them, or serving them
    wire: float = 0.0  # coding and decoding
    server: float = 0.0  # the rest of the method's round
    evaluation: float = 0.0
    disk: float = 0.0  # writing uploads, records and checkpoints


def total_spent(rounds: Iterable[Round]) -> Spent:
    """The sum over rounds."""
    total: Counter[str] = Counter()
    for one in rounds:
        total.update(asdict(one.spent))
    return Spent(**total)


# ---- rounds.jsonl -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Round:
    """A line of `rounds.jsonl`. What was measured is there only after rounds that were evaluated."""

    left_out_if_empty: ClassVar = (
        "accuracy", "scores", "recall", "confusion", "server", "clients", "models", "by_client", "more",
        "self_reported", "validation", "notes", "probe",
    )  # fmt: skip

    round: int
    accuracy: float | None = None  # of the method's model, or the mean over clients; a share between 0 and 1
    scores: dict[str, float] = field(default_factory=dict)  # what else is known of the same, such as "auroc"
    recall: list[float | None] = field(default_factory=list)  # of the same, by class; None for one without samples
    confusion: list[list[float]] = field(default_factory=list)  # share of class i taken for j; after the last round
    server: ServerScore | None = None
    clients: ClientScores | None = None
    models: dict[str, ModelScore] | None = None  # by the model of the clients, where they have several
    by_client: ByClient | None = None  # after the last round
    more: dict[str, Any] = field(default_factory=dict)  # whatever else the method measured
    self_reported: list[str] = field(default_factory=list)  # "accuracy", "clients": measured by the clients themselves
    validation: float | None = None  # accuracy on the validation samples, where there are some
    notes: dict[str, AnyNumber] = field(default_factory=dict)  # numbers that the method noted, evaluated or not
    bytes: Bytes
    seconds: float  # of wall time, since the record of the round before
    spent: Spent = field(default_factory=Spent)
    virtual_seconds: float  # of the run: of the simulated devices, or over Flower real ones since all were there
    events: list[Event]
    probe: Inversion | None = None


# ---- ledger.jsonl -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """Messages of one layout in one round."""

    direction: Literal["up", "down"]
    purpose: str  # "training", or another that is counted separately, such as "evaluation"
    clients: list[int]  # who sent or received them, one item per message
    tensors: dict[str, int]  # bytes of each in one message; "(framing)" is what is not a tensor


@dataclass(frozen=True, kw_only=True)
class LedgerRound:
    """A line of `ledger.jsonl`: every byte sent in a round."""

    round: int
    entries: list[LedgerEntry]


# ---- result.json ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Best:
    """The highest accuracy, and the round after which it was measured."""

    accuracy: float
    round: int


def best_of(rounds: Iterable[Round]) -> Best | None:
    """The first of the highest accuracies; None if no round was evaluated."""
    found = [Best(accuracy=one.accuracy, round=one.round) for one in rounds if one.accuracy is not None]
    return max(found, key=lambda best: best.accuracy, default=None)


@dataclass(frozen=True, kw_only=True)
class Fall:
    """How far a run ended below an earlier round, by more than chance explains (`catchment.runs.falling`)."""

    from_round: int  # with the best headline, the last one if there are several
    by: float  # of the headline, as it is measured: a share


@dataclass(frozen=True, kw_only=True)
class BytesByField:
    """Bytes of training by the field of the payload that they carried; "(framing)" is what is not a tensor."""

    up: dict[str, int] = field(default_factory=dict)
    down: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class LeavingField:
    """A field of a reply that a device sends."""

    field: str
    kind: str
    shape: str
    when: str  # the handlers whose replies have it
    most: int | None = None  # bytes of one reply, before codecs; None: a scalar, or not known
    shows: str  # what the receiver learns from it


@dataclass(frozen=True, kw_only=True)
class AttackRecord(Open):
    """Who lied and how: `[attack]` of the experiment, the clients that did so, and every strength that was used."""

    further_keys = "settings"

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    attackers: list[int]
    used: list[dict[str, AnyNumber]]


@dataclass(frozen=True, kw_only=True)
class ModelCosts:
    """The size and the work of a model."""

    parameters: int
    macs_per_sample: int  # multiply-accumulates of a forward pass


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What models and handlers cost."""

    left_out_if_empty: ClassVar = ("server",)

    clients: dict[str, ModelCosts] = field(default_factory=dict)
    peak_memory: dict[str, int | None] = field(default_factory=dict)  # bytes, by "handler of model"; None: not measured
    server: dict[str, ModelCosts] | None = None


@dataclass(frozen=True, kw_only=True)
class DataSizes:
    """Numbers of samples; None where only the clients know."""

    left_out_if_empty: ClassVar = ("faults",)

    name: str
    clients: int
    train: int | None = None
    smallest_client: int | None = None
    largest_client: int | None = None
    test: int | None = None
    public: int | None = None
    faults: dict[str, int] = field(default_factory=dict)  # what was wrong in its files, and how often
    classes: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Result:
    """`result.json`: what a run came to. Of a run that is not finished, what is known so far."""

    name: str
    method: str
    options: dict[str, Any] = field(default_factory=dict)  # of the method
    accuracy: float | None  # after the last round; None before the first evaluation
    best: Best | None
    fall: Fall | None = None  # None: the run did not end below an earlier round, or is not over
    scores: dict[str, float] = field(default_factory=dict)
    recall: list[float | None] = field(default_factory=list)
    confusion: list[list[float]] = field(default_factory=list)
    server: ServerScore | None = None
    clients: ClientScores | None = None
    models: dict[str, ModelScore] | None = None
    by_client: ByClient | None = None
    more: dict[str, Any] = field(default_factory=dict)
    self_reported: list[str] = field(default_factory=list)
    validation: float | None = None
    rounds: int
    bytes: Bytes
    bytes_by_field: BytesByField | None = None
    leaves: list[LeavingField] = field(default_factory=list)
    seconds: float
    spent: Spent = field(default_factory=Spent)
    virtual_seconds: float
    lost: int
    late: int
    failed: int
    refused: int = 0
    attack: AttackRecord | None = None  # None if everybody was honest
    probe: list[Inversion] | None = None
    costs: Costs | None = None
    data: DataSizes | None = None
    fingerprint: str | None = None  # equal for runs that did the same


# ---- experiment.toml --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Named(Open):
    """A table with a name: a method, an aggregation."""

    further_keys = "options"

    name: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class DataNamed:
    """What a report says of `[data]`."""

    name: str
    clients: int
    partition: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class EvaluationNamed:
    """What a report says of `[evaluation]`."""

    headline: str = "accuracy"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a report needs to know of `experiment.toml`, whichever version wrote it and whoever's code it names."""

    name: str
    rounds: int
    seed: int = 0
    engine: str = "inprocess"
    method: Named
    data: DataNamed
    aggregation: Named | None = None
    evaluation: EvaluationNamed | None = None
