"""What the owner of a device lets a server have: `device.toml`, closed by default.

A device obeys this file and nothing that a server says. It is written once by `catchment join ... --init`, changed with
a text editor, and shown in plain words by `catchment policy`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from catchment.errors import CatchmentError, UserError
from catchment.methods import METHODS
from catchment.reading import Whole, parts, read_table

FILE = Path("device.toml")
Kind = Literal["weights", "masks", "logits", "counts", "metrics", "features", "labels", "ids", "images", "unknown"]
KINDS = get_args(Kind)
REVEALING = ("features", "labels", "ids", "images", "unknown")  # sent only if the owner lists them
RAW = ("centralized",)  # methods whose clients send their data as they are
_LIMIT = Field(ge=0, title="a number from 0 on, or inf,")
Limit = Annotated[float, _LIMIT] | Annotated[int, _LIMIT]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$", title="a digest of 64 digits 0-9 and a-f")]


class Refusal(CatchmentError):
    """What a policy forbids: the full reason for the device's log, and the few words that the server gets."""

    def __init__(self, why: str, to_server: str = "the device's policy forbids it") -> None:
        super().__init__(why)
        self.to_server = to_server


def digest(experiment: str, form: str) -> str:
    """The digest of a run, which is signed and approved: of its experiment (TOML) and the form of its data (JSON)."""
    return hashlib.sha256(json.dumps([experiment, form]).encode()).hexdigest()


@dataclass(frozen=True)
class Allow:
    """`[allow]`: what may be done with the device's data."""

    methods: tuple[str, ...] = tuple(name for name in METHODS if name not in RAW)
    """Methods by name; centralized sends the data themselves."""
    leaves: tuple[Kind, ...] = tuple(kind for kind in KINDS if kind not in REVEALING)
    """What may be sent; by default without features (images can be rebuilt from them), labels, ids, images."""
    experiments: tuple[Digest, ...] = ()
    """Digests of approved runs; `catchment policy --approve DIGEST` keeps them in the state folder instead."""
    trusted: bool = False
    """True only where the server is this machine: paths and modules of its experiment are used as they are."""


@dataclass(frozen=True)
class Limits:
    """`[limits]`: budgets of the device; `inf` is no limit."""

    bytes_up_per_run: Limit = 10_000_000_000
    """Everything sent in one run, however often a server starts it."""
    bytes_up_per_message: Limit = 500_000_000
    """One answer."""
    bytes_down_per_message: Limit = 1_000_000_000
    """One question."""
    seconds_per_run: Limit = 604_800
    """Seconds of work in one run, however often a server starts it."""
    seconds_per_request: Limit = 3_600
    """Seconds after which work on one question is stopped."""
    rounds: Limit = 1_000
    """Rounds of one run."""
    requests_per_round: Limit = 1_000
    """Questions in one round of a run, evaluations and repetitions included."""
    parameters: Limit = 50_000_000
    """Parameters of one model."""
    bytes_of_memory: Limit = 4_000_000_000
    """The memory of this process, where the system can enforce it (Linux)."""
    bytes_of_disk: Limit = 10_000_000_000
    """The size of the state folder; the oldest runs are deleted first."""
    threads: Limit = 4
    """Threads of PyTorch."""
    runs_kept: Limit = 5
    """Runs whose state stays on the disk."""
    least_samples: Limit = 10
    """With fewer samples of its own the device does not take part."""


@dataclass(frozen=True)
class Policy:
    """One device's file: where the server is, which client this is, what may be sent, and how much may be asked for."""

    server: Annotated[str, Field(pattern=r"^\S+:\d{1,5}$", title="HOST:PORT, such as fl.example.org:9092,")]
    """The server's HOST:PORT."""
    client: Whole
    """The number of this device among the clients, from 0 on."""
    state: Path = Path("catchment-state")
    """The folder for what the device remembers, and for sent.jsonl, the log of everything sent."""
    data: Path | None = None
    """The only folder that data are read from."""
    modules: Path | None = None
    """The only folder that code is imported from; without it an experiment that names any is refused."""
    root_certificate: Path | None = None
    """The certificate by which the server's must be signed."""
    key: Path | None = None
    """This device's private key; it stays here."""
    federation: Path | None = None
    """The public key by which every run must be signed."""
    insecure: bool = False
    """True: no encryption, and keys and signatures are looked at only if they are given; only for a trial on a network
    that you trust."""
    allow: Allow = field(default_factory=Allow)
    """What may be done with the device's data."""
    limits: Limits = field(default_factory=Limits)
    """Budgets of the device."""

    def __post_init__(self) -> None:
        if self.insecure and self.root_certificate is not None:
            raise UserError("insecure means no TLS, yet there is a root_certificate; leave one of the two out")
        for name in ("root_certificate", "key", "federation"):
            if not self.insecure and getattr(self, name) is None:
                raise UserError(
                    f"{name} is missing: a device needs root_certificate, key and federation of its server, "
                    "or insecure for a trial on a network that you trust"
                )

    @staticmethod
    def local(
        *,
        client: int,
        server: str,
        state: Path,
        key: Path | None,
        federation: Path | None,
        experiment: str,
        data: Path | None,
        modules: Path | None,
    ) -> Policy:
        """For a client that a run starts on its own machine: allows everything, for the run of this digest alone."""
        unlimited = Limits(**{limit.name: math.inf for limit in dataclasses.fields(Limits)})
        return Policy(
            server, client, state, data, modules, None, key, federation, insecure=True,
            allow=Allow(tuple(METHODS), KINDS, (experiment,), trusted=True),
            limits=dataclasses.replace(unlimited, least_samples=0),
        )  # fmt: skip

    @staticmethod
    def load(file: Path) -> Policy:
        """Read a file; paths in it are relative to its folder."""
        try:
            table = tomllib.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(
                f"there is no policy {file}; catchment join ADDRESS --client-id K ... --init writes one"
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{file} cannot be read: {error}") from None
        except tomllib.TOMLDecodeError as error:
            raise UserError(f"{file} is not valid TOML: {error}") from None
        try:
            policy = read_table(Policy, table)
        except UserError as error:
            raise UserError(f"{file}: {error}") from None
        folder = file.absolute().parent
        paths: dict[str, Any] = {
            name: folder / path.expanduser()
            for name, path in vars(policy).items()
            if name in table and isinstance(path, Path)
        }
        return dataclasses.replace(policy, **paths)

    def write(self, path: Path) -> None:
        """Write the file, for its owner alone, with a comment on every key."""
        try:
            path.touch(0o600)
            path.chmod(0o600)
            path.write_text(_text(self), encoding="utf-8")
        except OSError as error:
            raise UserError(f"{path} cannot be written: {error.strerror}") from None


# ---- policies to files ------------------------------------------------------------------------------------------


def _text(policy: Policy) -> str:
    lines = [
        "# What this device lets a server have. Nothing that is not allowed here is done, whatever the server says.",
        "# Change it with a text editor; catchment policy shows it in plain words.",
        "",
        *_lines(policy),
    ]
    for name in ("allow", "limits"):
        lines += ["", f"[{name}]", *_lines(getattr(policy, name))]
    return "\n".join(lines) + "\n"


def _lines(table: Any) -> list[str]:
    lines = []
    for part in dataclasses.fields(table):
        value = getattr(table, part.name)
        if not dataclasses.is_dataclass(value):
            meaning = parts(type(table), (part.name,))[0].get("description")
            lines += [f"# {meaning}", f"# {part.name} = ..." if value is None else f"{part.name} = {_toml(value)}"]
    return lines


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, Path):
        return json.dumps(os.path.abspath(value.expanduser()), ensure_ascii=False)
    if isinstance(value, float):
        return str(value)
    return f"{value:_}" if type(value) is int else json.dumps(value, ensure_ascii=False)
