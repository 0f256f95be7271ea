"""The files through which the server routine and the process that watches it communicate, in the run's directory."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from catchment import errors
from catchment.config.experiment import Experiment
from catchment.errors import CatchmentError, RunError
from catchment.files import FileLock, write_atomically
from catchment.runs.journal import NewLines


class ControlFiles:
    """The `flower` folder of a run's directory, made if it is missing."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.folder = directory / "flower"
        self.digest = self.folder / "digest"  # of the run, once it is known
        self._error = self.folder / "error.json"  # why the server routine stopped
        self._notices = self.folder / "notices.jsonl"  # events for the record of a round
        self._unread = NewLines(self._notices)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def lock(self) -> FileLock:
        """Refuse a second process that would watch over the run."""
        return FileLock(self.folder, "running it")

    def clear(self) -> None:
        """Remove the files of an earlier server routine."""
        for stale in (self._error, self.digest):
            stale.unlink(missing_ok=True)

    @property
    def federation(self) -> str:
        """The name of the run on its devices; made when it is first asked for."""
        path = self.folder / "federation"
        if not path.exists():
            write_atomically(path, os.urandom(8).hex().encode())
        return path.read_text()

    def keys(self, experiment: Experiment) -> Path | None:
        """The folder of keys in use: given, or made for clients of this machine; None if anybody may join."""
        given = experiment.flower.keys
        return Path(given) if given is not None else self.folder / "keys" if experiment.flower.local else None

    def stop(self, error: CatchmentError) -> None:
        """Write down why the server routine stops for good."""
        write_atomically(self._error, json.dumps([type(error).__name__, str(error)]).encode())

    def stopped(self) -> CatchmentError | None:
        """Why the server routine stopped for good, if it did."""
        if not self._error.exists():
            return None
        kind, text = json.loads(self._error.read_text())
        error: CatchmentError = getattr(errors, kind, RunError)(text)
        return error

    def note(self, what: str, client: int | None, why: str) -> None:
        """Leave an event for the record of the current round."""
        with self._notices.open("a") as file:
            file.write(json.dumps({"what": what, "client": client, "handler": "", "why": why}) + "\n")

    def new_notices(self) -> list[dict[str, Any]]:
        """The events that were left since the last call."""
        return [json.loads(line) for line in self._unread.read()]
