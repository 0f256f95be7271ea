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
import re
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from catchment.errors import CatchmentError, UserError
from catchment.methods import METHODS
from catchment.names import did_you_mean

FILE = Path("device.toml")
KINDS = ("weights", "masks", "logits", "counts", "metrics", "features", "labels", "ids", "images", "unknown")
REVEALING = ("features", "labels", "ids", "images", "unknown")  # sent only if the owner lists them
RAW = ("centralized",)  # methods whose clients send their data as they are
T = TypeVar("T")


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
    leaves: tuple[str, ...] = tuple(kind for kind in KINDS if kind not in REVEALING)
    experiments: tuple[str, ...] = ()  # digests that are approved
    trusted: bool = False  # the server is this machine: the experiment's paths and modules are used as they are

    def __post_init__(self) -> None:
        for kind in self.leaves:
            if kind not in KINDS:
                raise UserError(f'allow.leaves has "{kind}"; {did_you_mean(kind, KINDS)}')
        for approved in self.experiments:
            if not re.fullmatch("[0-9a-f]{64}", approved):
                raise UserError(f'allow.experiments has "{approved}"; a digest of 64 digits 0-9 and a-f is expected')


@dataclass(frozen=True)
class Limits:
    """`[limits]`: budgets of the device; `inf` is no limit."""

    bytes_up_per_run: float = 10_000_000_000
    bytes_up_per_message: float = 500_000_000
    bytes_down_per_message: float = 1_000_000_000
    seconds_per_run: float = 604_800
    seconds_per_request: float = 3_600
    rounds: float = 1_000
    requests_per_round: float = 1_000
    parameters: float = 50_000_000  # of one model
    bytes_of_memory: float = 4_000_000_000
    bytes_of_disk: float = 10_000_000_000
    threads: float = 4
    runs_kept: float = 5  # whose state stays on the disk
    least_samples: float = 10  # with fewer of its own the device does not take part

    def __post_init__(self) -> None:
        for limit in dataclasses.fields(self):
            if not (value := getattr(self, limit.name)) >= 0:
                raise UserError(f"limits.{limit.name} is {value}; a number from 0 on, or inf, is expected")


@dataclass(frozen=True)
class Policy:
    """One device's file: where the server is, which client this is, what may be sent, and how much may be asked for."""

    server: str  # HOST:PORT
    client: int
    state: Path = Path("catchment-state")
    data: Path | None = None
    modules: Path | None = None
    root_certificate: Path | None = None
    key: Path | None = None
    federation: Path | None = None  # the public key by which runs must be signed
    insecure: bool = False  # no TLS; keys and signatures are looked at only if they are given
    allow: Allow = field(default_factory=Allow)
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\S+:\d{1,5}", self.server):
            raise UserError(f'server is "{self.server}"; HOST:PORT is expected, such as fl.example.org:9092')
        if self.client < 0:
            raise UserError(f"client is {self.client}; clients are numbered from 0 on")
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
    def load(path: Path) -> Policy:
        """Read a file; paths in it are relative to its folder."""
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(
                f"there is no policy {path}; catchment join ADDRESS --client-id K ... --init writes one"
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path} cannot be read: {error}") from None
        except tomllib.TOMLDecodeError as error:
            raise UserError(f"{path} is not valid TOML: {error}") from None
        try:
            return _read(Policy, table, "", path.absolute().parent)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None

    def write(self, path: Path) -> None:
        """Write the file, for its owner alone, with a comment on every key."""
        try:
            path.touch(0o600)
            path.chmod(0o600)
            path.write_text(_text(self), encoding="utf-8")
        except OSError as error:
            raise UserError(f"{path} cannot be written: {error.strerror}") from None


# ---- files to policies ------------------------------------------------------------------------------------------


def _read(kind: type[T], table: Any, where: str, folder: Path) -> T:
    if not isinstance(table, dict):
        raise UserError(f"{where} is {table}; a table is expected")
    hints = typing.get_type_hints(kind)
    values = {}
    for key, value in table.items():
        place = f"{where}.{key}" if where else key
        if key not in hints:
            raise UserError(f'unknown key "{place}"; {did_you_mean(key, hints)}')
        values[key] = _value(hints[key], value, place, folder)
    for part in dataclasses.fields(kind):  # type: ignore[arg-type]
        if part.name not in values and part.default is part.default_factory:
            raise UserError(f"{part.name} is missing")
    return kind(**values)


def _value(hint: Any, value: Any, where: str, folder: Path) -> Any:
    if dataclasses.is_dataclass(hint):
        return _read(typing.cast(type, hint), value, where, folder)
    if isinstance(hint, types.UnionType):
        hint = typing.get_args(hint)[0]
    if hint is Path and isinstance(value, str):
        return folder / Path(value).expanduser()
    if typing.get_origin(hint) is tuple and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return value
    if hint in (int, str, bool) and type(value) is hint:
        return value
    raise UserError(
        f"{where} is {json.dumps(value, default=str)}; {_EXPECTED.get(hint, 'a list of texts')} is expected"
    )


_EXPECTED: Mapping[Any, str] = {
    int: "a whole number", float: "a number", str: "text in quotes", bool: "true or false", Path: "a path in quotes",
}  # fmt: skip


# ---- policies to files ------------------------------------------------------------------------------------------

_COMMENTS = {
    "server": "the server's HOST:PORT",
    "client": "the number of this device among the clients",
    "state": "folder for what the device remembers, and for sent.jsonl, the log of everything sent",
    "data": "the only folder that data are read from",
    "modules": "the only folder that code is imported from; without it an experiment that names any is refused",
    "root_certificate": "by which the server's certificate must be signed",
    "key": "this device's private key; it stays here",
    "federation": "public key by which every run must be signed",
    "insecure": "true: no encryption; only for a trial on a network that you trust",
    "methods": "by name; centralized sends the data themselves",
    "leaves": "what may be sent; by default without features (images can be rebuilt from them), labels, ids, images",
    "experiments": "digests of approved runs; catchment policy --approve DIGEST keeps them in the state folder instead",
    "trusted": "true only where the server is this machine: paths and modules of its experiment are used as they are",
    "bytes_up_per_run": "everything sent in one run, however often a server starts it",
    "bytes_up_per_message": "one answer",
    "bytes_down_per_message": "one question",
    "seconds_per_run": "seconds of work in one run, however often a server starts it",
    "seconds_per_request": "seconds after which work on one question is stopped",
    "rounds": "of one run",
    "requests_per_round": "questions in one round of a run, evaluations and repetitions included",
    "parameters": "of one model",
    "bytes_of_memory": "of this process, where the system can enforce it (Linux)",
    "bytes_of_disk": "of the state folder; the oldest runs are deleted first",
    "threads": "of PyTorch",
    "runs_kept": "whose state stays on the disk",
    "least_samples": "with fewer of its own the device does not take part",
}


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
        if value is None:
            lines += [f"# {_COMMENTS[part.name]}", f"# {part.name} = ..."]
        elif not dataclasses.is_dataclass(value):
            lines += [f"# {_COMMENTS[part.name]}", f"{part.name} = {_toml(value)}"]
    return lines


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, Path):
        return json.dumps(os.path.abspath(value.expanduser()), ensure_ascii=False)
    if isinstance(value, float):
        return str(value)
    return f"{value:_}" if type(value) is int else json.dumps(value, ensure_ascii=False)
