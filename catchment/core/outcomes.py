"""What became of requests and rounds: counts, events and reasons, when a run must stop, and which client is to blame.

One failing or lying client never ends a run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from catchment.errors import CatchmentError, Diverged, RunError, printable
from catchment.exchange.request import Request

ROUNDS = 3  # this many in a row without a usable reply, or undone, end a run
STANDS_OUT = 10.0  # times the median size of what the others sent


@dataclass
class Counts:
    """Replies that went wrong, over the whole run."""

    lost: int = 0  # no reply: unreachable, crashed, dropped
    failed: int = 0  # the client's handler raised
    refused: int = 0  # the reply was not accepted
    late: int = 0  # the reply came after its ask was over


@dataclass
class Outcomes:
    """What came of requests and rounds."""

    counts: Counts = field(default_factory=Counts)
    events: list[dict[str, Any]] = field(default_factory=list)  # of the round
    in_use: int | None = None  # whose reply the method holds
    suspended: set[int] = field(default_factory=set)  # not asked any more
    undone: int = 0  # rounds in a row that were undone and may be nobody's fault
    barren: list[dict[int, str]] = field(default_factory=list)  # latest rounds without a usable reply: why, by client
    usable: int = 0  # replies of the round
    reasons: dict[int, str] = field(default_factory=dict)  # of the round, by client: why there was no usable reply

    # ---- replies ----

    def lost(self, request: Request, why: str) -> None:
        """No reply came."""
        self.counts.lost += 1
        self.note("lost", request.client, request.handler, why)

    def failed(self, request: Request, why: str) -> None:
        """The client's handler raised."""
        self.counts.failed += 1
        self.reasons[request.client] = printable(why)
        self.note("failed", request.client, request.handler, why)

    def late(self, request: Request) -> None:
        """A reply came after its ask was over."""
        self.counts.late += 1
        self.note("late", request.client, request.handler, f"asked in round {request.round}")

    def refused(self, client: int, handler: str, why: str) -> None:
        """The reply cannot be used."""
        self.counts.refused += 1
        self.reasons[client] = f"refused, {printable(why)}"
        self.note("refused", client, handler, why)

    def withdrawn(self, client: int, handler: str, why: str) -> None:
        """A reply that counted as usable is refused by the method."""
        self.usable -= 1
        self.refused(client, handler, why)

    def flagged(self, request: Request, why: str, drop: bool) -> None:
        """A reply stands out; noted once per round."""
        if drop:
            self.counts.refused += 1
            self.reasons[request.client] = f"dropped, {why}"
        noted = ("flagged", request.client, request.handler)
        if noted not in {(event["what"], event["client"], event["handler"]) for event in self.events}:
            self.note(*noted, f"{why}; {'dropped' if drop else 'kept'}")

    def attacked(self, request: Request, numbers: Mapping[str, float], honest: int) -> None:
        """An attacker replaced its reply, with a strength of these numbers; noted once per round."""
        strength = ", ".join(f"{name} {number:.4g}" for name, number in numbers.items())
        why = f"{strength}; saw {honest} honest replies"
        event = {"what": "attacked", "client": request.client, "handler": request.handler, "why": why}
        event = {**event, "numbers": dict(numbers)}
        if event not in self.events:
            self.events.append(event)

    def note(self, what: str, client: int | None, handler: str, why: str) -> None:
        """Add an event."""
        self.events.append({"what": what, "client": client, "handler": handler, "why": printable(why)})

    # ---- rounds ----

    def begin_round(self) -> None:
        """Close the previous round, of which a checkpoint may have the counts, and start with no events.

        A round without any usable reply is remembered; any other forgets those before it.
        """
        self.barren = [*self.barren, self.reasons] if self.reasons and not self.usable else []
        self.events, self.in_use, self.usable, self.reasons = [], None, 0, {}

    def check_round(self, round: int, reachable: int) -> None:
        """Raise when the experiment is at fault, not one client.

        That is when everybody failed in the first round, or when several rounds in a row, with different clients,
        brought no usable reply.
        """
        if self.usable or not self.reasons:
            return
        everybody = round == 1 and len(self.reasons) >= reachable
        known = {client: why for earlier in (*self.barren, self.reasons) for client, why in earlier.items()}
        in_a_row = len(self.barren) + 1 >= ROUNDS and len(known) >= min(2, reachable)
        if everybody or in_a_row:
            client, why = next(iter(known.items()))
            rounds = f"round {round}" if everybody else f"rounds {round - len(self.barren)} to {round}"
            raise RunError(f"{rounds}: all {len(known)} clients failed; client {client}: {why}")

    def round_kept(self) -> None:
        """The round was good."""
        self.undone = 0

    def round_undone(self, error: Exception, sizes: Iterable[dict[int, float]], reachable: int) -> None:
        """The round failed on the server and was undone; the client to blame is suspended.

        An exception while no reply was in use is the method's own, and raised at once. A state that is not finite may
        be any client's doing: with nobody to blame, it is raised after several such rounds in a row. `sizes` are those
        of the round's uploads, by client, one table per field.
        """
        self.note("undone", None, "", str(error) if isinstance(error, CatchmentError) else _with_class(error))
        diverged = isinstance(error, Diverged)
        if self.in_use is None and not diverged:
            raise error
        culprit = _outstanding(sizes) if diverged else self.in_use
        if culprit is not None and 2 * len(self.suspended) + 2 > reachable:
            culprit = None  # half of the clients are suspended already
        self.undone += culprit is None or not diverged
        if culprit is not None:
            self.suspended.add(culprit)
            why = "it sent far more than the others" if diverged else "the server failed on what it sent"
            self.note("suspended", culprit, "", f"{why}; it is not asked any more")
        if self.undone >= ROUNDS:
            raise error

    # ---- checkpoints ----

    def snapshot(self) -> dict[str, Any]:
        """What a checkpoint must hold, as JSON has it: the events and the reply in use are of the round alone."""
        return {
            "counts": dataclasses.asdict(self.counts),
            "suspended": sorted(self.suspended),
            "undone": self.undone,
            "barren": [list(reasons.items()) for reasons in self.barren],
            "usable": self.usable,
            "reasons": list(self.reasons.items()),
        }

    def restore(self, table: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.counts = Counts(**table["counts"])
        self.suspended, self.undone = set(table["suspended"]), table["undone"]
        self.barren = [dict(map(tuple, reasons)) for reasons in table["barren"]]
        self.usable, self.reasons = table["usable"], dict(map(tuple, table["reasons"]))


def reason(error: Exception) -> str:
    """Why a client's bytes cannot be used, from whatever exception reading them raised."""
    return str(error) if isinstance(error, CatchmentError) else f"it cannot be read ({_with_class(error)})"


def _with_class(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


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
