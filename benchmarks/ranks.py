"""Ranks of torchrun beside one process, what a message between them costs, and a job on two machines.

    python benchmarks/ranks.py              # all but machines; use an otherwise idle machine
    sudo python benchmarks/ranks.py machines [--delay 5] [--rate 100]

Parts: `J1` (many tiny clients), `J2` (few small CNNs) and `FedGKT` (seconds and CPU seconds per round with one process
of 2 and 4 workers, and 2 and 4 ranks of one worker), `messages` (what a request to another rank takes beyond its work),
`steps` (of a server's model, by one process and shared by two), `machines` (J2, and a model that both train, on two
machines, which are network namespaces with a line of this delay in ms and rate in Mbit/s between them; then the line is
cut). Every process has one PyTorch thread. Results go to `benchmarks/results/ranks.json`.
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
from collections.abc import Iterator
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
STEPS, SKIPPED, ROWS = 5, 2, 128  # of a fit, of which the first are not timed; and the samples of a batch
CASES = (("1 process, 1 thread", 1, False), ("1 process, 2 threads", 2, False), ("2 ranks of 1 thread", 1, True))
CENTRALIZED = {**J2, "method": {"name": "centralized"}, "data_parallel": True}
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
        "OMP_WAIT_POLICY": "PASSIVE",  # as the command sets it for itself
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


# ---- steps: inside one job, one case after the other ------------------------------------------------------------


def steps(repeats: int) -> dict[str, Any]:
    return on_two_ranks("shared-steps", "--repeats", str(repeats))


def shared_steps(repeats: int) -> dict[str, Any]:
    """A job of two ranks whose server trains halves on features, alone with one and two threads, and with the other.

    The cases take turns, so that other work on the machine slows them alike; the least time of a step is what it takes
    when it is let alone.
    """
    import torch

    from catchment.core.server import Server
    from catchment.data import Batch
    from catchment.learning.parallel import Together, sharing
    from catchment.learning.steps import PerSample
    from catchment.methods.fedgkt import loss
    from catchment.simulation.ranks import Ranks

    draw, other, measured = torch.Generator().manual_seed(0), other_rank(), {}
    teacher = PerSample(torch.randn(ROWS, 10, generator=draw))
    features = torch.randn(ROWS, 16, 32, 32, generator=draw).contiguous(memory_format=torch.channels_last)
    seen = torch.zeros(ROWS, 10)

    def keep(ids: torch.Tensor, outputs: torch.Tensor) -> None:
        seen[ids] = outputs

    batch = Batch(features, torch.arange(ROWS) % 10, torch.arange(ROWS))
    with contextlib.closing(Ranks()) as ranks:
        for half, precision in (("resnet19", "float32"), ("resnet55", "float32"), ("resnet55", "bfloat16")):
            job = experiment({**FEDGKT, "models": {"client": "resnet8", "server": half}}, precision=precision)
            with ranks.serving(job.to_toml(), 0, 1, data_parallel=False):
                server = Server(job.build_world())
                model = server.model()
                optimizer = server.optimizer(model)
                found: dict[str, list[dict[str, Any]]] = {}
                for _, (case, threads, together) in itertools.product(range(repeats), CASES):
                    times: list[float] = []

                    def timed(times: list[float] = times) -> Iterator[Batch]:
                        for _ in range(STEPS):
                            times.append(time.perf_counter())
                            yield batch
                        times.append(time.perf_counter())

                    torch.set_num_threads(threads)
                    before, began = cpu_seconds(other), time.perf_counter()
                    with sharing(Together(ranks.order)) if together else contextlib.nullcontext():
                        server.fit(
                            loss, model, optimizer, timed(), teacher=teacher, alpha=1.0, temperature=3.0, observe=keep
                        )
                    spent = cpu_seconds(other) - before
                    took = [end - start for start, end in itertools.pairwise(times[SKIPPED:])]
                    found.setdefault(case, []).append(
                        {"steps": took, "cpu_s": spent / STEPS, "start_s": times[0] - began}
                    )
            measured[f"{half}, {precision}"] = {
                "bytes": {
                    "rows": (features.nbytes + teacher.values.nbytes + batch.labels.nbytes) // 2,
                    "weights": sum(tensor.nbytes for tensor in model.state_dict().values()),
                    "optimizer": sum(w.nbytes for slots in optimizer.state.values() for w in slots.values()),
                },
                "cases": {
                    case: {
                        "least_s": min(step for fit in fits for step in fit["steps"]),
                        "median_s": statistics.median(step for fit in fits for step in fit["steps"]),
                        "cpu_s": min(fit["cpu_s"] for fit in fits),
                        "start_s": min(fit["start_s"] for fit in fits),
                        "steps": sum(len(fit["steps"]) for fit in fits),
                    }
                    for case, fits in found.items()
                },
            }
    return measured


def other_rank() -> int:
    """The process of rank 1."""
    parent = os.getppid()
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return next(
        int(child) for child in children if b"RANK=1" in Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
    )


def cpu_seconds(other: int) -> float:
    """Of this process and another."""
    fields = Path(f"/proc/{other}/stat").read_text().rpartition(")")[2].split()
    return time.process_time() + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# ---- messages ----------------------------------------------------------------------------------------------------


def messages() -> dict[str, Any]:
    return on_two_ranks("one-message")


def on_two_ranks(part: str, *options: str) -> dict[str, Any]:
    """What a part of `PARTS_OF_RANKS` finds, on rank 0."""
    command = [*TORCHRUN, "--nproc-per-node", "2", __file__, part, *options]
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


PARTS_OF_RANKS = {"one-message": one_message, "shared-steps": shared_steps}


def in_a_rank(part: str, *given: Any) -> None:
    from catchment import launch
    from catchment.process import this_rank
    from catchment.simulation.ranks import follow

    if this_rank() == 0:
        print(json.dumps(PARTS_OF_RANKS[part](*given)))
    else:
        follow(launch.world_of_rank)


# ---- machines ----------------------------------------------------------------------------------------------------


def machines(delay: float, rate: float) -> dict[str, Any]:
    """Clients on two machines, and a model that both train; each once more until the line between them is cut."""
    from namespaces import Line, namespace

    settings, found = argparse.Namespace(delay=delay, loss=0.0, rate=rate), {}
    for title, job in (("J2", J2), ("centralized", CENTRALIZED)):
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            hosts = [stack.enter_context(namespace(f"catchment-rank{number}")) for number in range(2)]
            line = Line(*hosts, 0, settings)
            threading.Thread(target=line.carry, daemon=True).start()
            found[title] = on_machines(job, hosts, line, Path(folder))
        alone = run(job, ranks=2 if job.get("data_parallel") else 1)
        found[title]["as_one_machine"] = found[title].pop("fingerprint") == alone["fingerprint"]
    return {"delay_ms": delay, "rate_mbit": rate, "jobs": found}


def on_machines(job: dict[str, Any], hosts: list[str], line: Any, folder: Path) -> dict[str, Any]:
    """A job on two hosts, whole and with a line that is cut after a round."""
    file = folder / "x.toml"
    file.write_text(experiment(job).to_toml())

    def start(number: int, out: str) -> subprocess.Popen[str]:
        """Rank `number`, on its own machine."""
        place = ["--nnodes", "2", "--node-rank", str(number), "--nproc-per-node", "1"]
        place += ["--master-addr", "10.77.0.1", "--master-port", "29500"]
        command = [*TORCHRUN, *place, "-m", "catchment", "run", str(file), "--out", str(folder / out)]
        env = variables() | {"GLOO_SOCKET_IFNAME": ("line0", "line")[number]}
        words = ["ip", "netns", "exec", hosts[number], *command]
        return subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    ranks = [start(number, "whole") for number in range(2)]
    for rank in ranks:
        _, errors = rank.communicate()
        if rank.returncode:
            raise SystemExit(errors)
    result = json.loads((folder / "whole" / "result.json").read_text())
    carried = line.carried
    ranks = [start(number, "cut") for number in range(2)]
    records = folder / "cut" / "rounds.jsonl"
    while not records.exists() or not records.read_text():
        time.sleep(0.05)
    line.cut = True
    began = time.monotonic()
    _, errors = ranks[0].communicate()
    noticed = time.monotonic() - began
    ranks[1].kill()
    ranks[1].communicate()
    return {
        "seconds": result["seconds"],
        "bytes_of_the_federation": sum(result["bytes"].values()),
        "bytes_on_the_line": carried,
        "fingerprint": result["fingerprint"],
        "cut_noticed_after_s": noticed,
        "sentence": next(word for word in errors.splitlines() if word.startswith("error: ")).partition(";")[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["J1", "J2", "FedGKT", "messages", "steps"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--delay", type=float, default=5.0)
    parser.add_argument("--rate", type=float, default=100.0)
    arguments = parser.parse_args()
    if arguments.parts[0] in PARTS_OF_RANKS:
        in_a_rank(arguments.parts[0], *([arguments.repeats] if arguments.parts[0] == "shared-steps" else []))
        return
    parts = {
        **{title: lambda title=title: in_job(JOBS[title], arguments.repeats) for title in JOBS},
        "messages": messages,
        "steps": lambda: steps(arguments.repeats),
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
