"""A device: one client that answers the server's messages, on any carrier, and remembers on its own disk."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from catchment import __version__
from catchment.checkpoint import write_atomically
from catchment.client import ClientState, Versions, Workbench, serve, state_from_message, state_to_message
from catchment.data.division import Division, own_division
from catchment.data.samples import Form
from catchment.errors import CatchmentError, UserError, WireError
from catchment.experiment import Experiment
from catchment.message import Message, Request, Response
from catchment.transports.base import PART, parts
from catchment.world import World

Fields = dict[str, str | int]


class StoredVersions(Versions):
    """A client's versions of its state, each in a file; a version that is kept is on the disk before it is used."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        for path in directory.glob("*.safetensors"):
            if match := re.fullmatch("([0-9]{10})-([0-9]{6})", path.stem):
                state = state_from_message(Message.from_bytes(path.read_bytes())[0])
                self._kept[int(match[1])] = (int(match[2]), state)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._kept)

    def before(self, request: Request) -> ClientState:
        """The state that a request starts from."""
        state = super().before(request)
        self._clean()
        return state

    def keep(self, request: Request, state: ClientState) -> None:
        """Keep the state after a request."""
        super().keep(request, state)
        write_atomically(self._path(request.sequence, request.life), state_to_message(state).buffers())
        self._clean()

    def _path(self, sequence: int, life: int) -> Path:
        return self._directory / f"{sequence:010d}-{life:06d}.safetensors"

    def _clean(self) -> None:
        kept = {self._path(sequence, life) for sequence, (life, _) in self._kept.items()}
        for path in self._directory.glob("*.safetensors"):
            if path not in kept:
                path.unlink()


class RealDevice:
    """One client on its own machine: where its data and its state are, and what it answers.

    `data` is the folder of data sets, or of the device's own samples if the experiment's partition is "own". `path` is
    where the user's own modules are, if the experiment names any.
    """

    def __init__(self, client: int, state: Path, data: Path | None = None, path: Path | None = None) -> None:
        self.client = client
        self.samples = 0  # that the client trains on, in the last experiment
        self._state = state
        self._data = data
        self._path = path
        self._workbench = Workbench()
        self._told = ("", "")  # of the experiment, by the server
        self._world: World | None = None
        self._versions: tuple[str, StoredVersions] | None = None  # of a federation
        try:
            state.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(state / f"client-{client}.lock")
        except OSError as error:
            raise UserError(f"{state} cannot be used for the state of client {client}: {error.strerror}") from None

    def answer(self, kind: str, fields: Mapping[str, Any], raw: bytes) -> tuple[Fields, bytes]:
        """The reply to one message; what goes wrong is said in it."""
        try:
            if kind == "hello":
                return self._hello(fields), b""
            if kind == "ask":
                return self._ask(fields, raw)
            if kind == "fetch":
                return self._fetch(fields)
            if kind == "bye":
                return {"client": self.client}, b""
            raise WireError(f'a message of kind "{kind}"; this side knows hello, ask, fetch and bye')
        except CatchmentError as error:
            return {"error": str(error)}, b""
        except KeyError as error:
            return {"error": f"the {kind} message has no field {error}"}, b""

    def _hello(self, fields: Mapping[str, Any]) -> Fields:
        """Who this is; the experiment is tried, so that what is missing here is said before the first round."""
        if fields["version"] != __version__:
            raise UserError(f"the server has Catchment {fields['version']}, client {self.client} has {__version__}")
        world = self._see(fields)
        if not 0 <= self.client < world.clients:
            raise UserError(
                f"this device joined as client {self.client}, but the experiment has clients 0 to {world.clients - 1}"
            )
        self.samples = len(world.private(self.client))
        said: Fields = {"client": self.client, "samples": self.samples}
        if world.remembers:
            said["states"] = self._remembered(fields["federation"]).count
        return said

    def _ask(self, fields: Mapping[str, Any], raw: bytes) -> tuple[Fields, bytes]:
        """Serve a request once all its parts are here; of a long response the first part is sent."""
        federation, key, part, count = fields["federation"], fields["key"], fields["part"], fields["parts"]
        folder = self._folder(federation)
        if count > 1:
            inbox = folder / "inbox"
            with inbox.open("wb" if part == 0 else "ab") as file:
                file.write(raw)
            if part < count - 1:
                return {"client": self.client, "parts": 0}, b""
            raw = inbox.read_bytes()
            inbox.unlink()
        answer = self._serve(fields, Request.from_bytes(raw)).to_bytes()
        if (count := parts(len(answer))) > 1:
            write_atomically(folder / "outbox", (f"{key}\n".encode(), memoryview(answer)))
        return {"client": self.client, "parts": count}, answer[:PART]

    def _serve(self, fields: Mapping[str, Any], request: Request) -> Response:
        if request.client != self.client:
            raise WireError(f"a request for client {request.client} came to client {self.client}")
        world = self._see(fields)
        versions = self._remembered(fields["federation"]) if world.remembers else None
        return serve(world, request, versions, self._workbench)

    def _remembered(self, federation: str) -> StoredVersions:
        """The versions of this client's state in one run."""
        if self._versions is None or self._versions[0] != federation:
            self._versions = (federation, StoredVersions(self._folder(federation) / "versions"))
        return self._versions[1]

    def _fetch(self, fields: Mapping[str, Any]) -> tuple[Fields, bytes]:
        """A later part of the last response."""
        key, part = fields["key"], fields["part"]
        outbox = self._folder(fields["federation"]) / "outbox"
        head = f"{key}\n".encode()
        if not outbox.exists():
            raise WireError("there is no response to fetch a part of")
        with outbox.open("rb") as file:
            if file.read(len(head)) != head:
                raise WireError("the response to fetch a part of was to another request")
            file.seek(len(head) + part * PART)
            raw = file.read(PART)
            last = not file.read(1)
        if last:
            outbox.unlink()
        return {"client": self.client}, raw

    def _folder(self, federation: str) -> Path:
        """What belongs to one run, whose name comes from outside."""
        if not re.fullmatch("[0-9a-f]{8,64}", federation):
            raise WireError(f'"{federation[:80]}" is not the name of a federation')
        folder = self._state / federation / f"client-{self.client}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _see(self, fields: Mapping[str, Any]) -> World:
        """The world of an experiment as this device has it; made once."""
        told = (fields["experiment"], fields["form"])
        if self._world is None or self._told != told:
            experiment = Experiment.from_toml(fields["experiment"]).elsewhere(self._data, self._path)
            self._world = experiment.build_world(self._own_data(experiment, fields["form"]))
            self._told = told
            self._workbench = Workbench()
            torch.set_num_threads(experiment.threads)
        return self._world

    def _own_data(self, experiment: Experiment, form: str) -> Division | None:
        """The device's own samples, if the experiment lets clients bring them."""
        if not experiment.data.own:
            return None
        if self._data is None:
            raise UserError(
                f"client {self.client} is to bring its own data (train.npz or train.parquet); say where with --data"
            )
        return own_division(self._data, Form.from_dict(json.loads(form)), self.client, experiment.data.clients)


def _locked(path: Path) -> int:
    """A lock that goes with this process, so that no second one works on the same client's state."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    if os.name == "posix":
        import fcntl

        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise UserError(
                f"{path.parent} is in use: another process is {path.stem.replace('-', ' ')}; give each its own --state"
            ) from None
    return descriptor
