"""Fetching data sets from the Hugging Face hub, with the optional package `datasets`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from catchment.errors import DataError

# What `datasets.load_dataset` is called with. MedMNIST is published as a script, so the Parquet copy that the
# hub makes by itself is read.
HUB: dict[str, dict[str, str]] = {
    "mnist": {"path": "ylecun/mnist"},
    "fashion_mnist": {"path": "zalando-datasets/fashion_mnist"},
    "kmnist": {"path": "tanganke/kmnist"},
    "cifar10": {"path": "uoft-cs/cifar10"},
    "cifar100": {"path": "uoft-cs/cifar100"},
    "cinic10": {"path": "flwrlabs/cinic10"},
    "svhn": {"path": "ufldl-stanford/svhn", "name": "cropped_digits"},
    "pneumoniamnist": {
        "path": "albertvillanova/medmnist-v2",
        "name": "pneumoniamnist",
        "revision": "refs/convert/parquet",
    },
}
SPLITS = ("test", "validation", "train")  # train comes last: once it is there, the set is complete


def download_set(name: str, folder: Path) -> None:
    """Write a named set's splits to `folder`; a file appears under its name only when it is whole."""
    if name not in HUB:
        raise DataError(f'"{name}" cannot be fetched; copy it to {folder} (docs/detection.md says in which form)')
    try:
        import datasets
    except ImportError as error:
        raise DataError(f"fetching \"{name}\" needs the package datasets: pip install 'catchment-fl[hub]'") from error
    try:
        splits: Any = datasets.load_dataset(**HUB[name])
    except Exception as error:  # the network, the hub, a full disk: many libraries, many kinds
        raise DataError(f'fetching "{name}" ({HUB[name]["path"]}) from the Hugging Face hub failed: {error}') from error
    folder.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        if split in splits:
            part = folder / f"{split}.parquet.part"
            splits[split].to_parquet(part)
            os.replace(part, folder / f"{split}.parquet")
