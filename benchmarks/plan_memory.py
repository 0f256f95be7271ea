"""Peak memory of a client as a plan says it, beside how much its process grows by.

    python benchmarks/plan_memory.py

For every model a process of its own builds a world of CIFAR-10, takes FedAvg's first request, and serves two batches of
it while another thread reads the resident size, every two milliseconds. The allocator is told to give freed memory
back at once. Results go to `benchmarks/results/plan_memory.json`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "plan_memory.json"
CASES = (("resnet8", 64), ("resnet20", 64), ("resnet20", 128), ("resnet56", 64), ("cnn", 128))
GIVE_BACK = {"MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def measure(model: str, batch: int) -> dict[str, object]:
    """Planned and measured bytes of one client's work."""
    import torch

    from catchment import Experiment
    from catchment.core.worker import WorkerCache
    from catchment.planning.walk import walk
    from catchment.runs.rehearsal import BATCHES, peak_memory
    from catchment.runtimes.torch import serve

    data = {"name": "cifar10", "clients": 2, "train": 600, "test": 50}
    optimizer = {"client": {"batch_size": batch}}
    experiment = Experiment.of(rounds=1, workers=1, data=data, models={"client": model}, optimizer=optimizer)
    world = experiment.build_world()
    (request,) = walk(experiment, world).firsts.values()
    module = world.client_architecture(0).build()
    module(torch.zeros(2, *world.data.dataset.shape)).sum().backward()  # what libraries take once
    before, most, done = resident(), [0], threading.Event()

    def look() -> None:
        while not done.wait(0.002):
            most[0] = max(most[0], resident())

    looking = threading.Thread(target=look)
    looking.start()
    serve(world, request, None, WorkerCache(batches=BATCHES))
    done.set()
    looking.join()
    return {"model": model, "batch": batch, "planned": peak_memory(world, request), "grown": most[0] - before}


def main() -> None:
    rows = []
    for model, batch in CASES:
        command = [sys.executable, __file__, model, str(batch)]
        began = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **GIVE_BACK})
        rows.append(json.loads(began.stdout))
        print(rows[-1])
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
    else:
        main()
