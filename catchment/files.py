"""Atomic writes, directories that only their owner can read, and a file lock."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from catchment.errors import RunError, UserError


def write_atomically(path: Path, content: bytes | Iterable[bytes | memoryview]) -> None:
    """Write a file, given whole or in parts; after a crash it is either the old one or the new one, never a mixture."""
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
    """Make a directory that only its owner can read; an existing one keeps its mode."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def private_directories(folder: Path) -> None:
    """Make a folder and its missing parents, readable by their owner alone."""
    for missing in reversed([f for f in (folder, *folder.parents) if not f.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)


class InUse(UserError):
    """Another process holds a lock."""


class FileLock:
    """A lock on a directory, or on a file, which is made if missing; held until it is closed or the process ends."""

    def __init__(self, path: Path, held_by: str) -> None:
        self._descriptor: int | None = None
        if os.name != "posix":
            return
        import fcntl

        self._descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise InUse(f"{path} is in use: another process is {held_by}") from None

    def close(self) -> None:
        """Release the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
