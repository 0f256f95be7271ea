"""What a device keeps on its disk for the runs that it takes part in, within its owner's budget."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, NamedTuple

from catchment.client.state import StoredVersions
from catchment.core import transport
from catchment.device.policy import Limits, Refusal
from catchment.errors import UserError, WireError
from catchment.files import private_directories, write_atomically

APPROVED = "approved"  # a file of digests
SILENCE = 86_400.0  # seconds without a message after which a run counts as over, as the last one may be lost


class Announcement(NamedTuple):
    """What the server's greeting says of a run."""

    experiment: str
    form: str


class RunFolder:
    """The files of one run: what it is, the client's state, a request as it comes in and the last response."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._announcement = folder / "run.json"
        self._inbox = folder / "inbox"
        self._outbox = folder / "outbox"

    @property
    def announcement(self) -> Announcement | None:
        """The announcement of the run, if it was ever accepted."""
        return (
            Announcement(*json.loads(self._announcement.read_text(encoding="utf-8")))
            if self._announcement.exists()
            else None
        )

    def accept(self, announcement: Announcement) -> None:
        """Keep the announcement of the run."""
        private_directories(self.folder)
        write_atomically(self._announcement, json.dumps(announcement).encode())

    @property
    def accepted(self) -> float:
        """When it was last accepted, for the order of runs."""
        return self._announcement.stat().st_mtime if self._announcement.exists() else 0.0

    def versions(self) -> StoredVersions:
        """The versions of the client's state."""
        return StoredVersions(self.folder / "versions")

    def receive(self, key: str, part: int, count: int, raw: bytes, most: float) -> bytes | None:
        """A request once its last part is here; one that is too long, or whose parts are out of order, is deleted."""
        head = f"{key}\n".encode()
        there = self._inbox.stat().st_size - len(head) if part and self._inbox.exists() else 0
        if count > transport.parts(int(min(most, 2**62))) or there + len(raw) > most:
            self._inbox.unlink(missing_ok=True)
            raise Refusal(
                f"a request of {count:,} parts, {there + len(raw):,} bytes so far; limits.bytes_down_per_message is "
                f"{most:,.0f}",
                "the request is longer than the device allows",
            )
        if count == 1:
            return raw
        if part and (there != part * transport.PART or _head(self._inbox, len(head)) != head):
            self._inbox.unlink(missing_ok=True)
            raise WireError(f"part {part} of a request came without those before it")
        with _opened(self._inbox, append=part > 0) as file:
            file.write(raw if part else head + raw)
        if part < count - 1:
            return None
        whole = self._inbox.read_bytes()[len(head) :]
        self._inbox.unlink()
        return whole

    def keep_response(self, key: str, raw: bytes) -> None:
        """Keep a response, in place of the one before it, until the next request."""
        _write(self._outbox, (f"{key} {len(raw)}\n".encode(), raw))

    def forget_response(self) -> None:
        """Delete the last response."""
        self._outbox.unlink(missing_ok=True)

    def response(self, key: str) -> bytes | None:
        """The last response, if it was to this request and is whole."""
        if not self._outbox.exists():
            return None
        head, _, raw = self._outbox.read_bytes().partition(b"\n")
        return raw if head == f"{key} {len(raw)}".encode() else None


class Disk:
    """The state folder of one client: a folder for each run, and which run is the current one."""

    def __init__(self, state: Path, client: int, limits: Limits) -> None:
        self._state = state
        self._client = client
        self._limits = limits
        self._current = state / f"client-{client}.run"
        private_directories(state)
        state.chmod(0o700)

    @property
    def current(self) -> str:
        """The run that the device takes part in, or ""; one that has been silent for too long is over."""
        if not self._current.exists() or time.time() - self._current.stat().st_mtime > SILENCE:
            return ""
        return self._current.read_text()

    def touch(self) -> None:
        """Note that the current run is still active."""
        self._current.touch()

    def begin(self, federation: str, announcement: Announcement) -> None:
        """Take part in a run; the oldest of the others are deleted if there are too many."""
        self.run(federation).accept(announcement)
        write_atomically(self._current, federation.encode())
        others = self._others()
        for run in others[: max(0, len(others) + 1 - int(min(self._limits.runs_kept, 2**62)))]:
            self._delete(run)

    def end(self) -> None:
        """Take part in no run."""
        self._current.unlink(missing_ok=True)

    def run(self, federation: str) -> RunFolder:
        """The folder of one run; its name comes from the server, so it is checked."""
        if not re.fullmatch("[0-9a-f]{8,64}", federation):
            raise WireError("this is not the name of a federation")
        return RunFolder(self._state / federation / f"client-{self._client}")

    def make_room(self, size: int) -> None:
        """Make sure that this many more bytes fit the budget; old runs are deleted, the oldest first."""
        if math.isinf(self._limits.bytes_of_disk):
            return
        others = self._others()
        while (used := _size(self._state)) + size > self._limits.bytes_of_disk:
            if not others:
                raise Refusal(
                    f"{used:,} bytes are in {self._state} and {size:,} more are asked for; limits.bytes_of_disk is "
                    f"{self._limits.bytes_of_disk:,.0f}",
                    "the run needs more disk space than the device allows",
                )
            self._delete(others.pop(0))

    def _others(self) -> list[RunFolder]:
        """The runs that are not the current one, the oldest first."""
        current = self.current
        folders = self._state.glob(f"*/client-{self._client}")
        runs = [RunFolder(folder) for folder in folders if folder.parent.name != current]
        return sorted(runs, key=lambda run: run.accepted)

    def _delete(self, run: RunFolder) -> None:
        shutil.rmtree(run.folder, ignore_errors=True)
        if run.folder.parent.exists() and not any(run.folder.parent.iterdir()):
            run.folder.parent.rmdir()


def approved(state: Path) -> list[str]:
    """The digests of runs that a person approved, from a device's state folder."""
    path = state / APPROVED
    return path.read_text().split() if path.exists() else []


def approve(state: Path, digest: str) -> None:
    """Keep a person's approval of a run."""
    if not re.fullmatch("[0-9a-f]{64}", digest):
        raise UserError(f'"{digest}" is not the digest of a run; 64 digits 0-9 and a-f are expected')
    private_directories(state)
    with _opened(state / APPROVED, append=True) as file:
        file.write(f"{digest}\n".encode())


def _opened(path: Path, *, append: bool = False) -> BinaryIO:
    flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if append else os.O_TRUNC)
    return os.fdopen(os.open(path, flags, 0o600), "ab" if append else "wb")


def _write(path: Path, content: Iterable[bytes]) -> None:
    """Replace a file without flushing it to the disk, as losing it in a power cut would do no harm."""
    temporary = path.with_name(path.name + ".part")
    with _opened(temporary) as file:
        file.writelines(content)
    temporary.replace(path)


def _head(path: Path, length: int) -> bytes:
    if not path.exists():
        return b""
    with path.open("rb") as file:
        return file.read(length)


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.lstat().st_size
    return total
