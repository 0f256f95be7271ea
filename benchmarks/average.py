"""What evaluating a moving average of the weights brings at a constant learning rate.

    CATCHMENT_DATA=... python benchmarks/average.py     # the runs that are missing; an hour on one core

Each experiment runs with `evaluation.average` 0 and 0.99. Training is the same in both; what is measured is not.
Results go to `benchmarks/results/average.json`; `benchmarks/pages.py` makes the table of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from catchment import Experiment, run

RESULTS = Path(__file__).parent / "results" / "average.json"
SEEDS = (0, 1, 2)
AVERAGES = (0.0, 0.99)
ADAM = {"name": "adam", "lr": 1e-3, "weight_decay": 1e-4, "batch_size": 64}
COMMON: dict[str, Any] = {
    "workers": 1, "data": {"name": "cifar10", "clients": 4, "train": 2000, "test": 2000},
    "optimizer": {"client": ADAM, "server": ADAM},
}  # fmt: skip
EXPERIMENTS: dict[str, dict[str, Any]] = {
    "centralized, ResNet-20, 12 epochs": {
        "rounds": 12, "method": {"name": "centralized"}, "models": {"client": "resnet20"}, "evaluation": {"every": 12},
    },
    "FedGKT, ResNet-8 and ResNet-19, 6 rounds of 2 epochs": {
        "rounds": 6, "method": {"name": "fedgkt", "client_epochs": 2, "server_epochs": 2},
        "models": {"client": "resnet8", "server": "resnet19"}, "evaluation": {"every": 6},
    },
}  # fmt: skip


def main() -> None:
    torch.set_num_threads(1)
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name, table in EXPERIMENTS.items():
        for seed in SEEDS:
            for average in AVERAGES:
                key = f"{name} | seed {seed} | average {average:g}"
                if key in rows:
                    continue
                evaluation = {**table["evaluation"], "average": average}
                result = run(Experiment.from_dict({**COMMON, **table, "seed": seed, "evaluation": evaluation}))
                rows[key] = {"accuracy": result["accuracy"], "seconds": round(result["seconds"], 1)}
                RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
                print(key, rows[key], flush=True)


if __name__ == "__main__":
    main()
