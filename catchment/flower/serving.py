"""The server routine of a run: in a process of its own with the link for devices, or over the grid of a Flower app.

    python -m catchment.flower.serving DIRECTORY DESCRIPTOR

does what is left of a run, with the clients that come to the listening socket of that descriptor.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import fcntl
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from catchment import __version__
from catchment.checkpoint import write_atomically
from catchment.errors import CatchmentError, UserError
from catchment.expectations import Expectations
from catchment.experiment import Experiment, FlowerSettings
from catchment.flower.keys import read_public, sign_run
from catchment.policy import digest
from catchment.run import begin, go_on
from catchment.transports.base import Transport
from catchment.transports.flower import Flower, Grid
from catchment.world import World

KEYS = 2.0  # seconds between two looks for keys that are new or gone
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG in prctl.h


def end_with_parent() -> None:
    """On Linux, let the kernel end this process when its parent dies, however that happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)


class Papers:
    """The files by which the server routine and who watches over it speak, in a folder of the run's directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.folder = directory / "flower"
        self.error = self.folder / "error.json"  # why the server routine stopped
        self.digest = self.folder / "digest"  # of the run, once it is known
        self.notices = self.folder / "notices.jsonl"  # events for the record of a round
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def federation(self) -> str:
        """The name of the run on its devices; made when it is first asked for."""
        path = self.folder / "federation"
        if not path.exists():
            write_atomically(path, os.urandom(8).hex().encode())
        return path.read_text()

    def keys(self, experiment: Experiment) -> Path | None:
        """The folder of the keys that count: given, or made for clients of this machine; None if anybody may join."""
        given = experiment.flower.keys
        return Path(given) if given is not None else self.folder / "keys" if experiment.flower.local else None

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Refuse a second one who watches over the run; the lock goes with the process, however it ends."""
        with (self.folder / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"{self.directory} is in use: another process is running it") from None
            yield

    def note(self, what: str, client: int | None, why: str) -> None:
        """Leave an event for the record of the round under way."""
        with self.notices.open("a") as file:
            file.write(json.dumps({"what": what, "client": client, "handler": "", "why": why}) + "\n")

    def reader(self) -> Callable[[], list[dict[str, Any]]]:
        """A function that gives the events that are new since its last call."""
        read = 0

        def news() -> list[dict[str, Any]]:
            nonlocal read
            lines = self.notices.read_text().splitlines() if self.notices.exists() else []
            found, read = lines[read:], len(lines)
            return [json.loads(line) for line in found]

        return news


def start_run(file: Path, directory: Path) -> None:
    """Make the directory of a run from an experiment file."""
    begin(Experiment.load(file, {"engine": "flower"}), directory)


def serve_run(
    grid: Grid,
    directory: Path,
    *,
    keys: Path | None = None,
    client_of: Callable[[int], int | None] | None = None,
    admits: Callable[[int], bool] = lambda client: True,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Do what is left of the run in a directory with the clients of a grid; `keys` is what signs it."""
    papers = Papers(directory)
    experiment = Experiment.load(directory / "experiment.toml")

    def carrier(world: World, directory: Path | None) -> Transport:
        text = dataclasses.replace(experiment, flower=FlowerSettings()).to_toml()  # how it listens is its own affair
        form = json.dumps(world.data.dataset.form.to_dict())
        mark = digest(text, form)
        write_atomically(papers.digest, mark.encode())
        return Flower(
            grid,
            experiment=text,
            form=form,
            federation=papers.federation,
            signature="" if keys is None else sign_run(keys / "federation.key", papers.federation, mark),
            version=__version__,
            clients=world.clients,
            wait=experiment.flower.wait,
            least=experiment.flower.least,
            answer=experiment.flower.answer,
            deadline=experiment.participation.deadline,
            largest=Expectations.of(world.method, world).largest,
            client_of=client_of,
            admits=admits,
            notices=papers.reader(),
            sleep=sleep,
        )

    try:
        go_on(directory, carrier)
    except CatchmentError as error:
        write_atomically(papers.error, json.dumps([type(error).__name__, str(error)]).encode())
        raise


def admitted(folder: Path, clients: int) -> Mapping[bytes, int]:
    """Who may join: the public keys `client-K.pub` in a folder, as nodes send them, and whose they are."""
    found = {}
    for client in range(clients):
        with contextlib.suppress(UserError):  # gone, or being written
            key = read_public(folder / f"client-{client}.pub")
            found[key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)] = client
    return found


def main(directory: Path, descriptor: int) -> None:
    """The process of the server routine."""
    from catchment.flower.link import Link

    end_with_parent()
    papers = Papers(directory)
    experiment = Experiment.load(directory / "experiment.toml")
    keys, clients = papers.keys(experiment), experiment.data.clients
    encrypted = experiment.flower.keys is not None and keys is not None
    link = Link(
        socket.socket(fileno=descriptor),
        clients,
        (keys / "server.crt", keys / "server.key") if encrypted and keys is not None else None,
    )
    if keys is not None:
        link.store.admit(admitted(keys, clients))
        threading.Thread(target=_follow, args=(link.store, keys, clients, papers), name="keys", daemon=True).start()
    with link:
        whose = None if keys is None else link.store.client
        serve_run(link, directory, keys=keys, client_of=whose, admits=link.store.admits, sleep=link.wait)


def _follow(store: Any, folder: Path, clients: int, papers: Papers) -> None:
    """Obey the folder of keys: who is gone from it is sent away, who is new may join."""
    while True:
        time.sleep(KEYS)
        for client in store.admit(admitted(folder, clients)):
            papers.note("revoked", client, "its key was taken away or replaced")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]))
    except CatchmentError as error:
        sys.exit(f"error: {error}")
