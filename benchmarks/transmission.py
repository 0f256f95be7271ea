"""What a round of each method sends at the scale of Fed-KGF's Table 1: ResNet-18 for CIFAR-10, 10 clients.

    python benchmarks/transmission.py                # all methods
    python benchmarks/transmission.py FedPM          # this one alone, beside what is there

Every method does one round of the paper's experiment (`experiments/fedkgf/table1`) in which clients have two images
each: bytes are those of encoded messages as the ledger books them, and time is that of the virtual clock over a link of
10 Mbit/s. DGC is taken after its warm-up. Written to `results/transmission.json`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import catchment
from catchment.checkpoint import write_atomically

ROOT = Path(__file__).parents[1]
FILE = ROOT / "benchmarks" / "results" / "transmission.json"
LINK = 10  # Mbit/s
FEW = {"rounds": 1, "workers": 1, "data.train": 20, "data.test": 10, "devices.profile": f"{LINK}mbit"}
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "Fed-KGF": ("fedkgf", {}),
    "Fed-KGF without module upload": ("fedkgf-averaged", {}),
    "FedCAMS, scaled sign": ("fedcams", {}),
    "FedCAMS, top-k": ("fedcams-topk", {}),
    "SmartIdx": ("smartidx", {}),
    "DGC": ("dgc", {"method.warmup": 0}),
    "FedPM": ("fedpm", {}),
    "FedCOM": ("fedcom", {}),
    "FedAvg": ("fedavg", {}),
}
PAPER = {
    "Fed-KGF": 8.46, "Fed-KGF without module upload": 13.20, "FedCAMS, scaled sign": 13.32, "SmartIdx": 20.47,
    "DGC": 36.16, "FedPM": 91.55, "FedCOM": 144.65, "FedAvg": 289.31,
}  # fmt: skip  # MB a round, as it prints them


def measure(row: str) -> dict[str, Any]:
    """One round of a method."""
    name, changes = ROWS[row]
    file = ROOT / "experiments" / "fedkgf" / "table1" / f"cifar10-iid-{name}.toml"
    result = catchment.run(catchment.Experiment.load(file, {**FEW, **changes}))
    (model,) = result["costs"]["clients"].values()
    return {
        "parameters": model["parameters"],
        "up": result["bytes"]["up"],
        "down": result["bytes"]["down"],
        "seconds": result["virtual_seconds"],
        "paper_mb": PAPER.get(row),
    }


def main() -> None:
    """Measure, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("rows", nargs="*", choices=[*ROWS, []], help="all if none is given")
    chosen = parser.parse_args().rows or list(ROWS)
    rows = json.loads(FILE.read_text())["rows"] if FILE.exists() else {}
    for row in chosen:
        rows[row] = measure(row)
        print(row, rows[row], flush=True)
    rows = {row: rows[row] for row in ROWS if row in rows}
    write_atomically(FILE, (json.dumps({"clients": 10, "link": LINK, "rows": rows}, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
