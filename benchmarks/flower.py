"""Round trips, throughput and memory of the Flower engine on loopback.

    python benchmarks/flower.py [--only NAME] [--out benchmarks/results/flower.json]

Both ways of running it are measured by themselves: the server routine with its link, and one client, as processes.
Empty round trips are the median of twenty; bytes go up and down three times, less the time to make them; memory is the
largest resident size that each process reached. The rows "0.1.0, ..." are of that version, with Flower's SuperLink as a
process of its own, which needed a database for keys.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from catchment import Experiment, run
from catchment.data import load
from catchment.device.policy import KINDS, Allow, Policy
from catchment.keys.keys import make_keys

HERE = Path(__file__).parent
WAYS = {"plain": False, "TLS and keys": True}
MEGABYTES = (1, 50, 200)
PROCESSES = {"catchment.flower.serving": "server routine", "catchment join": "client"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="the name of one way")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "flower.json")
    arguments = parser.parse_args()
    results = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"ways": {}, "device": {}}
    for name, keys in WAYS.items():
        if arguments.only in (None, name):
            results["ways"][name] = {}
            for megabytes in MEGABYTES:
                row = results["ways"][name][str(megabytes)] = traffic(keys, megabytes)
                print(name, megabytes, json.dumps(row))
                write(arguments.out, results)
    if arguments.only in (None, "device"):
        results["device"] = device()
        print("device", json.dumps(results["device"]))
        write(arguments.out, results)


def write(path: Path, results: dict[str, Any]) -> None:
    path.write_text(json.dumps(results, indent=1) + "\n")


def traffic(keys: bool, megabytes: int) -> dict[str, Any]:
    """Seconds of empty round trips, MB/s both ways, and memory."""
    with tempfile.TemporaryDirectory() as folder:
        flower = {}
        if keys:
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
    """Memory of a client process with ResNet-8 on 500 CIFAR-10 images of its own, at rest and in training."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        images = load("cifar10", None, train=IMAGES, test=100, seed=0)
        for place, part, samples in (("device", "train", images.train), ("device", "test", images.test)):
            (folder / place).mkdir(exist_ok=True)
            pixels = samples.images[samples.index].permute(0, 2, 3, 1).numpy()
            np.savez(folder / place / f"{part}.npz", images=pixels, labels=samples.targets.numpy())
        (folder / "server").mkdir()
        (folder / "server" / "test.npz").write_bytes((folder / "device" / "test.npz").read_bytes())
        (folder / "x.toml").write_text(OWN)
        start = [sys.executable, "-m", "catchment"]
        server = subprocess.Popen(
            [*start, "server", "x.toml", "--insecure", "--host", "127.0.0.1", "--port", str(PORT), "--out", "run"],
            cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        digest = folder / "run" / "flower" / "digest"
        while not digest.exists():
            time.sleep(0.1)
        Policy(
            f"127.0.0.1:{PORT}", 0, folder / "state", folder / "device", insecure=True,
            allow=Allow(leaves=KINDS, experiments=(digest.read_text(),)),
        ).write(folder / "device.toml")  # fmt: skip
        with (folder / "log").open("wb") as log, Memory() as memory:
            memory.when = lambda: "is connected" in (folder / "log").read_text()
            client = subprocess.Popen([*start, "join", "--once"], cwd=folder, stdout=log, stderr=subprocess.STDOUT)
            if server.wait() != 0:
                raise SystemExit((folder / "log").read_text())
            client.wait()
    return {
        "model": "resnet8",
        "batch": 64,
        "images": IMAGES,
        "rest_MB": memory.then["client"],
        "training_MB": memory.peaks["client"],
    }


IMAGES = 500
PORT = 9392
OWN = """
rounds = 2
[data]
name = "./server"
clients = 1
partition = { name = "own" }
[models]
client = "resnet8"
server = "half(1,1,1)"
[method]
name = "fedgkt"
[optimizer.client]
batch_size = 64
"""


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
                    words = " ".join(child.cmdline()[:4])
                    size = child.memory_info().rss // 1_000_000
                except psutil.Error:
                    continue
                for word, name in PROCESSES.items():
                    if word in words:
                        now[name] = max(now.get(name, 0), size)
            for name, size in now.items():
                self.peaks[name] = max(self.peaks.get(name, 0), size)
            if not self.then and self.when():
                self.then = now


if __name__ == "__main__":
    main()
