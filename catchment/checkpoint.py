"""Checkpoints: atomic, without pickle, and never the only copy.

A checkpoint is `round-N.safetensors`: the server's state, the fleet and the clock. States of clients that changed
since the last checkpoint are in one `clients-N.safetensors` beside it; the checkpoint says which file holds which
client, so that an untouched client costs nothing. A file is written under another name, flushed to the disk and
renamed; the last two checkpoints and what they refer to are kept.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from catchment.client import ClientState
from catchment.errors import ProtocolError, RunError, WireError
from catchment.fleet import FleetSnapshot
from catchment.message import Message
from catchment.optimizers import load_optimizer_state
from catchment.spool import Spool
from catchment.transports.base import Snapshot

KEPT = 2
ROUND_FILES = f"round-{'[0-9]' * 6}.safetensors"
MOST_CLIENT_FILES = 8  # then all client states are written into one file again


# ---- files ------------------------------------------------------------------------------------------------------


def write_atomically(path: Path, content: bytes | Iterable[bytes | memoryview]) -> None:
    """Write a file, given whole or in parts, so that it is either the old one or the new one, whatever happens."""
    temporary = path.with_name(path.name + ".part")
    try:
        with temporary.open("wb") as file:
            for part in (content,) if isinstance(content, bytes) else content:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            raise RunError(f"{path} cannot be written: {error.strerror}; what was there before is kept") from error
        raise


def private_directory(path: Path) -> Path:
    """Make a directory for its owner alone; one that is there stays as its owner made it."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


# ---- the server's state as tensors and JSON ---------------------------------------------------------------------


def flatten(
    value: Any, name: str, tensors: dict[str, Tensor], spools: list[Spool] | None = None, *, in_order: bool = False
) -> Any:
    """A JSON form of a state; its tensors go to `tensors` under `name`, and the spools that hold some to `spools`.

    `in_order` sorts dicts by their keys, for forms that must not tell who was faster.
    """

    def inner(value: Any, name: str) -> Any:
        return flatten(value, name, tensors, spools, in_order=in_order)

    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    if isinstance(value, dict):
        items = []
        pairs = sorted(value.items(), key=lambda pair: str(pair[0])) if in_order else value.items()
        for number, (key, item) in enumerate(pairs):
            if not isinstance(key, str | int):
                raise ProtocolError(
                    f"{name} has the key {key!r}; a checkpoint takes keys that are text or whole numbers"
                )
            items.append([key, inner(item, f"{name}/{number}")])
        return {"dict": items}
    frozen = getattr(getattr(value, "__dataclass_params__", None), "frozen", False)
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        items = [inner(item, f"{name}/{number}") for number, item in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": items}
    if isinstance(value, Spool):
        if spools is not None:
            spools.append(value)
        keys = sorted(value.keys()) if in_order else value.keys()
        return {"spool": [[key, inner(value.rows(key), f"{name}/{key}")] for key in keys]}
    if hasattr(value, "state_dict"):
        return {"state": inner(value.state_dict(), name)}
    if dataclasses.is_dataclass(value) and not frozen:
        fields = [f.name for f in dataclasses.fields(value)]
        return {"fields": {f: inner(getattr(value, f), f"{name}/{f}") for f in fields}}
    raise ProtocolError(
        f"{name} is a {type(value).__name__}, which cannot be checkpointed; use tensors, plain values, lists, dicts, "
        "dataclasses that are not frozen, modules, optimisers or spools"
    )


def unflatten(form: Any, tensors: Mapping[str, Tensor], fresh: Any) -> Any:
    """The state back. `fresh` is a new state of the same method: its modules, optimisers and spools are filled."""
    ((kind, content),) = form.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "value":
        return content
    if kind == "dict":
        old = fresh if isinstance(fresh, dict) else {}
        return {key: unflatten(item, tensors, old.get(key)) for key, item in content}
    if kind in ("list", "tuple"):
        known = fresh if isinstance(fresh, list | tuple) else ()
        items = [unflatten(c, tensors, known[i] if i < len(known) else None) for i, c in enumerate(content)]
        return tuple(items) if kind == "tuple" else items
    if fresh is None:
        raise ProtocolError(
            "a checkpoint holds a module, an optimiser, a spool or a dataclass in a place where a new state of the "
            "method has none; make it in init, or keep its tensors instead"
        )
    if kind == "spool":
        fresh.clear()
        for key, item in content:
            fresh.put(key, unflatten(item, tensors, None))
        return fresh
    if kind == "state":
        loaded = unflatten(content, tensors, None)
        if isinstance(fresh, torch.optim.Optimizer):
            load_optimizer_state(fresh, loaded)
        else:
            fresh.load_state_dict(loaded)
        return fresh
    for name, item in content.items():
        setattr(fresh, name, unflatten(item, tensors, getattr(fresh, name)))
    return fresh


def streamed(message: Message, spools: Sequence[Spool]) -> Iterator[bytes | memoryview]:
    """The bytes of a message in parts, with no more in memory of what lies in spools than the rows of one key."""
    for buffer in message.buffers():
        yield buffer
        for spool in spools:
            spool.release()


# ---- checkpoints of a run ---------------------------------------------------------------------------------------


class Loaded(NamedTuple):
    """A checkpoint as read."""

    round: int
    tensors: dict[str, Tensor]
    state: Any  # for `unflatten`
    fleet: FleetSnapshot
    progress: dict[str, Any]  # what the run adds: totals, seconds


class Checkpoints:
    """The checkpoints of one run directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[int, str] = {}  # client -> file that holds its newest state
        self._states: dict[int, ClientState] = {}
        self._needs: dict[int, set[str]] = {}  # round of a kept checkpoint -> client files it refers to

    def save(self, round: int, state: Any, fleet: FleetSnapshot, progress: Mapping[str, Any]) -> None:
        """Write a checkpoint, then forget what is older than the one before it."""
        private_directory(self._directory)
        files = self._save_clients(round, fleet.transport.states)
        tensors: dict[str, Tensor] = {}
        spools: list[Spool] = []
        meta = {
            "round": round,
            "state": flatten(state, "state", tensors, spools),
            "fleet": {
                "sequence": fleet.sequence,
                "life": fleet.life,
                "counts": fleet.counts,
                "standing": fleet.standing,
            },
            "pending": [awaited for _, awaited in fleet.pending],
            "arrived": [late for _, _, late in fleet.arrived],
            "clock": {"now": fleet.transport.now, "sent": list(fleet.transport.sent.items())},
            "clients": list(files.items()),
            "progress": dict(progress),
        }
        for number, (request, _) in enumerate(fleet.pending):
            tensors[f"pending/{number}"] = _bytes_tensor(request)
        for number, (request, response, _) in enumerate(fleet.arrived):
            tensors[f"arrived/{number}/request"] = _bytes_tensor(request)
            tensors[f"arrived/{number}/response"] = _bytes_tensor(response)
        memories = {client: flatten(memory, f"memory/{client}", tensors) for client, memory in fleet.memories.items()}
        profiles = {
            client: flatten(profile, f"profile/{client}", tensors) for client, profile in fleet.profiles.items()
        }
        meta["profiles"] = list(profiles.items())
        meta["codecs"] = {"memories": list(memories.items()), "answered": list(fleet.answered.items())}
        message = Message(tensors, {"meta": json.dumps(meta)})
        write_atomically(self._directory / f"round-{round:06d}.safetensors", streamed(message, spools))
        self._files = files
        self._needs[round] = set(files.values())
        self._clean(round)

    def latest(self) -> Loaded | None:
        """The newest checkpoint that can be read whole; None if there is none, an error if there are only others."""
        reasons = []
        for path in sorted(self._directory.glob(ROUND_FILES), reverse=True):
            try:
                return self._load(path)
            except (WireError, OSError, KeyError, ValueError, TypeError) as error:
                reasons.append(f"{path.name}: {error}")  # the one before it is kept for this
        if reasons:
            raise RunError(
                f"no checkpoint in {self._directory} can be read ({reasons[0]}); the run is left as it is: resume it "
                "with the version that wrote it, or start anew in another directory"
            )
        return None

    def _save_clients(self, round: int, changed: Mapping[int, ClientState]) -> dict[int, str]:
        self._states.update(changed)
        files = dict(self._files)
        if not changed:
            return files
        if len(set(files.values())) >= MOST_CLIENT_FILES:
            changed = self._states
        name = f"clients-{round:06d}.safetensors"
        tensors = {
            f"{client}/{group}/{key}": tensor
            for client, state in changed.items()
            for group, entries in state.items()
            for key, tensor in entries.items()
        }
        write_atomically(self._directory / name, Message(tensors).buffers())
        return {**files, **dict.fromkeys(changed, name)}

    def _load(self, path: Path) -> Loaded:
        message, _ = Message.from_bytes(path.read_bytes())
        tensors = message.tensors
        meta = json.loads(str(message.scalars["meta"]))
        files: dict[int, str] = {int(client): file for client, file in meta["clients"]}
        states: dict[int, ClientState] = {client: {} for client in files}
        for name in sorted(set(files.values())):
            stored, _ = Message.from_bytes((self._directory / name).read_bytes())
            for key, tensor in stored.tensors.items():
                client, group, entry = key.split("/", 2)
                if files.get(int(client)) == name:
                    states[int(client)].setdefault(group, {})[entry] = tensor
        pending = [
            (_tensor_bytes(tensors[f"pending/{number}"]), awaited) for number, awaited in enumerate(meta["pending"])
        ]
        arrived = [
            (
                _tensor_bytes(tensors[f"arrived/{n}/request"]),
                _tensor_bytes(tensors[f"arrived/{n}/response"]),
                late,
            )
            for n, late in enumerate(meta["arrived"])
        ]
        clock = meta["clock"]
        transport = Snapshot(clock["now"], {int(s): t for s, t in clock["sent"]}, dict(states))
        memories = {client: unflatten(form, tensors, None) for client, form in meta["codecs"]["memories"]}
        fleet = FleetSnapshot(
            **meta["fleet"],
            pending=pending,
            arrived=arrived,
            memories=memories,
            answered=dict(meta["codecs"]["answered"]),
            profiles={client: unflatten(form, tensors, None) for client, form in meta.get("profiles", ())},
            transport=transport,
        )
        loaded = Loaded(meta["round"], tensors, meta["state"], fleet, meta["progress"])
        self._files, self._states = files, states
        self._needs[loaded.round] = set(files.values())
        return loaded

    def _clean(self, round: int) -> None:
        """Remove what neither this checkpoint nor the one before it needs."""
        mine = [path for path in sorted(self._directory.glob(ROUND_FILES)) if _round(path) <= round]
        for path in mine[:-KEPT]:
            path.unlink()
            self._needs.pop(_round(path), None)
        needed = set().union(*self._needs.values())
        for path in self._directory.glob("clients-*.safetensors"):
            if path.name not in needed:
                path.unlink()


def _round(path: Path) -> int:
    return int(path.stem.removeprefix("round-"))


def _bytes_tensor(raw: bytes) -> Tensor:
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)


def _tensor_bytes(tensor: Tensor) -> bytes:
    return tensor.numpy().tobytes()
