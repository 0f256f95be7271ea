"""Who is connected to the server of a federation, works, is away or waits for approval, and since when: one small file.

It is written while the server runs, and has all that is needed to say what a run waits for, and what would help.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PRESENCE = "clients.json"
OFTEN, SELDOM = 0.5, 5.0  # seconds between two writings: of changes, and as a sign of life

AWAY, CONNECTED, WORKING = "away", "connected", "working"
UNAPPROVED = "waits for approval"
UNANSWERED = "has yet to answer"  # a greeting
KEYLESS = "has no key"
REFUSES = "refuses: "  # and why


class Presence:
    """Writes the file; what cannot be written is not worth a run.

    `digest` is that of the run, if its devices are other machines, and `keys` the folder by which they are admitted.
    """

    def __init__(self, directory: Path, digest: str = "", keys: Path | None = None) -> None:
        self._path = directory / PRESENCE
        self._about = {"digest": digest, "keys": None if keys is None else str(keys)}
        self._since: dict[int, tuple[str, float]] = {}  # by client: what it does, and since when
        self._waits = False
        self._changed = True
        self._written = float("-inf")

    def note(self, states: Mapping[int, str], waits: bool = False) -> None:
        """What every client does now, and whether the run `waits` for clients to connect."""
        now = time.time()
        for client, state in states.items():
            if self._since.get(client, ("",))[0] != state:
                self._since[client] = state, now
                self._changed = True
        if waits != self._waits:
            self._waits, self._changed = waits, True
        if now - self._written < (OFTEN if self._changed else SELDOM):
            return
        self._written, self._changed = now, False
        clients = {str(client): {"state": state, "since": since} for client, (state, since) in self._since.items()}
        temporary = self._path.with_suffix(".part")
        try:
            temporary.write_text(json.dumps({"written": now, "waits": waits, **self._about, "clients": clients}))
            temporary.replace(self._path)
        except OSError:
            return


def read_presence(directory: Path) -> dict[str, Any] | None:
    """What was written last; None if the run is no federation."""
    try:
        found = json.loads((directory / PRESENCE).read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def states_in(presence: Mapping[str, Any]) -> dict[int, str]:
    """What every client does, from what was written."""
    return {int(client): doing["state"] for client, doing in presence["clients"].items()}


def what_helps(states: Mapping[int, str], digest: str, keys: str | None) -> list[str]:
    """A sentence for each reason why clients do not take part, with the command that would help.

    Nothing without a digest: all clients are processes of this machine.
    """
    if not digest:
        return []
    found: dict[str, list[int]] = {}
    for client, state in sorted(states.items()):
        found.setdefault(state, []).append(client)
    sentences = []
    for state, clients in found.items():
        one = len(clients) == 1
        who = f"client {clients[0]}" if one else f"clients {', '.join(map(str, clients))}"
        there = "on that device" if one else "on each of these devices"
        wait, have, are, refuse = ("waits", "has", "is", "refuses") if one else ("wait", "have", "are", "refuse")
        if state == UNAPPROVED:
            owner = "its owner" if one else "their owners"
            sentences.append(
                f"{who} {wait} for {owner} to approve this run; {there}: catchment policy --approve {digest}"
            )
        elif state == UNANSWERED:
            sentences.append(
                f"{who} {are} connected, and {have} yet to answer: the data are read, or a person is asked"
            )
        elif state == KEYLESS:
            number = clients[0] if one else "K"
            sentences.append(f"{who} {have} no key; here: catchment keys {keys} --add FILE --client-id {number}")
        elif state == AWAY:
            sentences.append(f"{who} {are} not connected; {there}: catchment join")
        elif state.startswith(REFUSES):
            sentences.append(f"{who} {refuse} to take part: {state.removeprefix(REFUSES)}; {there}: catchment policy")
    return sentences
