"""What a client's turn does beyond a bare loop, in the job J1 of `peers_fedavg.py`, and what each part of it costs.

    python benchmarks/turn.py

Each row is a process of its own, in turn; the rows "without ..." leave one part out, which only a benchmark may do. It
measures CPU time of one thread, and takes the least of all rounds, which hardly moves with what else the machine does.
Results go to `benchmarks/results/turn.json`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import patch

RESULTS = Path(__file__).parent / "results" / "turn.json"
ROUNDS = 60
REPEATS = 3
BARE, CATCHMENT = "bare", "catchment"
PARTS = {  # the row, and what stands in for the part
    "without the check of replies": ("catchment.core.expectations.Expectations.misfit", lambda *_: ""),
    "without counting bytes up": ("catchment.core.fleet.Fleet._book", lambda *_: None),
    "without copies of replies": ("catchment.core.worker.WorkerCache.settle", lambda _, tensor: tensor.detach()),
    "without a shuffle": ("catchment.core.client.Client.batches", None),
}


def in_order(client, *, epochs: int):
    """`Client.batches` without drawing an order."""
    for epoch in range(epochs):
        yield from client._epoch(client.train, epoch, None, augment=True)


def measure(row: str) -> float:
    """The least CPU microseconds per turn of all rounds."""
    import peers_fedavg
    import torch

    class Clock(peers_fedavg.Clock):
        def ready(self) -> None:
            self.begin = time.process_time()

        def round_end(self) -> None:
            self.ends.append(time.process_time())

    torch.set_num_threads(1)
    job = peers_fedavg.get_job("J1")
    job.cohorts = list(itertools.islice(itertools.cycle(job.cohorts), ROUNDS))
    job.rounds = ROUNDS
    clock = Clock()
    if row in PARTS:
        target, instead = PARTS[row]
        with patch(target, instead or in_order):
            peers_fedavg.SYSTEMS[CATCHMENT].fn(job, clock)
    else:
        peers_fedavg.SYSTEMS[row].fn(job, clock)
    rounds = [b - a for a, b in itertools.pairwise([clock.begin, *clock.ends])]
    return min(rounds[3:]) / job.cohort * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description="What a client's turn does beyond a bare loop.")
    parser.add_argument("--row", help="measure one row in this process, and print it")
    row = parser.parse_args().row
    if row is not None:
        print(measure(row))
        return
    least: dict[str, float] = {}
    for repeat, name in itertools.product(range(REPEATS), (BARE, CATCHMENT, *PARTS)):
        ran = subprocess.run([sys.executable, __file__, "--row", name], capture_output=True, text=True, check=True)
        least[name] = min(least.get(name, float("inf")), float(ran.stdout.split()[-1]))
        print(f"{repeat + 1} {name}: {ran.stdout.split()[-1]}", flush=True)
    RESULTS.write_text(json.dumps({"cpu_us_per_turn": least, "rounds": ROUNDS, "repeats": REPEATS}, indent=1) + "\n")


if __name__ == "__main__":
    main()
