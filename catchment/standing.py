"""When a run must stop, and when one client is at fault: one failing or lying client never ends a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from catchment.errors import Diverged, RunError

ROUNDS = 3  # in a row without anything of use, or undone, end a run
STANDS_OUT = 10.0  # times the median size of what the others sent


@dataclass
class Standing:
    """What is known of the clients' conduct over the rounds."""

    suspended: set[int] = field(default_factory=set)  # not asked any more
    undone: int = 0  # rounds in a row that were undone with nobody to blame
    barren: list[dict[int, str]] = field(default_factory=list)  # the last rounds without use: why, by client

    def end_round(self, answered: int, reasons: dict[int, str]) -> None:
        """Remember a round that brought nothing; any other one begins the count anew."""
        self.barren = [*self.barren, reasons] if reasons and not answered else []

    def check(self, round: int, answered: int, reasons: dict[int, str], reachable: int) -> None:
        """Stop when the experiment is wrong, not one client.

        That is when everybody failed in the first round, or when nobody gave anything of use for some rounds in a row
        in which different clients were asked.
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

    def blame(self, why: str, sizes: Iterable[dict[int, float]], clients: int) -> int | None:
        """Who made a round break the server's model, if one client's uploads stand out: it is suspended.

        `sizes` are those of what clients sent in the round, by client, one table per field. With nobody to blame, or
        half of the clients suspended, some such rounds in a row end the run.
        """
        found: dict[int, float] = {}
        for table in sizes:
            for client, size in table.items():
                others = [other for number, other in table.items() if number != client]
                ratio = size / max(median(others), 1e-12) if others else float("inf")
                found[client] = max(found.get(client, 0.0), ratio)
        worst = max(found, key=lambda client: found[client], default=None)
        if worst is not None and found[worst] > STANDS_OUT and 2 * len(self.suspended) + 2 <= clients:
            self.suspended.add(worst)
            self.undone = 0
            return worst
        self.undone += 1
        if self.undone >= ROUNDS:
            raise Diverged(f"{ROUNDS} rounds in a row were undone: {why}")
        return None

    def to_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        barren = [list(reasons.items()) for reasons in self.barren]
        return {"suspended": sorted(self.suspended), "undone": self.undone, "barren": barren}

    @staticmethod
    def from_dict(table: dict[str, Any]) -> Standing:
        """The inverse of `to_dict`."""
        barren = [dict(map(tuple, reasons)) for reasons in table.get("barren", ())]
        return Standing(set(table.get("suspended", ())), table.get("undone", 0), barren)
