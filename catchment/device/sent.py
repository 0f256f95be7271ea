"""`sent.jsonl`: every answer that a device sent and every refusal, one line each, for its owner."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from catchment.errors import printable
from catchment.exchange.message import Message
from catchment.exchange.request import Request

LARGEST = 10_000_000  # bytes of one file; then it becomes sent.1.jsonl, the old sent.1.jsonl becomes sent.2.jsonl
FILES = 20  # older ones that are kept
LONGEST = 1000  # characters of a reason
NAME = "sent.jsonl"


class SentLog:
    """An append-only log, readable by its owner alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last = ""  # refusal that was written, if nothing was sent since

    def sent(self, federation: str, request: Request, body: Message, size: int) -> None:
        """Log an answer before it is sent: each tensor with the hash of its bytes, each number with its name."""
        tensors = list(_described(body))
        about = {"round": request.round, "handler": request.handler, "purpose": request.purpose}
        self._write("sent", federation, bytes=size, **about, tensors=tensors, scalars=dict(body.scalars))

    def note(self, federation: str, kind: str, fields: Mapping[str, Any], size: int = 0) -> None:
        """Log the fields of an answer without tensors, or that an answer was sent again."""
        self._write("sent", federation, bytes=size, handler=kind, tensors=[], scalars=dict(fields))

    def refused(self, federation: str, kind: str, why: str) -> bool:
        """Log what was asked and why it was refused, unless that is the last line already."""
        why = printable(why, LONGEST)
        if (repeated := f"{federation} {kind} {why}") == self._last:
            return False
        self._write("refused", federation, asked=printable(kind), why=why)
        self._last = repeated
        return True

    def _write(self, what: str, federation: str, **more: Any) -> None:
        path = self._folder / NAME
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size >= LARGEST:
                self._rotate()
        if what == "sent":
            self._last = ""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        line = json.dumps({"time": now, "what": what, "federation": printable(federation, 64), **more}) + "\n"
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _rotate(self) -> None:
        paths = [self._folder / NAME, *(self._folder / f"sent.{number}.jsonl" for number in range(1, FILES + 1))]
        for older, newer in reversed(list(zip(paths[1:], paths))):
            with contextlib.suppress(FileNotFoundError):
                newer.replace(older)


def read_log(folder: Path) -> Iterator[dict[str, Any]]:
    """The lines of a log and its older files, oldest first; a line that a power cut tore is left out."""
    older = [folder / f"sent.{number}.jsonl" for number in range(FILES, 0, -1)]
    for path in (*older, folder / NAME):
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(ValueError):
                    yield json.loads(line)


def _described(body: Message) -> Iterator[dict[str, Any]]:
    for name, raw in zip(body.layout.order, islice(body.buffers(), 2, None)):  # after the header and its length
        yield {
            "name": name,
            "dtype": str(body.tensors[name].dtype).removeprefix("torch."),
            "shape": list(body.tensors[name].shape),
            "bytes": len(raw),
            "sha256": hashlib.sha256(raw).hexdigest(),
        }
