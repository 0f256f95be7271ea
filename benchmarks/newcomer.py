"""The path of a newcomer with a clock: from a fresh clone to an exported model that recognises images.

    git clone . /tmp/fresh && python benchmarks/newcomer.py /tmp/fresh     # minutes; the clone must be fresh

Every step is a command of the documentation. Results go to `benchmarks/results/newcomer.json`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "newcomer.json"
OWN = """
import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

digits = load_digits()
images, labels = (16 * digits.images).clip(0, 255).astype("uint8"), digits.target
np.savez("photos/train.npz", images=images[:1400], labels=labels[:1400])
np.savez("photos/test.npz", images=images[1400:], labels=labels[1400:])
for number in range(3):
    Image.fromarray(images[1400 + number]).save(f"photos/{number}.png")
print("labels", *labels[1400:1403])
"""
EXPERIMENT = """
rounds = 10
method.name = "fedgkt"
data = { name = "photos", clients = 4 }
models = { client = "resnet4", server = "resnet10" }
devices.profile = "raspberry"
"""
STEPS = {  # what a newcomer wants: the command, from the page that has it
    "make demo: set up, a study of three methods, a report": ("make demo", "README"),
    "everything else, for what follows": ("make setup", "start"),
    "write an experiment and check it": ("catchment new experiment mine && catchment check mine.toml", "start"),
    "plan for Raspberry Pis, with advice": ("catchment plan own.toml --advise", "plan"),
    "train FedGKT on own images, and watch it": ("catchment run own.toml --out runs/own --watch", "watch"),
    "compare two methods with three seeds": (
        "catchment study own.toml --vary method.name=fedavg,fedprox --vary seed=0..2 --out runs/both", "studies",
    ),
    "export a device's model to ONNX": ("catchment export runs/own --client 0 --format onnx --pixels", "export"),
    "predict three images with it": (
        "catchment predict runs/own/client-0.onnx photos/0.png photos/1.png photos/2.png", "export",
    ),
}  # fmt: skip


def main() -> None:
    clone = Path(sys.argv[1]).resolve()
    environment = {**os.environ, "PATH": f"{clone}/.venv/bin:{os.environ['PATH']}"}
    measured: list[dict[str, object]] = []
    for what, (command, page) in STEPS.items():
        seconds, said = (watched if "--watch" in command else timed)(command, clone, environment)
        measured.append({"what": what, "command": command, "page": page, "seconds": seconds})
        print(f"== {what}: {seconds:.0f} s\n{said[-1500:]}", flush=True)
        if what.startswith("everything"):
            (clone / "photos").mkdir()
            (clone / "own.toml").write_text(EXPERIMENT)
            print(
                subprocess.run(
                    [clone / ".venv/bin/python", "-c", OWN], cwd=clone, check=True, capture_output=True
                ).stdout
            )
    RESULTS.write_text(json.dumps(measured, indent=2) + "\n")
    print(f"{sum(float(str(step['seconds'])) for step in measured):.0f} s in all")


def timed(command: str, clone: Path, environment: dict[str, str]) -> tuple[float, str]:
    began = time.monotonic()
    done = subprocess.run(command, shell=True, cwd=clone, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command} failed:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return time.monotonic() - began, done.stdout


def watched(command: str, clone: Path, environment: dict[str, str]) -> tuple[float, str]:
    """Do a command that serves a page meanwhile, and look at the page until a round is done."""
    began = time.monotonic()
    with subprocess.Popen([*command.split()], cwd=clone, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = next(found[0] for line in process.stdout if (found := re.search(r"http://\S+", line)))
        done = 0
        while not done:
            time.sleep(0.5)
            with urllib.request.urlopen(f"{address}runs", timeout=30) as answer:
                done = next((run["done"] for run in json.load(answer)["runs"].values()), 0)
        said = f"watched in round {done}\n{process.stdout.read()}"
        if process.wait():
            sys.exit(f"{command} failed:\n{said}")
    return time.monotonic() - began, said


if __name__ == "__main__":
    main()
