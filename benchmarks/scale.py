"""What a federation of a million phones would need, computed from what other scripts of this folder measured.

    python benchmarks/scale.py

Nothing is measured here: `results/scale.json` has the assumptions, the numbers that were taken from other results, and
what follows from them.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
REGISTERED, ACTIVE, ROUND = 1_000_000, 100_000, 3600  # clients, clients in a round, seconds of a round
IMAGES = 100  # of a client
HEARTBEAT = 30  # seconds between two of a device that is connected
FLOPS = 1e13  # that a GPU sustains in training
JOBS = {"FedAvg, ResNet-56": "resnet56", "FedGKT, features as float32": 4.0, "FedGKT, features as int4": 0.5}


def read(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text())


def job(what: str | float, link: dict[str, Any], models: dict[str, Any], spool: dict[str, Any]) -> dict[str, float]:
    """The needs of one job: `what` is the model that travels, or the bytes of a feature."""
    features = math.prod(spool["features"])  # of an image
    classes = 10
    if isinstance(what, str):
        up = down = models[what]["parameters"] * 4
    else:
        up, down = IMAGES * features * what, IMAGES * classes * 4
    seconds = link["empty_seconds"] + up / 1e6 / link["up_MB_per_second"] + down / 1e6 / link["down_MB_per_second"]
    trained = (
        0
        if isinstance(what, str)
        else 3 * 2 * ACTIVE * IMAGES * (models["resnet110"]["macs"] - models["resnet8"]["macs"])
    )
    return {
        "up_bytes": up,
        "down_bytes": down,
        "up_mbit": ACTIVE * up * 8e-6 / ROUND,
        "down_mbit": ACTIVE * down * 8e-6 / ROUND,
        "turn_s": seconds,
        "links": ACTIVE * seconds / ROUND,
        "spool_gb": 0 if isinstance(what, str) else ACTIVE * IMAGES * features * 4 / 1e9,
        "gpu_s": trained / FLOPS,
    }  # fmt: skip


def main() -> None:
    measured = read("flower")["ways"]["TLS and keys"]
    models, spool = read("edge_cost")["models"], read("spool")
    started = read("registered")["1,000,000"]
    report = {
        "registered": REGISTERED,
        "active": ACTIVE,
        "round_s": ROUND,
        "images": IMAGES,
        "flops": FLOPS,
        "heartbeats_per_s": ACTIVE / HEARTBEAT,
        "one_link_per_s": 1 / measured["50"]["empty_seconds"],
        "ledger_mb": started["ledger_mb"] / 30 / 100 * ACTIVE,
        "jobs": {
            name: {rate: job(what, measured[size], models, spool) for rate, size in (("small", "1"), ("large", "50"))}
            for name, what in JOBS.items()
        },
    }
    (RESULTS / "scale.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
