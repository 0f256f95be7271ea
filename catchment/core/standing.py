"""When a run must stop, and when one client is at fault: one failing or lying client never ends a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from catchment.errors import RunError

ROUNDS = 3  # this many in a row without a usable reply, or undone, end a run
STANDS_OUT = 10.0  # times the median size of what the others sent


@dataclass
class Standing:
    """What is known of the clients' conduct over the rounds."""

    suspended: set[int] = field(default_factory=set)  # not asked any more
    undone: int = 0  # rounds in a row that were undone and may be nobody's fault
    barren: list[dict[int, str]] = field(default_factory=list)  # latest rounds without a usable reply: why, by client

    def end_round(self, answered: int, reasons: dict[int, str]) -> None:
        """Remember a round without any usable reply; any other round resets the count."""
        self.barren = [*self.barren, reasons] if reasons and not answered else []

    def check(self, round: int, answered: int, reasons: dict[int, str], reachable: int) -> None:
        """Raise when the experiment is at fault, not one client.

        That is when everybody failed in the first round, or when several rounds in a row, with different clients,
        brought no usable reply.
        """
        if answered or not reasons:
            return
        everybody = round == 1 and len(reasons) >= reachable
        known = {client: why for earlier in (*self.barren, reasons) for client, why in earlier.items()}
        in_a_row = len(self.barren) + 1 >= ROUNDS and len(known) >= min(2, reachable)
        if everybody or in_a_row:
            client, why = next(iter(known.items()))
            rounds = f"round {round}" if everybody else f"rounds {round - len(self.barren)} to {round}"
            raise RunError(f"{rounds}: all {len(known)} clients failed; client {client}: {why}")

    def blame(self, sizes: Iterable[dict[int, float]], clients: int, last: int | None = None) -> int | None:
        """The client that made a round fail, if known; it is suspended, unless half of the clients are already.

        It is the client whose reply was taken `last`, if that ended in an exception, or else the one whose uploads
        are far larger than the others'. `sizes` are those of the round's uploads, by client, one table per field.
        """
        culprit = last if last is not None else _outstanding(sizes)
        if culprit is not None and 2 * len(self.suspended) + 2 > clients:
            culprit = None
        self.undone += culprit is None or last is not None
        if culprit is not None:
            self.suspended.add(culprit)
        return culprit

    @property
    def exhausted(self) -> bool:
        """Whether more rounds in a row were undone than one client can be blamed for."""
        return self.undone >= ROUNDS

    def to_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        barren = [list(reasons.items()) for reasons in self.barren]
        return {"suspended": sorted(self.suspended), "undone": self.undone, "barren": barren}

    @staticmethod
    def from_dict(table: dict[str, Any]) -> Standing:
        """The inverse of `to_dict`."""
        barren = [dict(map(tuple, reasons)) for reasons in table.get("barren", ())]
        return Standing(set(table.get("suspended", ())), table.get("undone", 0), barren)


def _outstanding(sizes: Iterable[dict[int, float]]) -> int | None:
    """The client that sent far more than the others in some field."""
    found: dict[int, float] = {}
    for table in sizes:
        for client, size in table.items():
            others = [other for number, other in table.items() if number != client]
            ratio = size / max(median(others), 1e-12) if others else float("inf")
            found[client] = max(found.get(client, 0.0), ratio)
    worst = max(found, key=lambda client: found[client], default=None)
    return worst if worst is not None and found[worst] > STANDS_OUT else None
