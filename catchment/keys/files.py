"""Key files: a private one is readable by its owner alone, and none is ever replaced by accident."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from catchment.errors import UserError, needs
from catchment.files import write_atomically

with needs("a key", "device"):
    from cryptography.exceptions import UnsupportedAlgorithm

T = TypeVar("T")


def read(path: Path, load: Callable[[bytes], T]) -> T:
    """What `load` makes of a file."""
    try:
        return load(path.read_bytes())
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{path} cannot be read as what its name says: {reason}; restore the original file") from None


def write_private(path: Path, content: bytes) -> Path:
    """Write a new file that only its owner can read; an existing one is never touched."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None
    return path


def write_public(path: Path, content: bytes) -> Path:
    """Write a file atomically, as a running server may read it at any moment."""
    write_atomically(path, content)
    return path


def check_private(path: Path) -> None:
    """Refuse a file or folder that others may read, or that belongs to somebody else."""
    try:
        status = path.stat()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    if os.name != "posix":
        return
    mode, wanted = stat.S_IMODE(status.st_mode), "700" if path.is_dir() else "600"
    if mode & 0o077:
        raise UserError(f"others may read {path} (its mode is {mode:04o}), and keys are secret: chmod {wanted} {path}")
    if status.st_uid != os.getuid():
        raise UserError(
            f"{path} belongs to user {status.st_uid}, and this is user {os.getuid()}; a private key belongs to whoever "
            f"uses it: chown {os.getuid()} {path}, or run this as its owner"
        )
