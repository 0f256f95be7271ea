"""Files of one record per line: written round by round, cut back to a checkpoint, read line by line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

from catchment.errors import RunError, UserError
from catchment.files import write_atomically
from catchment.reading import read_json

T = TypeVar("T")
Record = dict[str, Any]


class Journal(Generic[T]):
    """A file with one line per round; without a path, nothing is kept."""

    def __init__(self, path: Path | None, kind: type[T]) -> None:
        self._path = path
        self._kind = kind

    def until(self, round: int) -> Iterator[T]:
        """The records up to a round; an error if the file has fewer, or they cannot be read."""
        number = 0
        for number, line in enumerate(islice(self._lines(), round), start=1):
            yield read_json(self._kind, line, f"{self._path}, line {number},")
        if number < round:
            raise RunError(f"{self._path} has {number} rounds, its checkpoint says {round}; it was changed")

    def cut(self, round: int) -> None:
        """Drop the records after a round, which will be repeated."""
        if self._path is not None and self._path.exists():
            write_atomically(self._path, (line.rstrip(b"\n") + b"\n" for line in islice(self._lines(), round)))

    def _lines(self) -> Iterator[bytes]:
        return iter(()) if self._path is None or not self._path.exists() else lines_of(self._path)

    def add(self, record: T) -> None:
        """Append a round."""
        if self._path is not None:
            try:
                with self._path.open("a") as file:
                    file.write(json.dumps(to_dict(record)) + "\n")
            except OSError as error:
                raise RunError(f"{self._path} cannot be written: {error.strerror}") from error

    def flush(self) -> None:
        """Make sure that the disk has it."""
        if self._path is not None:
            with self._path.open("a") as file:
                os.fsync(file.fileno())


@dataclass(frozen=True)
class Lines(Generic[T]):
    """The records of a file, read one by one whenever they are wanted; none if there is no file."""

    path: Path
    kind: type[T]
    may_be_torn: bool = False  # a run that was killed may have left half a line at the end

    def __iter__(self) -> Iterator[T]:
        if not self.path.exists():
            return
        for number, line in enumerate(lines_of(self.path), start=1):
            whole = line.endswith(b"\n")
            if whole or not self.may_be_torn or _is_json(line):
                yield read_json(self.kind, line.removesuffix(b"\n"), f"{self.path}, line {number},")


class NewLines:
    """The lines that a file has got since they were last asked for; each is read once, unless the file is replaced."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = 0
        self._end = 0  # of what was read, in bytes
        self._count = 0  # lines

    def read(self) -> list[bytes]:
        """Whole lines alone; where another file took the place of this one, those beyond as many as were read."""
        if not self._path.exists():
            return []
        seen = 0
        with self._path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_ino != self._inode or status.st_size < self._end:
                seen, self._inode, self._end, self._count = self._count, status.st_ino, 0, 0
            file.seek(self._end)
            whole, newline, _ = file.read().rpartition(b"\n")
        lines = whole.split(b"\n") if newline else []
        self._end += len(whole + newline)
        self._count += len(lines)
        return lines[seen:]


def to_dict(record: Any) -> Record:
    """A record as a dict for JSON."""
    optional, further = getattr(record, "left_out_if_empty", ()), getattr(record, "further_keys", None)
    found: Record = {}
    for part in fields(record):
        value = getattr(record, part.name)
        if part.name == further:
            found.update(value)
        elif part.name not in optional or value not in (None, [], {}):
            found[part.name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return to_dict(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list) and value and is_dataclass(value[0]):
        return [to_dict(item) for item in value]
    return value


def lines_of(path: Path) -> Iterator[bytes]:
    """The lines of a file, one at a time in memory; one that cannot be read is a UserError."""
    try:
        with path.open("rb") as file:
            yield from file
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


def file_bytes(path: Path) -> bytes:
    """The bytes of a file; one that cannot be read is a UserError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
