"""Files of one record per line: written round by round, cut back to a checkpoint, read whole."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Generic, TypeVar

from catchment.errors import RunError, UserError
from catchment.files import write_atomically
from catchment.runs.converter import from_dict, to_dict

T = TypeVar("T")


class Journal(Generic[T]):
    """A file with one line per round; without a path, nothing is kept."""

    def __init__(self, path: Path | None, kind: type[T]) -> None:
        self._path = path
        self._kind = kind

    def until(self, round: int) -> list[T]:
        """The records up to a round; an error if the file has fewer, or they cannot be read."""
        lines = self._lines(round)
        if len(lines) < round:
            raise RunError(f"{self._path} has {len(lines)} rounds, its checkpoint says {round}; it was changed")
        return [parsed(self._kind, line, f"{self._path}, line {n},") for n, line in enumerate(lines, start=1)]

    def cut(self, round: int) -> None:
        """Drop the records after a round, which will be repeated."""
        if self._path is not None and self._path.exists():
            write_atomically(self._path, b"".join(line + b"\n" for line in self._lines(round)))

    def _lines(self, count: int) -> list[bytes]:
        if self._path is None or not self._path.exists():
            return []
        return file_bytes(self._path).splitlines()[:count]

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


def read_lines(path: Path, kind: type[T], *, may_be_torn: bool = False) -> list[T]:
    """All records of a file, none if there is no file; a run that was killed may have left half a line at the end."""
    if not path.exists():
        return []
    *whole, rest = file_bytes(path).split(b"\n")
    records = []
    for number, line in enumerate([*whole, rest] if rest else whole, start=1):
        if may_be_torn and number > len(whole) and not _is_json(line):
            break
        records.append(parsed(kind, line, f"{path}, line {number},"))
    return records


def parsed(kind: type[T], text: bytes, where: str) -> T:
    """A record from the text of a file; `where` begins the sentence if it is damaged."""
    try:
        table: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is damaged: {error}") from None
    return from_dict(kind, table, where)


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
