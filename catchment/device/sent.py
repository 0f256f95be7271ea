"""`sent.jsonl`: every answer that a device sent, and `refused.jsonl`: what it refused, one line each, for its owner.

A server can make a device refuse as often as it likes. So refusals have a file of their own, and their rate is limited.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
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
NAME, REFUSED = "sent.jsonl", "refused.jsonl"
AT_ONCE, PAUSE = 100, 60.0  # refusals that are noted at once, and seconds after which one more is


class Rate:
    """Lets something happen a number of times at once, and once more after every pause of some seconds."""

    def __init__(self, at_once: int, pause: float) -> None:
        self._most, self._pause = float(at_once), pause
        self._left, self._since = self._most, time.monotonic()

    def allows(self) -> bool:
        """Whether it may happen now; if so, it is counted."""
        now = time.monotonic()
        self._left, self._since = min(self._most, self._left + (now - self._since) / self._pause), now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class SentLog:
    """Append-only logs, readable by their owner alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last = ""  # refusal that was written, if nothing was sent since
        self._rate = Rate(AT_ONCE, PAUSE)
        self._left_out = 0  # refusals since the last one that was written

    def sent(self, federation: str, request: Request, body: Message, size: int) -> None:
        """Log an answer before it is sent: each tensor with the hash of its bytes, each number with its name."""
        tensors = list(_described(body))
        about = {"round": request.round, "handler": request.handler, "purpose": request.purpose}
        self._note(federation, bytes=size, **about, tensors=tensors, scalars=dict(body.scalars))

    def note(self, federation: str, kind: str, fields: Mapping[str, Any], size: int = 0) -> None:
        """Log the fields of an answer without tensors, or that an answer was sent again."""
        self._note(federation, bytes=size, handler=kind, tensors=[], scalars=dict(fields))

    def refused(self, federation: str, kind: str, why: str) -> bool:
        """Log what was asked and why it was refused, unless that is the last line already, or there are too many."""
        why = printable(why, LONGEST)
        if (repeated := f"{federation} {kind} {why}") == self._last:
            return False
        if not self._rate.allows():
            self._left_out += 1
            return False
        more = {"left_out_before": self._left_out} if self._left_out else {}
        self._write(REFUSED, "refused", federation, asked=printable(kind), why=why, **more)
        self._last, self._left_out = repeated, 0
        return True

    def _note(self, federation: str, **more: Any) -> None:
        self._last = ""
        self._write(NAME, "sent", federation, **more)

    def _write(self, name: str, what: str, federation: str, **more: Any) -> None:
        path = self._folder / name
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size >= LARGEST:
                self._rotate(path)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        line = json.dumps({"time": now, "what": what, "federation": printable(federation, 64), **more}) + "\n"
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _rotate(self, path: Path) -> None:
        paths = [path, *(_older(path, number) for number in range(1, FILES + 1))]
        for older, newer in reversed(list(zip(paths[1:], paths))):
            with contextlib.suppress(FileNotFoundError):
                newer.replace(older)


def read_log(folder: Path, name: str = NAME) -> Iterator[dict[str, Any]]:
    """The lines of a log and its older files, oldest first; a line that a power cut tore is left out."""
    newest = folder / name
    for path in (*(_older(newest, number) for number in range(FILES, 0, -1)), newest):
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(ValueError):
                    yield json.loads(line)


def _older(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}.{number}{path.suffix}")


def _described(body: Message) -> Iterator[dict[str, Any]]:
    for name, raw in zip(body.layout.order, islice(body.buffers(), 2, None)):  # after the header and its length
        yield {
            "name": name,
            "dtype": str(body.tensors[name].dtype).removeprefix("torch."),
            "shape": list(body.tensors[name].shape),
            "bytes": len(raw),
            "sha256": hashlib.sha256(raw).hexdigest(),
        }
