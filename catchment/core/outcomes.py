"""What became of the requests: counts over the run, events and reasons of the current round, and who is to blame."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from catchment.core.standing import Standing
from catchment.errors import CatchmentError, Diverged, printable
from catchment.exchange.request import Request


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
    standing: Standing = field(default_factory=Standing)
    events: list[dict[str, Any]] = field(default_factory=list)  # of the round
    in_use: int | None = None  # whose reply the method holds
    _answers: int = 0  # replies of the round that the method could use
    _reasons: dict[int, str] = field(default_factory=dict)  # by client: why there was no usable reply

    # ---- replies ----

    def answered(self) -> None:
        """A usable reply came."""
        self._answers += 1

    def lost(self, request: Request, why: str) -> None:
        """No reply came."""
        self.counts.lost += 1
        self.note("lost", request.client, request.handler, why)

    def failed(self, request: Request, why: str) -> None:
        """The client's handler raised."""
        self.counts.failed += 1
        self._reasons[request.client] = printable(why)
        self.note("failed", request.client, request.handler, why)

    def late(self, request: Request) -> None:
        """A reply came after its ask was over."""
        self.counts.late += 1
        self.note("late", request.client, request.handler, f"asked in round {request.round}")

    def refused(self, client: int, handler: str, why: str) -> None:
        """The reply cannot be used."""
        self.counts.refused += 1
        self._reasons[client] = f"refused, {printable(why)}"
        self.note("refused", client, handler, why)

    def withdrawn(self, client: int, handler: str, why: str) -> None:
        """A reply that counted as an answer is refused by the method."""
        self._answers -= 1
        self.refused(client, handler, why)

    def flagged(self, request: Request, why: str, drop: bool) -> None:
        """A reply stands out; noted once per round."""
        if drop:
            self.counts.refused += 1
            self._reasons[request.client] = f"dropped, {why}"
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
        """Close the previous round, of which a checkpoint may have the counts, and start with no events."""
        self.standing.end_round(self._answers, self._reasons)
        self.events, self.in_use, self._answers, self._reasons = [], None, 0, {}

    def check_round(self, round: int, reachable: int) -> None:
        """Raise when the experiment is at fault, not one client."""
        self.standing.check(round, self._answers, self._reasons, reachable)

    def kept(self) -> None:
        """The round was good."""
        self.standing.undone = 0

    def undone(self, error: Exception, sizes: Iterable[dict[int, float]], reachable: int) -> None:
        """The round failed on the server and was undone; the client to blame is suspended.

        An exception while no reply was in use is the method's own, and raised at once. A state that is not finite may
        be any client's doing: with nobody to blame, it is raised after several such rounds in a row.
        """
        self.note("undone", None, "", str(error) if isinstance(error, CatchmentError) else _with_class(error))
        last = None if isinstance(error, Diverged) else self.in_use
        if last is None and not isinstance(error, Diverged):
            raise error
        culprit = self.standing.blame(sizes, reachable, last)
        if culprit is not None:
            why = "the server failed on what it sent" if last is not None else "it sent far more than the others"
            self.note("suspended", culprit, "", f"{why}; it is not asked any more")
        if self.standing.exhausted:
            raise error

    # ---- checkpoints ----

    def restore(self, counts: Mapping[str, int], standing: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.counts = Counts(**counts)
        self.standing = Standing.from_dict(standing)
        self._answers, self._reasons = standing.get("answers", 0), dict(standing.get("reasons", ()))

    def counted(self) -> dict[str, int]:
        """The counts, for a checkpoint."""
        return dataclasses.asdict(self.counts)

    def stood(self) -> dict[str, Any]:
        """What is known of the clients' conduct, the current round's included, for a checkpoint."""
        return {**self.standing.to_dict(), "answers": self._answers, "reasons": list(self._reasons.items())}


def reason(error: Exception) -> str:
    """Why a client's bytes cannot be used, from whatever exception reading them raised."""
    return str(error) if isinstance(error, CatchmentError) else f"it cannot be read ({_with_class(error)})"


def _with_class(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
