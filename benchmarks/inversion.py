"""What a curious server rebuilds of private images from features: the probe over methods, codecs and cuts.

    CATCHMENT_DATA=... python benchmarks/inversion.py     # the rows that are missing; half an hour on one core

Results go to `benchmarks/results/inversion.json`, pictures to `docs/images`, and the table into `docs/privacy.md`,
between its markers. Deeper cuts than those of the built-in edge models are the functions `cut_1` to `cut_3` below.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from catchment import Experiment, SplitModel, run
from catchment.models.resnet import STAGE_PLANES, STEM_CHANNELS, bottleneck, head, stem

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "inversion.json"
PAGE = ROOT / "docs" / "privacy.md"

DIGITS = {
    "rounds": 5, "workers": 1, "probe": {"inversion": True},
    "data": {"name": "digits", "clients": 8, "train": 600, "partition": {"name": "dirichlet", "alpha": 0.5}},
    "models": {"client": "resnet4", "server": "resnet10"},
}  # fmt: skip
CIFAR = {
    "rounds": 3, "workers": 1, "path": str(Path(__file__).parent), "probe": {"inversion": True, "epochs": 10},
    "data": {"name": "cifar10", "clients": 4, "train": 1000, "test": 500},
    "models": {"client": "resnet8", "server": "resnet10"}, "evaluation": {"every": 3},
}  # fmt: skip
GKT, SPLIT, SPLITFED = ({"method.name": name} for name in ("fedgkt", "split", "splitfed"))
INT8, INT4 = ({"wire.codecs": [f"features={chain}"]} for chain in ("int8+zstd", "int4+sparse+zstd"))
CUTS = [{"models.client": f"inversion:cut_{stages}", "models.server": "inversion:rest"} for stages in (1, 2, 3)]
ROWS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "digits, FedGKT, ResNet-4": (DIGITS, GKT),
    "digits, FedGKT, int8": (DIGITS, GKT | INT8),
    "digits, FedGKT, int4 and sparse": (DIGITS, GKT | INT4),
    "digits, split learning, ResNet-4": (DIGITS, SPLIT),
    "digits, SplitFed, cnn (pooled)": (DIGITS, SPLITFED | {"models.client": "cnn"}),
    "CIFAR-10, FedGKT, ResNet-8": (CIFAR, GKT),
    "CIFAR-10, FedGKT, int8": (CIFAR, GKT | INT8),
    "CIFAR-10, FedGKT, int4 and sparse": (CIFAR, GKT | INT4),
    "CIFAR-10, split learning, ResNet-8": (CIFAR, SPLIT),
    "CIFAR-10, FedGKT, cut after 1 bottleneck": (CIFAR, GKT | CUTS[0]),
    "CIFAR-10, FedGKT, cut after 2, 16x16 maps": (CIFAR, GKT | CUTS[1]),
    "CIFAR-10, FedGKT, cut after 3, 8x8 maps": (CIFAR, GKT | CUTS[2]),
    "CIFAR-10, split learning, cut after 3": (CIFAR, SPLIT | CUTS[2]),
}
PICTURES = {
    "digits, FedGKT, ResNet-4": "inversion-digits",
    "CIFAR-10, FedGKT, ResNet-8": "inversion-cifar10",
    "CIFAR-10, FedGKT, int4 and sparse": "inversion-cifar10-int4",
    "CIFAR-10, FedGKT, cut after 3, 8x8 maps": "inversion-cifar10-deep",
}


def cut(stages: int, shape: tuple[int, ...], classes: int) -> SplitModel:
    """A stem and so many bottlenecks, of which all but the first halve the maps, as extractor."""
    layers, channels = [stem(shape[0], STEM_CHANNELS)], STEM_CHANNELS
    for stage, planes in enumerate(STAGE_PLANES[:stages]):
        layers.append(bottleneck(channels, planes, stride=1 if stage == 0 else 2))
        channels = 4 * planes
    return SplitModel(nn.Sequential(*layers), nn.Sequential(*head(channels, classes)))


def cut_1(shape: tuple[int, ...], classes: int) -> SplitModel:
    return cut(1, shape, classes)


def cut_2(shape: tuple[int, ...], classes: int) -> SplitModel:
    return cut(2, shape, classes)


def cut_3(shape: tuple[int, ...], classes: int) -> SplitModel:
    return cut(3, shape, classes)


def rest(shape: tuple[int, ...], classes: int) -> nn.Module:
    """What a server does with the features of a cut: a bottleneck and a linear layer."""
    return nn.Sequential(bottleneck(shape[0], STAGE_PLANES[-1]), *head(4 * STAGE_PLANES[-1], classes))


def measured(name: str) -> dict[str, Any]:
    """One row, and its picture if the page shows it."""
    table, changes = ROWS[name]
    with tempfile.TemporaryDirectory() as folder:
        result = run(Experiment.from_dict({**table, "name": name}, changes), Path(folder) / "run")
        if name in PICTURES:
            last = (Path(folder) / "run" / "images" / f"inversion-{result['rounds']}.png").read_bytes()
            (ROOT / "docs" / "images" / f"{PICTURES[name]}.png").write_bytes(last)
    return {"settings": changes, "accuracy": result["accuracy"], "probe": result["probe"]}


def shown(rows: dict[str, Any]) -> str:
    """The best attack of each row on what was sent in the first and in the last round."""
    lines = [
        "| | round | correlation | PSNR, dB | SSIM | identified | the mean image: correlation | best attack |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for name in ROWS:
        for found in rows.get(name, {"probe": []})["probe"]:
            best, floor = found["attacks"][found["best"]], found["attacks"]["mean image"]
            lines.append(
                f"| {name} | {found['round']} | {best['correlation']:.3f} | {best['psnr']:.1f} | {best['ssim']:.3f} | "
                f"{best['identified']:.1%} of {found['images']} among {found['private']:,} | "
                f"{floor['correlation']:.3f} | {found['best']} |"
            )
    return "\n".join(lines)


def main() -> None:
    torch.set_num_threads(1)
    rows = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else {}
    for name in ROWS:
        if rows.get(name, {}).get("settings") != ROWS[name][1]:
            print(name, file=sys.stderr)
            rows[name] = measured(name)
            report = {"digits": DIGITS, "cifar10": {k: v for k, v in CIFAR.items() if k != "path"}, "rows": rows}
            RESULTS.write_text(json.dumps(report, indent=2) + "\n")
    pattern = re.compile(r"(<!-- inversion -->\n).*?(<!-- /inversion -->)", re.DOTALL)
    PAGE.write_text(pattern.sub(lambda match: f"{match[1]}{shown(rows)}\n{match[2]}", PAGE.read_text()))


if __name__ == "__main__":
    main()
