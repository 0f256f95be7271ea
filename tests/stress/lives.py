"""Runs that are killed and resumed: which ones, and one life of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from worlds import PHONES, TROUBLE, experiment

import catchment

CASES: dict[str, dict[str, Any]] = {
    "fedavg": {"rounds": 20},
    "standalone": {"rounds": 20, "checkpoint": {"every": 3}, **TROUBLE},
    "split learning": {"rounds": 8, **TROUBLE},
    "fedgkt, asynchronous": {"rounds": 12, **PHONES},
    "fedgkt, coded": {"rounds": 12, **TROUBLE},
    "oneshot, coded": {"rounds": 12, **TROUBLE},
    "fedgems": {"rounds": 12, **TROUBLE},
    "fedmd": {"rounds": 14, **PHONES},
    "dsfl": {"rounds": 14, **TROUBLE},
    "feddf, two architectures": {"rounds": 14},
    "fedgkt, poisoned": {"rounds": 12, **TROUBLE},
    "splitfed, label-flip": {"rounds": 8},
    "fedzkt": {"rounds": 16, "workers": 2, **TROUBLE},
    "fedkgf, modules alone, coded": {"rounds": 15, **TROUBLE},
    "dgc": {"rounds": 30, **TROUBLE},
    "fedcom": {"rounds": 40, **PHONES},
    "fedcams": {"rounds": 30, "participation": {"fraction": 0.4}},
    "fedpm": {"rounds": 30, **PHONES},
    "centralized": {"rounds": 20},
}


def live(name: str, settings: dict[str, Any], out: str | Path) -> None:
    """Begin a run, or go on with it, to its end."""
    torch.set_num_threads(1)
    if (Path(out) / "experiment.toml").exists():
        catchment.resume(out)
    else:
        catchment.run(experiment(name, few=True, **settings), out=out)
