"""CPU seconds of a round of FedGKT beside a bare PyTorch loop that does the same arithmetic in channels-last.

    python benchmarks/fedgkt.py             # some minutes; an otherwise idle machine has less noise

Four clients with ResNet-8, a server with ResNet-19, 32x32 images, both directions of distillation, one epoch on each
side. The loop keeps everything in lists: no messages, no bytes, no spool, no derived randomness. Each measurement is a
fresh process of one thread, repeats are interleaved, medians are reported. Results go to
`benchmarks/results/fedgkt.json`.
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

RESULTS = Path(__file__).parent / "results" / "fedgkt.json"
ROUNDS = 4  # the first warms up
CLIENTS = 4
SAMPLES = 256  # a client
BATCH = 64
TEMPERATURE = 3.0


def images():
    """A data set of random images: speed does not depend on what they show."""
    import numpy as np

    import catchment

    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (CLIENTS * SAMPLES + 1, 3, 32, 32), dtype=np.uint8)
    labels = np.concatenate([np.arange(10), random.integers(0, 10, CLIENTS * SAMPLES - 9)])
    return catchment.Dataset.of(pixels[:-1], labels[:-1], pixels[-1:], labels[-1:], classes=[str(c) for c in range(10)])


def experiment():
    import catchment

    adam = {"name": "adam", "lr": 1e-3, "batch_size": BATCH}
    return catchment.Experiment.from_dict(
        {
            "rounds": ROUNDS, "workers": 1, "path": str(Path(__file__).parent), "method": {"name": "fedgkt"},
            "data": {"name": "fedgkt:images", "clients": CLIENTS},
            "models": {"client": "resnet8", "server": "resnet19"},
            "optimizer": {"client": adam, "server": adam}, "evaluation": {"every": 10**9},
        }
    )  # fmt: skip


def engine() -> list[float]:
    """CPU seconds of each round through the engine; the last one, which evaluates, is left out."""
    import torch

    import catchment

    torch.set_num_threads(1)
    marks = [time.process_time()]
    catchment.run(experiment(), observe=lambda record: marks.append(time.process_time()))
    return [b - a for a, b in itertools.pairwise(marks)][:-1]


def bare() -> list[float]:
    """CPU seconds of each round in a plain loop."""
    import torch
    import torch.nn.functional as F

    torch.set_num_threads(1)
    world = experiment().build_world()
    edges = [world.client_architecture(k).build() for k in range(CLIENTS)]
    large = world.server_architecture.build()
    optimizers = [torch.optim.Adam(m.parameters(), lr=1e-3, fused=True) for m in (*edges, large)]
    data = [(world.normalise(s.images[s.index]), s.targets) for s in map(world.private, range(CLIENTS))]
    generator = torch.Generator().manual_seed(0)
    answers: list = [None] * CLIENTS

    def loss(logits, labels, teacher):
        value = F.cross_entropy(logits, labels)
        if teacher is None:
            return value
        student, target = (F.log_softmax(z / TEMPERATURE, 1) for z in (logits, teacher))
        return value + TEMPERATURE**2 * F.kl_div(student, target, reduction="batchmean", log_target=True)

    seconds = []
    for _ in range(ROUNDS - 1):
        began = time.process_time()
        uploads = []
        for k, edge in enumerate(edges):
            pixels, labels = data[k]
            edge.train()
            for rows in torch.randperm(SAMPLES, generator=generator).split(BATCH):
                batch = pixels[rows].contiguous(memory_format=torch.channels_last)
                optimizers[k].zero_grad()
                loss(edge(batch), labels[rows], None if answers[k] is None else answers[k][rows]).backward()
                optimizers[k].step()
            edge.eval()
            with torch.no_grad():
                parts = []
                for batch in pixels.split(BATCH):
                    features = edge.extractor(batch.contiguous(memory_format=torch.channels_last))
                    parts.append((features, edge.classifier(features)))
            uploads.append((torch.cat([h for h, _ in parts]), torch.cat([z for _, z in parts]), labels))
        features, z_k, labels = (torch.cat(tensors) for tensors in zip(*uploads))
        z_s = torch.empty_like(z_k)
        large.train()
        for rows in torch.randperm(len(labels), generator=generator).split(BATCH):
            batch = features[rows].contiguous(memory_format=torch.channels_last)
            optimizers[-1].zero_grad()
            logits = large(batch)
            z_s[rows] = logits.detach()
            loss(logits, labels[rows], z_k[rows]).backward()
            optimizers[-1].step()
        answers = list(z_s.split(SAMPLES))
        seconds.append(time.process_time() - began)
    return seconds


def alone(name: str) -> float:
    """The median round of a fresh process, the first left out."""
    code = f"from catchment import process; process.set_up(); import json, fedgkt; print(json.dumps(fedgkt.{name}()))"
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run([sys.executable, "-c", code], env=settings, capture_output=True, text=True, check=True)
    return statistics.median(json.loads(done.stdout.splitlines()[-1])[1:])


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--repeats", type=int, default=5)
    repeats = arguments.parse_args().repeats
    seconds: dict[str, list[float]] = {"bare": [], "engine": []}
    for _ in range(repeats):
        for name, values in seconds.items():
            values.append(alone(name))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    ratios = [b / a for a, b in zip(seconds["bare"], seconds["engine"])]
    measured = {
        "clients": CLIENTS, "samples": SAMPLES, "batch": BATCH, "threads": 1, "repeats": repeats,
        "round_s": medians, "over_bare": statistics.median(ratios), "all_round_s": seconds,
    }  # fmt: skip
    RESULTS.write_text(json.dumps(measured, indent=2) + "\n")
    print(f"bare {medians['bare']:.2f} s per round, Catchment {medians['engine']:.2f} s: {measured['over_bare']:.3f}")


if __name__ == "__main__":
    main()
