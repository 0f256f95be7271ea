"""What the studies found, by setting and method, for `catchment plan --advise`: writes `catchment/planning/found.json`.

    python benchmarks/found.py

A setting is the data, the clients, the partition, and whether there are public samples and boxes. Of each method it has
the row with the best mean accuracy that was neither attacked nor a failure. Settings with a single method compare
nothing and are left out, as are runs of a single round.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

from catchment.data.sources import WITH_BOXES
from catchment.errors import ExperimentError
from catchment.studies.file import Row, StudyFile
from catchment.studies.results import StudyResult

ROOT = Path(__file__).parents[1]
FOUND = ROOT / "catchment" / "planning" / "found.json"


def setting(row: Row) -> dict[str, Any]:
    data = row.settings.get("data", {})
    partition = data.get("partition", {"name": "iid"})
    return {
        "data": data.get("name", "digits"),
        "train": data.get("train"),
        "clients": data.get("clients", 8),
        "partition": partition["name"],
        "public": "public" in data,
        "boxes": data.get("name") in WITH_BOXES,
    }


def found() -> list[dict[str, Any]]:
    files = {}
    for path in sorted((ROOT / "experiments").rglob("*.toml")):
        for scale in StudyFile.scales(path):
            try:
                study = StudyFile.load(path, scale)
            except ExperimentError:  # a file that others extend
                continue
            files[study.name, study.scale] = study
    settings: dict[str, dict[str, Any]] = {}
    for path in sorted((ROOT / "experiments" / "results").glob("*.json")):
        result = StudyResult.read(path)
        study = files.get((result.name, result.scale))  # none of options that are gone
        for row in () if study is None else study.rows:
            done, method = result.row(row.label), row.settings.get("method", {}).get("name", "fedavg")
            attacked = row.settings.get("attack", {}).get("name", "none") != "none"
            accuracies = list(done.numbers("accuracy").values()) if done else []
            if attacked or not accuracies or row.settings.get("rounds") == 1:
                continue
            where = {"study": path.stem, **setting(row)}
            methods = settings.setdefault(json.dumps(where), {**where, "methods": {}})["methods"]
            if fmean(accuracies) > methods.get(method, {"accuracy": 0})["accuracy"]:
                methods[method] = {"accuracy": fmean(accuracies), "seeds": len(accuracies), "row": row.label}
    return [one for one in settings.values() if len(one["methods"]) > 1]


if __name__ == "__main__":
    FOUND.write_text(json.dumps(found(), indent=1) + "\n")
