"""What makes two runs the same run: everything that can change a result, and nothing else."""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from catchment.config.experiment import ENDED, Experiment

RESULTS = 2  # raised with every change that moves results; the changelog lists them
_LATER: dict[
    str, dict[str, Any]
] = {  # settings that are younger than this version, with what was done before them: runs stay known
    "method": {
        "extractor_rate": 1.0,
        "own_stems": False,
        "selection": "round",
        "students": "dropping",
    },
    "attack": {"signs": "numbers"},
}
_ENDED_OF_METHODS: dict[str, dict[str, Any]] = {  # options that methods had, with what the method does now
    "dgc": {"clip": None},
    "fedgkt": {
        "answers": "training",
        "augment_features": True,
        "batches": "mixed",
        "edge": "head",
        "mirror": False,
        "quota": False,
        "rarity": 0.0,
        "shift": 0,
        "skip_below": 0.0,
        "squared_temperature": True,
        "stem_epochs": 0,
        "upload_every": 1,
    },
}
_WITHOUT_EFFECT = ("name", "workers", "strict", "path", "checkpoint", "flower")


def digest(experiment: Experiment) -> str:
    """The name of a run among all runs: its settings with all defaults, its own code, and the version of results."""
    settings = experiment.to_dict() | ENDED  # runs stay known when a setting ends
    if not settings["data_parallel"]:  # younger than this version
        del settings["data_parallel"]
    for key in _WITHOUT_EFFECT:
        settings.pop(key, None)
    settings["method"] |= _ENDED_OF_METHODS.get(settings["method"]["name"], {})
    for table, options in _LATER.items():
        settings[table] = {k: v for k, v in settings[table].items() if k not in options or v != options[k]}
    settings["evaluation"].pop("headline", None)
    settings["data"].pop("root", None)
    settings["data"].pop("download", None)
    code = {module: _hash(path) for module, path in sorted(_own_code(experiment, settings).items())}
    whole = json.dumps({"results": RESULTS, "settings": settings, "code": code}, sort_keys=True)
    return hashlib.sha256(whole.encode()).hexdigest()[:20]


def _own_code(experiment: Experiment, settings: Any) -> dict[str, Path]:
    """The files of the user's own modules that settings name, and of those beside them that these import."""
    found: dict[str, Path] = {}
    waiting = [] if experiment.path is None else list(_named(settings))
    while waiting:
        module = waiting.pop()
        place = Path(experiment.path or "", *module.split("."))
        path = next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)
        if path is not None and module not in found:
            found[module] = path
            waiting += _imported(path, module)
    return found


def _named(value: Any) -> Iterator[str]:
    """The modules that settings name, as `module:attribute`."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _named(item)
    elif isinstance(value, str):
        yield from re.findall(r"([\w.]+):\w", value)


def _imported(path: Path, module: str) -> Iterator[str]:
    """What may be modules among the names that a file imports."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return  # importing it will say so
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            begin = package[: len(package) - node.level + 1] if node.level else []
            whole = ".".join([*begin, *([node.module] if node.module else [])])
            yield from filter(None, (whole, *(f"{whole}.{alias.name}".lstrip(".") for alias in node.names)))


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
