"""What the in-process engine costs beside a bare PyTorch loop that does the same arithmetic.

    python benchmarks/engine.py             # all parts, some minutes; use an otherwise idle machine
    python benchmarks/engine.py resnet8     # one part

Parts: `resnet8` (federated ResNet-8 on 32x32 images over a bare loop; repeats are interleaved, medians are reported),
`registered` (100 participants of 1,000, 100,000 and 1,000,000 registered clients), `states` (1,000 and 10,000 clients
that keep models of their own), `states_fedgkt` (the same for 20,000, of whom the server keeps logits) and `long`
(10,000 rounds). Each measurement is a fresh process. The jobs J1 and J2,
beside other simulators, are in `peers_fedavg.py`. Results go to `benchmarks/results`: those of `resnet8` to
`engine.json`, those of any other part to a file of its name.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
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

PER_CLIENT = 4  # digits of 8x8, drawn with replacement


def digits_for(clients: int):
    """A data set of four digits per client."""
    import numpy as np
    from sklearn.datasets import load_digits

    import catchment

    digits = load_digits()
    rows = np.random.default_rng(0).integers(0, len(digits.target), clients * PER_CLIENT)
    pixels = (digits.images * 15).astype(np.uint8)
    return catchment.Dataset.of(pixels[rows], digits.target[rows], pixels[:100], digits.target[:100])


def __getattr__(name: str):
    """`digits_1000` is the data set for 1,000 clients."""
    if name.startswith("digits_"):
        return lambda: digits_for(int(name.removeprefix("digits_")))
    raise AttributeError(name)


def tiny(clients: int, **settings):
    """An experiment in which 100 of some clients train an MLP of 2,410 parameters in each round."""
    import catchment

    table = {
        "rounds": 30, "workers": 1, "path": str(Path(__file__).parent),
        "participation": {"fraction": 100 / clients},
        "data": {"name": f"engine:digits_{clients}", "clients": clients}, "models": {"client": "mlp(32)"},
        "optimizer": {"client": {"name": "sgd", "lr": 0.1, "batch_size": 16}}, "evaluation": {"every": 10},
    }  # fmt: skip
    return catchment.Experiment.from_dict({**table, **settings})


def resident() -> float:
    """MB of memory that this process has now."""
    import psutil

    return psutil.Process().memory_info().rss / 2**20


def watched(experiment, directory: Path) -> dict:
    """A run, then its report: CPU seconds, memory and bytes of each part. Other processes do not count."""
    import resource

    import catchment
    from catchment.report import write_report
    from catchment.runs import checkpoint
    from catchment.runs.loop import run_rounds
    from catchment.runs.reading import RunFiles

    catchment.run(catchment.Experiment.from_dict({"rounds": 1, "models": {"client": "mlp(32)"}}))  # imports, once
    before, clock = resident(), time.process_time
    began = clock()
    world = experiment.build_world()
    start = {"start_s": clock() - began, "imports_mb": before, "start_mb": resident()}
    marks, memory, saves, save = [clock()], [], [], checkpoint.Checkpoints.save

    def timed(*arguments) -> None:
        began = clock()
        save(*arguments)
        saves.append(clock() - began)

    def observe(record: dict) -> None:
        marks.append(clock())
        memory.append(resident())

    checkpoint.Checkpoints.save = timed
    catchment.runs.directory.begin(experiment, directory)
    run_rounds(experiment, world, experiment.build_transport(world, directory), directory, observe)
    began = clock()
    report = write_report([RunFiles.read(directory)], directory)
    rounds = [b - a for a, b in itertools.pairwise(marks)]
    asked = {k for line in RunFiles.read(directory).ledger for e in line.entries for k in e.clients}
    sizes = {path.name: path.stat().st_size for path in directory.rglob("*") if path.is_file()}
    return {
        **start,
        "asked": len(asked),
        "round_s": statistics.median(rounds),
        "checkpoint_s": statistics.median(saves),
        "report_s": clock() - began,
        "report_mb": report.stat().st_size / 1e6,
        "checkpoints_mb": sum(size for name, size in sizes.items() if name.endswith(".safetensors")) / 1e6,
        "ledger_mb": sizes["ledger.jsonl"] / 1e6,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "memory_mb": memory,
        "rounds_s": rounds,
        "checkpoints_s": saves,
    }


def registered(clients: int) -> dict:
    """A run with 100 of `clients` clients per round."""
    with tempfile.TemporaryDirectory() as folder:
        return few(watched(tiny(clients, rounds=30), Path(folder) / "run"), 0)


# ---- states: what clients remember -------------------------------------------------------------------------------


def states(clients: int) -> dict:
    """A run of FedMD in which all of `clients` clients take part, 500 in each round, and keep model and optimiser."""
    settings = {
        "method": {"name": "fedmd", "transfer_epochs": 0, "alignment": 50},
        "rounds": clients // 500,
        "participation": {"fraction": 500 / clients},
        "models": {"client": "mlp(256)"},
        "optimizer": {"client": {"name": "adam", "lr": 0.001, "batch_size": 16}},
        "evaluation": {"every": 10**9, "clients": 100},
    }
    table = tiny(clients).to_dict()["data"]
    with tempfile.TemporaryDirectory() as folder:
        return few(watched(tiny(clients, **settings, data={**table, "public": 0.02}), Path(folder) / "run"), 20)


def states_fedgkt(clients: int) -> dict:
    """A run of FedGKT in which a twentieth of `clients` clients take part in each of 14 rounds: half of them in all."""
    settings = {
        "method": {"name": "fedgkt"},
        "rounds": 14,
        "participation": {"fraction": 0.05},
        "models": {"client": "cnn", "server": "resnet10"},
        "optimizer": {
            "client": {"name": "adam", "lr": 0.001, "batch_size": 16},
            "server": {"name": "sgd", "lr": 0.05, "batch_size": 256},
        },
        "evaluation": {"every": 10**9, "clients": 100},
    }
    with tempfile.TemporaryDirectory() as folder:
        return few(watched(tiny(clients, **settings), Path(folder) / "run"), 14)


# ---- long: ten thousand rounds -----------------------------------------------------------------------------------


def long(rounds: int) -> dict:
    """A run of many rounds, each of 10 of 1,000 clients, and each with its checkpoint."""
    settings = {"rounds": rounds, "participation": {"fraction": 0.01}, "evaluation": {"every": 100}}
    with tempfile.TemporaryDirectory() as folder:
        return few(watched(tiny(1000, **settings), Path(folder) / "run"), 100)


def few(numbers: dict, points: int) -> dict:
    """The same with so many points of each series, each the median of its part of the run."""
    found = {name: value for name, value in numbers.items() if not isinstance(value, list)}
    for name, values in numbers.items():
        if isinstance(values, list) and points:
            size = max(1, len(values) // points)
            found[name] = [round(statistics.median(values[i : i + size]), 5) for i in range(0, len(values), size)]
    return found


# ---- measuring ---------------------------------------------------------------------------------------------------

CASES = {
    "resnet8": {
        "bare, 1 thread": ("resnet8_bare", 1),
        "catchment, 1 worker": ("resnet8_engine", 1),
        "bare, 2 threads": ("resnet8_bare", 2),
        "catchment, 2 workers": ("resnet8_engine", 2),
    },
    "registered": {f"{clients:,}": ("registered", clients) for clients in (1_000, 100_000, 1_000_000)},
    "states": {f"{clients:,}": ("states", clients) for clients in (1_000, 10_000)},
    "states_fedgkt": {f"{clients:,}": ("states_fedgkt", clients) for clients in (20_000,)},
    "long": {f"{rounds:,}": ("long", rounds) for rounds in (10_000,)},
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


def part(name: str) -> dict:
    """Each case once: it is memory and sizes that count, and CPU seconds."""
    return {case: measure(*call) for case, call in CASES[name].items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    for name in arguments.parts:
        if name == "resnet8":
            found = {name: {"repeats": arguments.repeats, **part_resnet8(arguments.repeats)}}
        else:
            found = part(name)
        print(name, json.dumps(found), flush=True)
        file = RESULTS / f"{'engine' if name == 'resnet8' else name}.json"
        file.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
