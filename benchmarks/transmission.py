"""What a round of each method sends at the scale of Fed-KGF's Tables 1 and 4, with 10 clients.

    python benchmarks/transmission.py                # all methods
    python benchmarks/transmission.py FedPM          # this one alone, beside what is there

Every method does one round of the paper's experiment (`experiments/fedkgf/table1.toml`) in which clients have two
images each: bytes are those of encoded messages as the ledger books them, and time is that of the virtual clock over a
link of 10 Mbit/s. DGC is taken after its warm-up. Once with ResNet-18 for CIFAR-10, and once with YOLOX-S for the 80
categories of COCO, of which Table 4 is. Written to `results/transmission.json`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import catchment
from catchment.files import write_atomically
from catchment.studies.file import StudyFile

ROOT = Path(__file__).parents[1]
FILE = ROOT / "benchmarks" / "results" / "transmission.json"
LINK = 10  # Mbit/s
FEW = {"rounds": 1, "workers": 1, "data.train": 20, "data.test": 10, "devices.profile": f"{LINK}mbit"}
ROWS: dict[str, dict[str, Any]] = {
    "Fed-KGF": {},
    "Fed-KGF without module upload": {},
    "FedCAMS, scaled sign": {},
    "FedCAMS, top-k": {},
    "SmartIdx": {},
    "DGC": {"method.warmup": 0},
    "FedPM": {},
    "FedCOM": {},
    "FedAvg": {},
}
PAPER = {  # MB a round, as it prints them
    "ResNet-18": {
        "Fed-KGF": 8.46, "Fed-KGF without module upload": 13.20, "FedCAMS, scaled sign": 13.32, "SmartIdx": 20.47,
        "DGC": 36.16, "FedPM": 91.55, "FedCOM": 144.65, "FedAvg": 289.31,
    },
    "YOLOX-S": {
        "Fed-KGF": 21.69, "Fed-KGF without module upload": 30.14, "FedCAMS, scaled sign": 43.08, "SmartIdx": 32.36,
        "DGC": 42.87, "FedPM": 39.18, "FedCOM": 171.50, "FedAvg": 342.99,
    },
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "ResNet-18": {"models.client": "resnet18"},
    "YOLOX-S": {"models.client": "yolox_s", "data.name": "coco_mini", "data.size": 64},
}


def measure(row: str, model: str) -> dict[str, Any]:
    """One round of a method."""
    study = StudyFile.load(ROOT / "experiments" / "fedkgf" / "table1.toml")
    settings = next(one.settings for one in study.rows if one.label == f"IID, {row}")
    client = str(settings["models"]["client"]).replace("resnet18", MODELS[model]["models.client"])
    changes = {**FEW, **ROWS[row], **MODELS[model], "models.client": client}
    result = catchment.run(catchment.Experiment.from_dict(settings, changes))
    (costs,) = result["costs"]["clients"].values()
    return {
        "parameters": costs["parameters"],
        "up": result["bytes"]["up"],
        "down": result["bytes"]["down"],
        "seconds": result["virtual_seconds"],
        "paper_mb": PAPER[model].get(row),
    }


def main() -> None:
    """Measure, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("rows", nargs="*", choices=[*ROWS, []], help="all if none is given")
    parser.add_argument("--model", choices=MODELS, help="both if none is given")
    arguments = parser.parse_args()
    chosen = arguments.rows or list(ROWS)
    models = json.loads(FILE.read_text())["models"] if FILE.exists() else {}
    for model in [arguments.model] if arguments.model else MODELS:
        rows = models.get(model, {})
        for row in chosen:
            rows[row] = measure(row, model)
            print(model, row, rows[row], flush=True)
        models[model] = {row: rows[row] for row in ROWS if row in rows}
    write_atomically(FILE, (json.dumps({"clients": 10, "link": LINK, "models": models}, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
