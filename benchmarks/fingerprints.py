"""Fingerprints of many small runs, to see whether a change moves results.

    python benchmarks/fingerprints.py --write          # before the change: record them in runs/fingerprints.json
    python benchmarks/fingerprints.py                  # after it: compare, and print what moved
    python benchmarks/fingerprints.py --only fedgkt    # the worlds whose name has this in it
    python benchmarks/fingerprints.py --flower         # over Flower too, which takes some minutes more

Every world of the conformance suite (all methods, codecs, attacks, defences, asynchronous clients) runs without
trouble, with faults on slow devices, and stopped after its first round and resumed. Each row has the fingerprint of the
result, the bytes that crossed, and what was lost. Another kind of processor rounds otherwise, so both are done on one
machine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))
os.environ["OMP_NUM_THREADS"] = "1"  # also for processes of Flower

import torch
import worlds

import catchment

FILE = Path(__file__).parents[1] / "runs" / "fingerprints.json"
UNORDERED = [name for name in worlds.METHODS if "asynchronous" in name]  # who is faster decides


class Stopped(Exception):
    """Raised to stop a run."""


def plain(name: str, out: Path) -> dict[str, Any]:
    return catchment.run(worlds.experiment(name), out)


def trouble(name: str, out: Path) -> dict[str, Any]:
    return catchment.run(worlds.experiment(name, **worlds.TROUBLE), out)


def resumed(name: str, out: Path) -> dict[str, Any]:
    def stop(record: dict[str, Any]) -> None:
        raise Stopped

    try:
        catchment.run(worlds.experiment(name), out, observe=stop)
    except Stopped:
        return catchment.resume(out)
    raise AssertionError("the run was not stopped")


def flower(name: str, out: Path) -> dict[str, Any]:
    return catchment.run(worlds.experiment(name, engine="flower"), out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--flower", action="store_true")
    parser.add_argument("--file", type=Path, default=FILE)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    kinds = [plain, trouble, resumed, *([flower] if chosen.flower else [])]
    known = json.loads(chosen.file.read_text()) if chosen.file.exists() else {}
    if not known and not chosen.write:
        parser.error(f"there is no {chosen.file} to compare with; --write records it before a change")
    moved = 0
    for name in worlds.METHODS:
        if chosen.only not in name:
            continue
        for kind in kinds:
            if kind is flower and name in UNORDERED:
                continue
            key = f"{name} | {kind.__name__}"
            with tempfile.TemporaryDirectory() as folder:
                result = kind(name, Path(folder) / "run")
            row = {field: result[field] for field in ("fingerprint", "lost", "failed", "refused", "late")}
            row["bytes"] = result["bytes"]
            if chosen.write:
                known[key] = row
            elif row != known.get(key):
                moved += 1
                print(f"moved: {key}: {known.get(key)} -> {row}", flush=True)
    if chosen.write:
        chosen.file.parent.mkdir(parents=True, exist_ok=True)
        chosen.file.write_text(json.dumps(known, indent=1) + "\n")
        print(f"{len(known)} fingerprints in {chosen.file}")
    else:
        print(f"{moved} moved")
        sys.exit(moved > 0)


if __name__ == "__main__":
    main()
