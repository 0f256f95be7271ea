"""Checkpoints: atomic, without pickle, and never the only copy.

A checkpoint is `round-N.safetensors`: the server's state, the fleet and the clock. States of clients that changed
since the last checkpoint are in `clients-N.safetensors` beside it (`client_files`). A file is written under another
name, flushed to the disk and renamed; the last two checkpoints and what they refer to are kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from catchment.core.fleet import FleetSnapshot
from catchment.core.inflight import InFlightSnapshot
from catchment.core.spool import Spool
from catchment.core.transport import Snapshot
from catchment.errors import RunError, WireError
from catchment.exchange.message import FileContent, Message
from catchment.files import private_directory, write_atomically
from catchment.learning.training import Weights
from catchment.runs.client_files import PATTERN, ClientFiles
from catchment.runs.state import flatten, streamed, unflatten

KEPT = 2
ROUND_FILES = f"round-{'[0-9]' * 6}.safetensors"


class Loaded(NamedTuple):
    """A checkpoint as read."""

    round: int
    tensors: dict[str, Tensor]
    state: Any  # for `unflatten`
    fleet: FleetSnapshot
    progress: dict[str, Any]  # what the run adds: totals, seconds
    averages: dict[str, Weights]  # the moving averages of the server's models


class Checkpoints:
    """The checkpoints of one run directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._clients = ClientFiles(directory)
        self._needs: dict[int, set[str]] = {}  # round of a kept checkpoint -> client files it refers to

    def save(
        self,
        round: int,
        state: Any,
        fleet: FleetSnapshot,
        progress: Mapping[str, Any],
        averages: Mapping[str, Weights] | None = None,
    ) -> None:
        """Write a checkpoint, then delete all older ones but the last."""
        private_directory(self._directory)
        inflight = fleet.inflight
        self._clients.save(round, inflight.transport.states)
        tensors: dict[str, Tensor] = {}
        spools: list[Spool] = []
        meta = {
            "round": round,
            "state": flatten(state, "state", tensors, spools),
            "averages": flatten(dict(averages or {}), "averages", tensors),
            "fleet": {
                "sequence": inflight.sequence,
                "resumes": inflight.resumes,
                "outcomes": fleet.outcomes,
                "samples": list(fleet.samples.items()),
            },
            "pending": [awaited for _, awaited in inflight.pending],
            "arrived": [late for _, _, late in inflight.arrived],
            "clock": {"now": inflight.transport.now, "sent": list(inflight.transport.sent.items())},
            "client_files": self._clients.names,
            "progress": dict(progress),
        }
        for number, (request, _) in enumerate(inflight.pending):
            tensors[f"pending/{number}"] = _bytes_tensor(request)
        for number, (request, response, _) in enumerate(inflight.arrived):
            tensors[f"arrived/{number}/request"] = _bytes_tensor(request)
            tensors[f"arrived/{number}/response"] = _bytes_tensor(response)
        profiles = {
            client: flatten(profile, f"profile/{client}", tensors) for client, profile in fleet.profiles.items()
        }
        meta["profiles"] = list(profiles.items())
        message = FileContent(tensors, {"meta": json.dumps(meta)})
        write_atomically(self._directory / f"round-{round:06d}.safetensors", streamed(message, spools))
        self._needs[round] = set(self._clients.names)
        self._clean(round)

    def latest(self) -> Loaded | None:
        """The newest readable checkpoint; None if there are no checkpoints, an error if none of them can be read."""
        reasons = []
        for path in sorted(self._directory.glob(ROUND_FILES), reverse=True):
            try:
                return self._load(path)
            except (WireError, OSError, KeyError, ValueError, TypeError) as error:
                reasons.append(f"{path.name}: {error}")  # the one before it is kept for this
        if reasons:
            raise RunError(
                f"no checkpoint in {self._directory} can be read ({reasons[0]}); the run is left as it is: resume it "
                "with the version that wrote it, or start over in another directory"
            )
        return None

    def _load(self, path: Path) -> Loaded:
        message, _ = Message.from_bytes(path.read_bytes())
        tensors = message.tensors
        meta = json.loads(str(message.scalars["meta"]))
        clients = ClientFiles(self._directory)
        clients.load(meta["client_files"])
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
        transport = Snapshot(clock["now"], {int(s): t for s, t in clock["sent"]}, clients)
        noted = meta["fleet"]
        fleet = FleetSnapshot(
            InFlightSnapshot(noted["sequence"], noted["resumes"], pending, arrived, transport),
            noted["outcomes"],
            dict(noted["samples"]),
            {client: unflatten(form, tensors, None) for client, form in meta["profiles"]},
        )
        averages = unflatten(meta["averages"], tensors, None)
        loaded = Loaded(meta["round"], tensors, meta["state"], fleet, meta["progress"], averages)
        self._clients = clients
        self._needs[loaded.round] = set(clients.names)
        return loaded

    def _clean(self, round: int) -> None:
        """Remove what neither this checkpoint nor the one before it needs."""
        mine = [path for path in sorted(self._directory.glob(ROUND_FILES)) if _round(path) <= round]
        for path in mine[:-KEPT]:
            path.unlink()
            self._needs.pop(_round(path), None)
        needed = set().union(*self._needs.values())
        for path in self._directory.glob(PATTERN):
            if path.name not in needed:
                path.unlink()


def _round(path: Path) -> int:
    return int(path.stem.removeprefix("round-"))


def _bytes_tensor(raw: bytes) -> Tensor:
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)


def _tensor_bytes(tensor: Tensor) -> bytes:
    return tensor.numpy().tobytes()
