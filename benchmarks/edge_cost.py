"""What training costs an edge device: FedGKT's ResNet-8 beside the ResNet-56 and ResNet-110 of FedAvg (Figure 4).

    python benchmarks/edge_cost.py

Parameters and multiply-accumulates of one image are counted. A forward and backward pass of 64 images is timed on one
thread, in CPU time, the models in turn, medians over all turns. Shapes are those of CIFAR-100. Results go to
`benchmarks/results/edge_cost.json`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from catchment.core.architecture import macs
from catchment.models import build

RESULTS = Path(__file__).parent / "results" / "edge_cost.json"
MODELS = ("resnet8", "resnet56", "resnet110")
SHAPE = (3, 32, 32)
CLASSES = 100
BATCH = 64


def forward_backward(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """CPU seconds of one pass there and back; others may use the machine meanwhile."""
    model.zero_grad()
    began = time.process_time()
    F.cross_entropy(model(images), labels).backward()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=20)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    models = {
        name: build(name, SHAPE, CLASSES, seed=0).to(memory_format=torch.channels_last).train() for name in MODELS
    }
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(BATCH, *SHAPE, generator=generator).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(CLASSES, (BATCH,), generator=generator)
    for model in models.values():  # the first pass chooses kernels
        forward_backward(model, images, labels)
    seconds: dict[str, list[float]] = {name: [] for name in MODELS}
    for _ in range(repeats):
        for name, model in models.items():
            seconds[name].append(forward_backward(model, images, labels))
    report = {
        "batch": BATCH,
        "classes": CLASSES,
        "repeats": repeats,
        "models": {
            name: {
                "parameters": sum(parameter.numel() for parameter in model.parameters()),
                "macs": macs(model, SHAPE),
                "batch_ms": 1000 * statistics.median(seconds[name]),
                # Neighbours in time are compared with each other: the machine drifts.
                "times_resnet8": statistics.median(b / a for a, b in zip(seconds["resnet8"], seconds[name])),
            }
            for name, model in models.items()
        },
    }
    print(json.dumps(report, indent=2))
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
