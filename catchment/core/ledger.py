"""The ledger: every byte sent, by round, client, direction, purpose and tensor, as serialised for the wire."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from catchment.exchange.message import Message
from catchment.exchange.request import GREETING, TRAINING

Direction = Literal["up", "down"]
FRAMING = "(framing)"  # header, names, scalars and envelope of a message
_NO_TENSORS = Message({})


@dataclass
class Entry:
    """Messages with tensors of the same sizes in one round, and who sent or received them."""

    direction: Direction
    purpose: str
    sizes: tuple[tuple[str, int], ...]  # bytes of each tensor
    framing: int
    clients: list[int] = field(default_factory=list)  # one item per message

    def as_json(self) -> dict[str, Any]:
        """The form of a line of `ledger.jsonl`."""
        return {
            "direction": self.direction,
            "purpose": self.purpose,
            "clients": self.clients,
            "tensors": {**dict(self.sizes), FRAMING: self.framing},
        }


class Ledger:
    """Counts the bytes of messages. Totals are kept for the run, entries for the current round."""

    def __init__(self) -> None:
        self.totals: Counter[tuple[str, str]] = Counter()  # (direction, purpose) -> bytes
        self.fields: Counter[tuple[str, str]] = Counter()  # (direction, field) -> bytes of training, closed rounds
        self._entries: dict[tuple[str, str, tuple[tuple[str, int], ...], int], Entry] = {}

    def book(self, client: int, direction: Direction, purpose: str, message: Message, size: int) -> None:
        """Count one message; `size` is its length on the wire."""
        sizes = message.sizes
        key = (direction, purpose, sizes, size)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = Entry(direction, purpose, sizes, size - sum(nbytes for _, nbytes in sizes))
        entry.clients.append(client)
        self.totals[direction, purpose] += size

    def book_greeting(self, client: int, direction: Direction, size: int) -> None:
        """Count what the transport sent by itself: beside what the method costs, on any transport."""
        self.book(client, direction, GREETING, _NO_TENSORS, size)

    def close_round(self) -> list[dict[str, Any]]:
        """The entries of the round, in an order that does not depend on arrival; a new round begins."""
        entries, self._entries = self._entries.values(), {}
        for entry in entries:
            if entry.purpose == TRAINING:
                for name, size in (*entry.sizes, (FRAMING, entry.framing)):
                    self.fields[entry.direction, _field(name)] += size * len(entry.clients)
        rows = [entry.as_json() for entry in entries]
        for row in rows:
            row["clients"].sort()
        return sorted(rows, key=lambda row: (row["direction"], row["purpose"], row["clients"], str(row["tensors"])))

    def summary(self) -> dict[str, int]:
        """Bytes so far: training up and down, and evaluation."""
        return summarise(self.totals)


def _field(tensor: str) -> str:
    """The payload's field that a tensor on the wire belongs to."""
    return tensor.partition("/")[0].partition(":")[0]


def summarise(totals: Mapping[tuple[str, str], int]) -> dict[str, int]:
    """`{up, down, evaluation}` from totals by (direction, purpose); greetings are of no method, and left out."""
    return {
        "up": totals.get(("up", TRAINING), 0),
        "down": totals.get(("down", TRAINING), 0),
        "evaluation": sum(size for (_, purpose), size in totals.items() if purpose not in (TRAINING, GREETING)),
    }
