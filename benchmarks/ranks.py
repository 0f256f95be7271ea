"""Ranks of torchrun beside one process, what a message between them costs, and a job on two machines.

    python benchmarks/ranks.py              # all but machines; use an otherwise idle machine
    sudo python benchmarks/ranks.py machines [--delay 5] [--rate 100]

Parts: `J1` (many tiny clients), `J2` (few small CNNs) and `FedGKT` (seconds and CPU seconds per round with one process
of 2 and 4 workers, and 2 and 4 ranks of one worker), `messages` (what a request to another rank takes beyond its work),
`steps` (training of a server's model that ranks share), `rows` (what a shared step sends to another rank), `machines`
(J2 on two machines, which are network namespaces with a line of this delay in ms and rate in Mbit/s between them; then
the line is cut). Every process has one PyTorch thread. Results go to `benchmarks/results/ranks.json`.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "ranks.json"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]

J1 = {
    "rounds": 6, "data": {"name": "ranks:digits", "clients": 1000}, "models": {"client": "mlp(32)"},
    "participation": {"fraction": 0.1}, "optimizer": {"client": {"name": "sgd", "lr": 0.1, "batch_size": 16}},
}  # fmt: skip
J2 = {
    "rounds": 4, "data": {"name": "ranks:images", "clients": 16}, "models": {"client": "resnet8"},
    "optimizer": {"client": {"name": "sgd", "lr": 0.1, "batch_size": 64}},
}  # fmt: skip
FEDGKT = {**J2, "method": {"name": "fedgkt"}, "models": {"client": "resnet8", "server": "half(1,1,1)"}}
CENTRALIZED = {
    **J2, "method": {"name": "centralized"}, "models": {"client": "resnet20"},
    "optimizer": {"client": {"name": "sgd", "lr": 0.1, "batch_size": 128}}, "spread": True,
}  # fmt: skip
JOBS = {"J1": J1, "J2": J2, "FedGKT": FEDGKT}


def digits():
    """16 digits for each of 1,000 clients, drawn with replacement."""
    from engine import digits_for

    return digits_for(1000)


def images():
    """64 random images for each of 16 clients: speed does not depend on what they show."""
    import numpy as np

    import catchment

    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (16 * 64 + 1, 3, 32, 32), dtype=np.uint8)
    labels = np.concatenate([np.arange(10), random.integers(0, 10, len(pixels) - 10)])
    return catchment.Dataset.of(pixels[:-1], labels[:-1], pixels[-1:], labels[-1:], classes=[str(c) for c in range(10)])


def experiment(job: dict[str, Any], workers: int = 1, **more: Any):
    import catchment

    fixed = {"workers": workers, "path": str(HERE), "evaluation": {"every": 10**9}}
    return catchment.Experiment.from_dict({**job, **fixed, **more})


# ---- jobs and steps: whole runs by the command -------------------------------------------------------------------


def run(job: dict[str, Any], ranks: int = 1, workers: int = 1, **more: Any) -> dict[str, Any]:
    """Seconds of a round after the first, CPU seconds of all processes per round, and the result's fingerprint."""
    with tempfile.TemporaryDirectory() as folder:
        spent, rounds = [], [1, job["rounds"]]
        for count in rounds:  # the difference is without start-up
            file, out = Path(folder, f"{count}.toml"), Path(folder, f"{count}")
            file.write_text(experiment(job, workers * ranks, rounds=count, **more).to_toml())
            command = ["-m", "catchment", "run", str(file), "--out", str(out)]
            start = [sys.executable] if ranks == 1 else [*TORCHRUN, "--nproc-per-node", str(ranks)]
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([*start, *command], check=True, capture_output=True, env=variables())
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        records = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
        result = json.loads((out / "result.json").read_text())
    return {
        "round_s": statistics.median(record["seconds"] for record in records[1:]),
        "cpu_s": (spent[1] - spent[0]) / (rounds[1] - rounds[0]),
        "fingerprint": result["fingerprint"],
    }


def variables() -> dict[str, str]:
    return os.environ | {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }


def repeated(cases: dict[str, Any], repeats: int) -> dict[str, Any]:
    """Each case some times, interleaved: medians, and whether all of a case ended alike."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in cases}
    for _, (name, case) in itertools.product(range(repeats), cases.items()):
        found[name].append(case())
        print(name, found[name][-1], flush=True)
    return {
        name: {
            "round_s": statistics.median(one["round_s"] for one in runs),
            "cpu_s": statistics.median(one["cpu_s"] for one in runs),
            "fingerprints": sorted({one["fingerprint"] for one in runs}),
        }
        for name, runs in found.items()
    }


def in_job(job: dict[str, Any], repeats: int) -> dict[str, Any]:
    cases = {}
    for count in (2, 4):
        cases[f"1 process, {count} workers"] = lambda count=count: run(job, workers=count)
        cases[f"{count} ranks"] = lambda count=count: run(job, ranks=count)
    measured = repeated(cases, repeats)
    assert len({str(case["fingerprints"]) for case in measured.values()}) == 1, "results differ"
    return measured


def steps(repeats: int) -> dict[str, Any]:
    """Rounds of 8 steps of a ResNet-20, a batch of 128."""

    def two_threads() -> dict[str, Any]:
        os.environ["OMP_NUM_THREADS"] = "2"
        try:
            return run(CENTRALIZED)
        finally:
            del os.environ["OMP_NUM_THREADS"]

    return repeated(
        {
            "1 process, 1 thread": lambda: run(CENTRALIZED),
            "1 process, 2 threads": two_threads,
            "2 ranks that share steps": lambda: run(CENTRALIZED, ranks=2),
        },
        repeats,
    )


# ---- messages ----------------------------------------------------------------------------------------------------


def messages() -> dict[str, Any]:
    return on_two_ranks("one-message")


def on_two_ranks(part: str) -> dict[str, Any]:
    """What a part of `PARTS_OF_RANKS` finds, on rank 0."""
    command = [*TORCHRUN, "--nproc-per-node", "2", __file__, part]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=variables())
    return json.loads(done.stdout.splitlines()[-1])


def one_message() -> dict[str, Any]:
    """A run of every job on two ranks: what requests to the other took beyond the work on them."""
    from catchment import launch
    from catchment.client.seats import Seat
    from catchment.simulation import work_queue
    from catchment.simulation.ranks import Ranks

    work_queue.SHORT = 0.0  # also short work goes to the other rank
    answer, taken = Seat.answer, []

    def timed(seat, request, versions):
        began = time.perf_counter()
        response = answer(seat, request, versions)
        beyond = time.perf_counter() - began - response.seconds
        taken.append((1000 * beyond, request.size() + response.size()))
        return response

    Seat.answer = timed
    measured = {}
    with contextlib.closing(Ranks()) as ranks:
        for title, job in JOBS.items():
            taken.clear()
            launch.run(experiment(job, 2, rounds=3), ranks=ranks)
            milliseconds, sizes = zip(*taken)
            measured[title] = {
                "messages": len(taken),
                "ms": statistics.median(milliseconds),
                "least_ms": min(milliseconds),
                "bytes": statistics.median(sizes),
            }
    return measured


def one_step() -> dict[str, Any]:
    """A run of FedGKT on two ranks that share steps: what rank 0 sends in a step, and its CPU time for the rows."""
    import torch.distributed as dist

    from catchment import launch
    from catchment.learning import spread
    from catchment.methods.fedgkt import FedGKT
    from catchment.simulation.ranks import Ranks

    hand_out, broadcast, train = spread._hand_out, dist.broadcast, FedGKT.train_server
    sent, seconds = {"rows": 0, "gradients": 0, "weights": 0}, {"rows": 0.0, "training": 0.0}
    steps = 0

    def of_parts(parts):
        rows, began = parts[0].ndim == 4, time.process_time()
        hand_out(parts)
        sent["rows" if rows else "gradients"] += sum(part.nbytes for part in parts)
        seconds["rows"] += rows * (time.process_time() - began)

    def of_weights(flat, source):
        nonlocal steps
        broadcast(flat, source)
        sent["weights"] += flat.nbytes
        steps += 1

    def of_training(*arguments):
        began = time.process_time()
        train(*arguments)
        seconds["training"] += time.process_time() - began

    with contextlib.closing(Ranks()) as ranks:
        spread._hand_out, dist.broadcast, FedGKT.train_server = of_parts, of_weights, of_training
        launch.run(experiment(FEDGKT, 2, rounds=2, spread=True), ranks=ranks)
    return {
        "steps": steps,
        "bytes": {name: nbytes / steps for name, nbytes in sent.items()},
        "cpu_ms": {name: 1000 * spent / steps for name, spent in seconds.items()},
    }


PARTS_OF_RANKS = {"one-message": one_message, "one-step": one_step}


def in_a_rank(part: str) -> None:
    from catchment import launch
    from catchment.process import this_rank
    from catchment.simulation.ranks import follow

    if this_rank() == 0:
        print(json.dumps(PARTS_OF_RANKS[part]()))
    else:
        follow(launch.world_of_rank)


# ---- machines ----------------------------------------------------------------------------------------------------


def machines(delay: float, rate: float) -> dict[str, Any]:
    """J2 on two machines, then once more until the line between them is cut."""
    from namespaces import Line, namespace

    settings = argparse.Namespace(delay=delay, loss=0.0, rate=rate)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        hosts = [stack.enter_context(namespace(f"catchment-rank{number}")) for number in range(2)]
        line = Line(*hosts, 0, settings)
        threading.Thread(target=line.carry, daemon=True).start()
        file = Path(folder, "x.toml")
        file.write_text(experiment(J2).to_toml())

        def start(number: int, out: str) -> subprocess.Popen[str]:
            """Rank `number`, on its own machine."""
            place = ["--nnodes", "2", "--node-rank", str(number), "--nproc-per-node", "1"]
            place += ["--master-addr", "10.77.0.1", "--master-port", "29500"]
            command = [*TORCHRUN, *place, "-m", "catchment", "run", str(file), "--out", str(Path(folder, out))]
            env = variables() | {"GLOO_SOCKET_IFNAME": ("line0", "line")[number]}
            words = ["ip", "netns", "exec", hosts[number], *command]
            return subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

        ranks = [start(number, "whole") for number in range(2)]
        for rank in ranks:
            _, errors = rank.communicate()
            if rank.returncode:
                raise SystemExit(errors)
        result = json.loads(Path(folder, "whole", "result.json").read_text())
        carried = line.carried
        ranks = [start(number, "cut") for number in range(2)]
        records = Path(folder, "cut", "rounds.jsonl")
        while not records.exists() or not records.read_text():
            time.sleep(0.05)
        line.cut = True
        began = time.monotonic()
        _, errors = ranks[0].communicate()
        noticed = time.monotonic() - began
        ranks[1].kill()
        ranks[1].communicate()
    alone = run(J2)
    return {
        "delay_ms": delay,
        "rate_mbit": rate,
        "seconds": result["seconds"],
        "bytes_of_the_federation": sum(result["bytes"].values()),
        "bytes_on_the_line": carried,
        "as_one_process": result["fingerprint"] == alone["fingerprint"],
        "cut_noticed_after_s": noticed,
        "sentence": next(word for word in errors.splitlines() if word.startswith("error: ")).partition(";")[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["J1", "J2", "FedGKT", "messages", "steps", "rows"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--delay", type=float, default=5.0)
    parser.add_argument("--rate", type=float, default=100.0)
    arguments = parser.parse_args()
    if arguments.parts[0] in PARTS_OF_RANKS:
        in_a_rank(arguments.parts[0])
        return
    parts = {
        **{title: lambda title=title: in_job(JOBS[title], arguments.repeats) for title in JOBS},
        "messages": messages,
        "steps": lambda: steps(arguments.repeats),
        "rows": lambda: on_two_ranks("one-step"),
        "machines": lambda: machines(arguments.delay, arguments.rate),
    }
    measured = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for part in arguments.parts:
        began = os.getloadavg()[0]
        found = parts[part]()
        measured[part] = {**found, "load_before": began, "load_after": os.getloadavg()[0]}
        RESULTS.write_text(json.dumps(measured, indent=1) + "\n")
    print(json.dumps(measured, indent=1))


if __name__ == "__main__":
    main()
