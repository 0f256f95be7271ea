"""The server routine of a run, over the grid that Flower gives to a ServerApp."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from catchment import __version__
from catchment.checkpoint import write_atomically
from catchment.errors import CatchmentError
from catchment.experiment import Experiment
from catchment.run import begin, go_on
from catchment.transports.base import Transport
from catchment.transports.flower import Flower
from catchment.world import World

_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG in prctl.h


def end_with_parent() -> None:
    """On Linux, let the kernel end this process when its parent dies, however that happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)


class Papers:
    """The files by which the server routine and those who watch over it speak, in a folder of the run's directory."""

    def __init__(self, directory: Path) -> None:
        self.folder = directory / "flower"
        self.pid = self.folder / "server.pid"  # of the server routine
        self.error = self.folder / "error.json"  # why it stopped
        self.nodes = self.folder / "nodes.json"  # node -> client, where keys say so
        self.notices = self.folder / "notices.jsonl"  # what the watcher did
        self.folder.mkdir(parents=True, exist_ok=True)

    @property
    def federation(self) -> str:
        """The name of the run on its devices; made when it is first asked for."""
        path = self.folder / "federation"
        if not path.exists():
            write_atomically(path, os.urandom(8).hex().encode())
        return path.read_text()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """While this process is the server routine: a lock tells others, and goes with the process however it ends."""
        temporary = self.pid.with_suffix(".part")
        with temporary.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(str(os.getpid()))
            file.flush()
            temporary.replace(self.pid)
            yield

    def is_at_work(self) -> bool:
        """Whether the server routine runs."""
        try:
            with self.pid.open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except FileNotFoundError:
            pass
        return False

    def note(self, why: str) -> None:
        """Leave a notice for the record of the round under way."""
        with self.notices.open("a") as file:
            file.write(json.dumps({"what": "restarted", "client": None, "handler": "", "why": why}) + "\n")


def start_run(file: Path, directory: Path) -> None:
    """Make the directory of a run from an experiment file."""
    begin(Experiment.load(file, {"engine": "flower"}), directory)


def serve_run(grid: Grid, directory: Path) -> None:
    """Do what is left of the run in a directory with the clients that Flower has."""
    end_with_parent()
    papers = Papers(directory)
    read = 0

    def notices() -> list[dict[str, Any]]:
        nonlocal read
        lines = papers.notices.read_text().splitlines() if papers.notices.exists() else []
        found, read = lines[read:], len(lines)
        return [json.loads(line) for line in found]

    def carrier(world: World, directory: Path | None) -> Transport:
        nodes = {int(k): v for k, v in json.loads(papers.nodes.read_text()).items()} if papers.nodes.exists() else None
        experiment = Experiment.load(papers.folder.parent / "experiment.toml")
        return Flower(
            grid,
            experiment=experiment.to_toml(),
            form=json.dumps(world.data.dataset.form.to_dict()),
            federation=papers.federation,
            version=__version__,
            clients=world.clients,
            wait=experiment.flower.wait,
            least=experiment.flower.least,
            deadline=experiment.participation.deadline,
            nodes=nodes,
            notices=notices,
        )

    try:
        with papers.at_work():
            go_on(directory, carrier)
    except CatchmentError as error:
        write_atomically(papers.error, json.dumps([type(error).__name__, str(error)]).encode())
        raise
