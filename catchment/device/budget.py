"""What a run may have of a device: bytes, requests and seconds, counted on the disk by the run's digest.

A run that a server starts again, under any name, goes on with what the first left. Every approval of the digest is
worth as much again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from catchment.device.policy import Limits, Refusal
from catchment.files import write_atomically


class Budget:
    """The budget of one client in the runs of one digest, which was approved a number of times."""

    def __init__(self, state: Path, client: int, digest: str, limits: Limits, approvals: int) -> None:
        self._path = state / f"client-{client}.{digest}.json"
        self._digest = digest
        self._limits = limits
        self._approvals = max(1, approvals)  # a trusted server needs none
        self._spent: dict[str, Any] = {"bytes_up": 0, "seconds": 0.0, "requests": {}}
        if self._path.exists():
            self._spent = json.loads(self._path.read_text())

    def count_request(self, round: int) -> None:
        """Count a request of a round; refuse it if there were too many, or if no time is left to work on it."""
        limits, requests = self._limits, self._spent["requests"]
        if round > limits.rounds:
            raise Refusal(
                f"round {round} was asked for; limits.rounds is {limits.rounds:,.0f}", "the run has fewer rounds"
            )
        count = requests.get(str(round), 0) + 1
        self._check("requests_per_round", count, f"{count:,} requests in round {round}", "requests of a round")
        seconds = self._spent["seconds"]
        self._check("seconds_per_run", seconds, f"{seconds:,.0f} s of work", "time")
        requests[str(round)] = count
        self._write()

    def count_work(self, seconds: float) -> None:
        """Count seconds of work, whatever came of it."""
        self._spent["seconds"] += seconds
        self._write()

    def afford(self, size: int) -> None:
        """Refuse to send this many bytes if that would be too much."""
        total = self._spent["bytes_up"] + size
        self._check("bytes_up_per_run", total, f"{total:,} bytes that would be sent", "bytes")

    def spend(self, size: int) -> None:
        """Count bytes that are about to be sent, if that is not too much."""
        self.afford(size)
        self._spent["bytes_up"] += size
        self._write()

    def _check(self, name: str, used: float, given: str, what: str) -> None:
        if used > (limit := getattr(self._limits, name) * self._approvals):
            raise Refusal(
                f"{given} of a run; limits.{name} allows {limit:,.0f} for {self._approvals} approval(s); to allow as "
                f"much again: catchment policy --approve {self._digest}",
                f"the run has used up the {what} that the device allows",
            )

    def _write(self) -> None:
        write_atomically(self._path, json.dumps(self._spent).encode())
