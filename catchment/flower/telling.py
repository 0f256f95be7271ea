"""What a server says while devices join: at once what a device waits for, and again while the run waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from catchment.runs.presence import AWAY, CONNECTED, UNANSWERED, WORKING, read_presence, states_in, what_helps

LOOK = 1.0  # seconds between two looks at who is there
FIRST, LONGEST = 30.0, 600.0  # seconds until all is said again while the run waits; each pause is twice the one before
EXPECTED = (AWAY, CONNECTED, UNANSWERED, WORKING)  # what is not said at once


class Telling:
    """Follows the file of who is there, and says what keeps devices from taking part."""

    def __init__(self, directory: Path, tell: Callable[[str], None]) -> None:
        self._directory = directory
        self._tell = tell
        self._began = time.time()
        self._looked = float("-inf")
        self._said: dict[int, str] = {}  # by client: the last state that was said
        self._pause = FIRST
        self._again: float | None = None  # when all is said again; None: the run does not wait

    def look(self) -> None:
        """Say what is new, if it is time for a look."""
        now = time.monotonic()
        if now - self._looked < LOOK:
            return
        self._looked = now
        presence = read_presence(self._directory)
        if presence is None or presence["written"] < self._began or not presence["digest"]:
            return  # an earlier start wrote this, or all clients are processes of this machine
        states = states_in(presence)
        new = {
            client: state
            for client, state in states.items()
            if state not in EXPECTED and self._said.get(client) != state
        }
        self._said |= new
        sentences = what_helps(new, presence["digest"], presence["keys"])
        if not presence["waits"]:
            self._pause, self._again = FIRST, None
        elif self._again is None:
            self._again = now + self._pause
        elif now >= self._again:
            self._pause = min(2 * self._pause, LONGEST)
            self._again = now + self._pause
            there = sum(state in (CONNECTED, WORKING) for state in states.values())
            self._tell(f"{there} of {len(states)} clients take part so far")
            sentences = what_helps(states, presence["digest"], presence["keys"])
        for sentence in sentences:
            self._tell(sentence)
