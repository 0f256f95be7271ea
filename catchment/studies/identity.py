"""What makes two runs the same run: everything that can change a result, and nothing else."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from catchment.config.experiment import Experiment

RESULTS = 2  # raised with every change that moves results; the changelog lists them
_WITHOUT_EFFECT = ("name", "workers", "strict", "path", "checkpoint", "flower")


def digest(experiment: Experiment) -> str:
    """The name of a run among all runs: its settings with all defaults, its own code, and the version of results."""
    settings = experiment.to_dict()
    for key in _WITHOUT_EFFECT:
        settings.pop(key, None)
    settings["data"].pop("root", None)
    settings["data"].pop("download", None)
    code = {module: _hash(path) for module, path in sorted(_own_modules(experiment, settings))}
    whole = json.dumps({"results": RESULTS, "settings": settings, "code": code}, sort_keys=True)
    return hashlib.sha256(whole.encode()).hexdigest()[:20]


def _own_modules(experiment: Experiment, value: Any) -> Iterator[tuple[str, Path]]:
    """The user's own modules that settings name, as `module:attribute`."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _own_modules(experiment, item)
    elif isinstance(value, str) and experiment.path is not None:
        for module in re.findall(r"([\w.]+):\w", value):
            path = Path(experiment.path, *module.split(".")).with_suffix(".py")
            if path.is_file():
                yield module, path


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
