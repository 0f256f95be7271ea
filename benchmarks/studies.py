"""How much faster a study ends with two processes than with one, on two cores.

    python benchmarks/studies.py

The same studies of four runs, with one and with two processes in turn, each time in an empty folder. With one process,
a run serves its clients on all cores and trains the server's model on one thread per core; with two, each run has a
core. Written to `results/studies.json`.
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
REPEATS = 2
STUDY = """
seeds = [0, 1, 2, 3]

[experiment]
rounds = {rounds}
data = {{ name = "digits", clients = 4, train = 800, test = 100 }}
evaluation.every = {rounds}

[[row]]
label = "row"
experiment.method.name = "{method}"
experiment.models = {models}
"""
STUDIES = {
    "FedAvg, ResNet-8": STUDY.format(rounds=20, method="fedavg", models='{ client = "resnet8" }'),
    "FedGKT, ResNet-8 and ResNet-19": STUDY.format(
        rounds=10, method="fedgkt", models='{ client = "resnet8", server = "resnet19" }'
    ),
}


def measure(study: str, jobs: int) -> float:
    """Seconds of the command, from its start to its table."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "study.toml"
        file.write_text(study)
        command = [sys.executable, "-m", "catchment", "study", str(file), "--jobs", str(jobs), "--out", folder]
        began = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - began


def main() -> None:
    measured = {}
    for name, study in STUDIES.items():
        pairs = [[measure(study, jobs) for jobs in (1, 2)] for _ in range(REPEATS)]
        measured[name] = {
            "seconds": {f"--jobs {jobs}": [round(pair[jobs - 1], 2) for pair in pairs] for jobs in (1, 2)},
            "times_faster": round(statistics.median(one / two for one, two in pairs), 2),
        }
        print(name, json.dumps(measured[name], indent=2), flush=True)
        FILE.write_text(json.dumps({"cores": os.cpu_count(), "studies": measured}, indent=2) + "\n")


if __name__ == "__main__":
    main()
