"""How much faster a study ends with two processes than with one, on two cores.

    python benchmarks/studies.py

The same study of six small runs, with one and with two processes in turn, each time in an empty folder. Written to
`results/studies.json`.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FILE = Path(__file__).parent / "results" / "studies.json"
REPEATS = 3
STUDY = """
title = "FedAvg with ResNet-8"
seeds = [0, 1, 2, 3, 4, 5]

[experiment]
rounds = 4
data = { name = "digits", clients = 8 }
models.client = "resnet8"

[[row]]
label = "FedAvg"
"""


def measure(jobs: int) -> float:
    """Seconds of the command, from its start to its table."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "study.toml"
        file.write_text(STUDY)
        command = [sys.executable, "-m", "catchment", "study", str(file), "--jobs", str(jobs), "--out", folder]
        began = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - began


def main() -> None:
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(REPEATS):
        for jobs, found in seconds.items():
            found.append(measure(jobs))
    medians = {jobs: statistics.median(found) for jobs, found in seconds.items()}
    measured = {
        "cores": os.cpu_count(),
        "runs": 6,
        "seconds": {f"--jobs {jobs}": [round(value, 2) for value in found] for jobs, found in seconds.items()},
        "times_faster": round(medians[1] / medians[2], 2),
    }
    FILE.write_text(json.dumps(measured, indent=2) + "\n")
    print(json.dumps(measured, indent=2))


if __name__ == "__main__":
    main()
