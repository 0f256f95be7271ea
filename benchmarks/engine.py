"""What the in-process engine costs beside a bare PyTorch loop that does the same arithmetic.

    python benchmarks/engine.py             # all parts, some minutes; use an otherwise idle machine
    python benchmarks/engine.py resnet8     # one part

Parts: `resnet8` (federated ResNet-8 on 32x32 images over a bare loop), `registered` (10,000 registered clients over
100, with 100 participating). Each measurement is a fresh process, repeats are interleaved, medians are reported. The
jobs J1 and J2, beside other simulators, are in `peers_fedavg.py`. Results go to `benchmarks/results/engine.json`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "engine.json"
ROUNDS = 4
CLIENTS = 8
SAMPLES = 256  # a client
BATCH = 64


# ---- resnet8: the same arithmetic in a plain loop ----------------------------------------------------------------


def images(seed: int = 0):
    """A data set of random images: speed does not depend on what they show."""
    import numpy as np

    import catchment

    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (CLIENTS * SAMPLES + 1, 3, 32, 32), dtype=np.uint8)
    labels = np.concatenate([np.arange(10), random.integers(0, 10, CLIENTS * SAMPLES - 9)])
    return catchment.Dataset.of(pixels[:-1], labels[:-1], pixels[-1:], labels[-1:], classes=[str(c) for c in range(10)])


def resnet8_experiment(workers: int):
    import catchment

    return catchment.Experiment.from_dict(
        {
            "rounds": ROUNDS, "workers": workers, "path": str(Path(__file__).parent),
            "data": {"name": "engine:images", "clients": CLIENTS}, "models": {"client": "resnet8"},
            "optimizer": {"client": {"name": "sgd", "lr": 0.1, "batch_size": BATCH}}, "evaluation": {"every": 10**9},
        }
    )  # fmt: skip


def resnet8_engine(workers: int) -> list[float]:
    """Seconds of each round through the engine."""
    import catchment

    marks = [time.perf_counter()]
    catchment.run(resnet8_experiment(workers), observe=lambda record: marks.append(time.perf_counter()))
    return [b - a for a, b in itertools.pairwise(marks)]


def resnet8_bare(threads: int) -> list[float]:
    """Seconds of each round in a loop over the clients: one module, load, train, add up, divide."""
    import torch
    import torch.nn.functional as F

    world = resnet8_experiment(1).build_world()
    torch.set_num_threads(threads)
    model = world.client_architecture(0).build()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    generator = torch.Generator().manual_seed(0)
    seconds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        total: dict = {}
        for client in range(CLIENTS):
            model.load_state_dict(weights)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
            samples = world.private(client)
            order = samples.index[torch.randperm(len(samples), generator=generator)]
            for rows in order.split(BATCH):
                batch = world.normalise(samples.images[rows]).contiguous(memory_format=torch.channels_last)
                optimizer.zero_grad()
                F.cross_entropy(model(batch), samples.labels[rows]).backward()
                optimizer.step()
            for name, tensor in model.state_dict().items():
                total[name] = total[name] + tensor if name in total else tensor.clone()
        weights = {name: (t / CLIENTS).to(t.dtype) for name, t in total.items()}
        seconds.append(time.perf_counter() - began)
    return seconds


# ---- registered: clients that do not take part cost nothing ------------------------------------------------------


def digits_for(clients: int):
    """16 digits a client, drawn with replacement."""
    import numpy as np
    from sklearn.datasets import load_digits

    import catchment

    digits = load_digits()
    rows = np.random.default_rng(0).integers(0, len(digits.target), clients * 16)
    pixels = (digits.images * 15).astype(np.uint8)
    return catchment.Dataset.of(pixels[rows], digits.target[rows], pixels[:100], digits.target[:100])


def digits_100():
    return digits_for(100)


def digits_10000():
    return digits_for(10_000)


def registered(clients: int) -> dict:
    """A whole run with 100 of `clients` clients per round: its seconds, from building the world on, and peak memory."""
    import resource

    import catchment

    experiment = catchment.Experiment.from_dict(
        {
            "rounds": 30, "workers": 2, "path": str(Path(__file__).parent),
            "participation": {"fraction": 100 / clients},
            "data": {"name": f"engine:digits_{clients}", "clients": clients}, "models": {"client": "mlp(32)"},
            "optimizer": {"client": {"name": "sgd", "lr": 0.1, "batch_size": 16}}, "evaluation": {"every": 10**9},
        }
    )  # fmt: skip
    catchment.run(catchment.Experiment.from_dict({"rounds": 1, "models": {"client": "mlp(32)"}}))  # imports, once
    began = time.perf_counter()
    marks = []
    catchment.run(experiment, observe=lambda record: marks.append(time.perf_counter()))
    return {
        "run_s": time.perf_counter() - began,
        "round_s": statistics.median(b - a for a, b in itertools.pairwise(marks)),
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


# ---- measuring ---------------------------------------------------------------------------------------------------

CASES = {
    "resnet8": {
        "bare, 1 thread": ("resnet8_bare", 1),
        "catchment, 1 worker": ("resnet8_engine", 1),
        "bare, 2 threads": ("resnet8_bare", 2),
        "catchment, 2 workers": ("resnet8_engine", 2),
    },
    "registered": {"100 registered": ("registered", 100), "10,000 registered": ("registered", 10_000)},
}


def measure(function: str, argument: int):
    """One call in a fresh process, which is set up as the command does it."""
    call = f"engine.{function}({argument})"
    code = f"from catchment import process; process.set_up(); import json, engine; print(json.dumps({call}))"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    if function == "resnet8_bare" and argument == 1:
        env["OMP_NUM_THREADS"] = "1"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def part_resnet8(repeats: int) -> dict:
    runs: dict = {name: [] for name in CASES["resnet8"]}
    for _ in range(repeats):
        for name, call in CASES["resnet8"].items():
            runs[name].append(statistics.median(measure(*call)[1:]))  # the first round imports and rehearses
    rounds = {name: statistics.median(values) for name, values in runs.items()}
    # Neighbours in time are compared with each other: the machine drifts.
    one, two = (
        statistics.median(a / b for a, b in zip(runs[engine], runs[bare]))
        for engine, bare in (("catchment, 1 worker", "bare, 1 thread"), ("catchment, 2 workers", "bare, 2 threads"))
    )
    return {"round_s": rounds, "over_bare": {"1 worker, 1 thread": one, "2 workers, 2 threads": two}, "runs": runs}


def part_registered(repeats: int) -> dict:
    runs: dict = {name: [] for name in CASES["registered"]}
    for _ in range(repeats):
        for name, call in CASES["registered"].items():
            runs[name].append(measure(*call))
    few, many = runs["100 registered"], runs["10,000 registered"]
    ratios = {key: statistics.median(b[key] / a[key] for a, b in zip(few, many)) for key in few[0]}
    return {"ratio": ratios, "runs": runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    report = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for part in arguments.parts:
        report[part] = {"repeats": arguments.repeats, **globals()[f"part_{part}"](arguments.repeats)}
        print(part, json.dumps({k: v for k, v in report[part].items() if k != "runs"}, indent=2), flush=True)
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
