"""Results of long sweeps: on the disk after each piece of work, taken up again by the next call.

They are begun anew when the program that they speak of, its libraries or the seed have changed.
"""

from __future__ import annotations

import hashlib
import json
import platform
from pathlib import Path
from typing import Any

import torch

import catchment
from catchment.files import write_atomically

RESULTS = Path(__file__).parent / "results"


class Evidence:
    """One table of a file of results."""

    def __init__(self, path: Path, name: str, seed: int) -> None:
        self._path, self._name = path, name
        facts = {"seed": seed, "program": program(), "torch": torch.__version__, "python": platform.python_version()}
        known = self._all().get(name, {})
        self.table: dict[str, Any] = known if facts.items() <= known.items() else facts

    def write(self) -> None:
        content = json.dumps({**self._all(), self._name: self.table}, indent=1) + "\n"
        write_atomically(self._path, content.encode())

    def _all(self) -> dict[str, Any]:
        return json.loads(self._path.read_text()) if self._path.exists() else {}


def program() -> str:
    """A short hash of the program."""
    digest = hashlib.sha256()
    for path in sorted(Path(catchment.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
