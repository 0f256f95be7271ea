"""One cell of Flower's table niid_bench without Catchment: FedAvg on IID data of Fashion-MNIST, in plain PyTorch.

    CATCHMENT_DATA=... python benchmarks/niid_bare.py --seed 0      # 35 minutes on one core

The settings are those of `experiments/niid_bench.toml`. Nothing of Catchment is imported, so that its number and this
one share nothing but PyTorch and the images. Results go to `benchmarks/results/niid_bare.json`, one entry per seed.
"""

from __future__ import annotations

import argparse
import io
import json
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

RESULTS = Path(__file__).parent / "results" / "niid_bare.json"
CLIENTS, ROUNDS, EPOCHS, BATCH = 10, 50, 10, 64


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def read(split: str) -> tuple[Tensor, Tensor]:
    """Images from 0 to 1, and labels."""
    table = pyarrow.parquet.read_table(Path(os.environ["CATCHMENT_DATA"]) / "fashion_mnist" / f"{split}.parquet")
    pixels = [np.array(Image.open(io.BytesIO(image["bytes"]))) for image in table["image"].to_pylist()]
    return torch.from_numpy(np.stack(pixels)[:, None] / np.float32(255)), torch.tensor(table["label"].to_pylist())


def train(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-5)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(labels)).split(BATCH):
            optimizer.zero_grad()
            cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    right = sum((model(x).argmax(1) == y).sum() for x, y in zip(images.split(500), labels.split(500), strict=True))
    return int(right) / len(labels)


def main(seed: int) -> None:
    torch.manual_seed(seed)
    images, labels = read("train")
    test = read("test")
    parts = torch.randperm(len(labels)).chunk(CLIENTS)
    whole, curve = lenet(), []
    for _ in range(ROUNDS):
        uploads = []
        for part in parts:
            model = lenet()
            model.load_state_dict(whole.state_dict())
            train(model, images[part], labels[part])
            uploads.append(model.state_dict())
        whole.load_state_dict({name: torch.stack([own[name] for own in uploads]).mean(0) for name in uploads[0]})
        curve.append(accuracy(whole, *test))
        print(len(curve), curve[-1], flush=True)
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known[str(seed)] = {"best": max(curve), "last": curve[-1], "curve": curve}
    RESULTS.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args().seed)
