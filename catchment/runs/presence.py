"""Who is connected to the server of a federation, who works, who is away, and since when: one small file of the run."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PRESENCE = "clients.json"
OFTEN, SELDOM = 0.5, 5.0  # seconds between two writings: of changes, and as a sign of life


class Presence:
    """Writes the file; what cannot be written is not worth a run."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / PRESENCE
        self._since: dict[int, tuple[str, float]] = {}  # by client: what it does, and since when
        self._changed = True
        self._written = float("-inf")

    def note(self, states: Mapping[int, str]) -> None:
        """What every client does now."""
        now = time.time()
        for client, state in states.items():
            if self._since.get(client, ("",))[0] != state:
                self._since[client] = state, now
                self._changed = True
        if now - self._written < (OFTEN if self._changed else SELDOM):
            return
        self._written, self._changed = now, False
        clients = {str(client): {"state": state, "since": since} for client, (state, since) in self._since.items()}
        temporary = self._path.with_suffix(".part")
        try:
            temporary.write_text(json.dumps({"written": now, "clients": clients}))
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
