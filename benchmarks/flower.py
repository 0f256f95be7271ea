"""Round trips, throughput and memory of the Flower engine on loopback.

    python benchmarks/flower.py [--only NAME] [--out benchmarks/results/flower.json]

Every way of running it is measured by itself: a SuperLink, the server routine and one client, as processes. Empty round
trips are the median of twenty; bytes go up and down three times, less the time to make them; memory is the largest
resident size that each process reached. Rows that are in the file are measured again only if they are named.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from catchment import Experiment, run
from catchment.flower.keys import make_keys

HERE = Path(__file__).parent
WAYS: dict[str, dict[str, Any]] = {
    "warm client": {"database": False},
    "warm client, database": {"database": True},
    "warm client, TLS and keys, database": {"database": True, "keys": True},
    "Flower's SuperNode": {"database": False, "stock": True},
}
MEGABYTES = (1, 50, 200)
PROCESSES = {
    "flower-superlink": "SuperLink",
    "flwr-serverapp": "server routine",
    "catchment": "client",
    "flower-supernode": "SuperNode",
    "flwr-clientapp": "client",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="the name of one way")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "flower.json")
    arguments = parser.parse_args()
    results = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"ways": {}, "device": {}}
    for name, settings in WAYS.items():
        if arguments.only in (None, name):
            results["ways"][name] = {}
            for megabytes in MEGABYTES if not settings.get("stock") else MEGABYTES[:2]:
                row = results["ways"][name][str(megabytes)] = traffic(settings, megabytes)
                print(name, megabytes, json.dumps(row))
                write(arguments.out, results)
    if arguments.only in (None, "device"):
        results["device"] = device()
        print("device", json.dumps(results["device"]))
        write(arguments.out, results)


def write(path: Path, results: dict[str, Any]) -> None:
    path.write_text(json.dumps(results, indent=1) + "\n")


def traffic(settings: dict[str, Any], megabytes: int) -> dict[str, Any]:
    """Seconds of empty round trips, MB/s both ways, and memory."""
    with tempfile.TemporaryDirectory() as folder:
        flower = dict(settings)
        if flower.pop("keys", False):
            make_keys(Path(folder) / "keys", 1, [])
            flower["keys"] = str(Path(folder) / "keys")
        experiment = Experiment.from_dict(
            {
                "engine": "flower",
                "rounds": 2,
                "path": str(HERE),
                "data": {"name": "digits", "clients": 1, "train": 60, "test": 20},
                "models": {"client": "mlp"},
                "method": {"name": "traffic:Traffic", "megabytes": megabytes},
                "flower": flower,
            }
        )
        with Memory() as memory:
            run(experiment, Path(folder) / "run")
        record = json.loads((Path(folder) / "run" / "rounds.jsonl").read_text().splitlines()[-1])
    seconds: dict[str, list[float]] = {}
    for name, value in record["more"].items():
        seconds.setdefault(name.split()[0], []).append(value)
    empty = statistics.median(seconds["empty"])
    return {
        "empty_seconds": empty,
        "empty_slowest": max(seconds["empty"]),
        "up_MB_per_second": megabytes / statistics.median(seconds["up"]),
        "down_MB_per_second": megabytes / statistics.median(seconds["down"]),
        "peak_MB": memory.peaks,
    }


def device() -> dict[str, Any]:
    """Memory of a client process with ResNet-8 on CIFAR-10 images, at rest and in training."""
    with tempfile.TemporaryDirectory() as folder:
        experiment = Experiment.from_dict(
            {
                "engine": "flower",
                "rounds": 2,
                "data": {"name": "cifar10", "clients": 1, "train": 1000, "test": 100},
                "models": {"client": "resnet8", "server": "half(1,1,1)"},
                "method": {"name": "fedgkt"},
                "optimizer": {"client": {"batch_size": 64}},
            }
        )
        with Memory() as memory:
            log = Path(folder) / "run" / "flower" / "client-0.log"
            memory.when = lambda: log.exists() and "is connected" in log.read_text()
            run(experiment, Path(folder) / "run")
    return {"model": "resnet8", "batch": 64, "rest_MB": memory.then["client"], "training_MB": memory.peaks["client"]}


class Memory:
    """The largest resident size of this process' children, by what they are, in MB."""

    def __enter__(self) -> Memory:
        self.peaks: dict[str, int] = {}
        self.when: Callable[[], bool] = lambda: False
        self.then: dict[str, int] = {}  # sizes as soon as `when` was true
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        me = psutil.Process()
        while not self._over.wait(0.1):
            now: dict[str, int] = {}
            for child in me.children(recursive=True):
                try:
                    words = " ".join(child.cmdline()[:3])
                    size = child.memory_info().rss // 1_000_000
                except psutil.Error:
                    continue
                for word, name in PROCESSES.items():
                    if word in words and "superexec" not in words:
                        now[name] = max(now.get(name, 0), size)
            for name, size in now.items():
                self.peaks[name] = max(self.peaks.get(name, 0), size)
            if not self.then and self.when():
                self.then = now


if __name__ == "__main__":
    main()
