"""What works where only the packages of a device are: another process, in which the others cannot be imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import catchment

ELSEWHERE = [  # for servers, research and reports
    "catchment.__main__", "catchment.flower", "catchment.keys", "catchment.data.parquet", "catchment.data.box_parquet",
    "catchment.report",
    "catchment.studies",
]  # fmt: skip
ABSENT = ["flwr", "cryptography", "pyarrow", "PIL", "sklearn", "scipy", "matplotlib", "pandas", "datasets"]

SCRIPT = """
import importlib, json, pkgutil, sys
from pathlib import Path
import torch

class Without:  # a finder that does not see some packages
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in ABSENT else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

ABSENT = json.loads(sys.argv[1])
sys.meta_path[:] = map(Without, sys.meta_path)
folder = Path(sys.argv[2])

import catchment
from catchment import data
from catchment.cli.app import app
from catchment.codecs import Codecs
from catchment.errors import UserError
from catchment.exchange.message import Message
from catchment.data.pictures import sheet

for module in pkgutil.walk_packages(catchment.__path__, "catchment."):
    if not module.name.startswith(tuple(json.loads(sys.argv[3]))):
        importlib.import_module(module.name)

def said(action):
    try:
        action()
    except UserError as error:
        return str(error)
    except SystemExit as stop:
        return stop.code

def command(*arguments):
    sys.argv = ["catchment", *arguments]
    app()

found = {}
experiment = catchment.Experiment.load(folder / "x.toml")
catchment.run(experiment, folder / "run")
found["accuracy"] = catchment.Run(folder / "run").result["accuracy"]
found["help"] = said(lambda: command("--help"))
found["digits"] = said(lambda: data.load("digits", None, train=None, test=None, seed=0))
(folder / "parquet").mkdir()
(folder / "parquet/train.parquet").write_bytes(b"")
found["parquet"] = said(lambda: data.load(str(folder / "parquet"), None, train=None, test=None, seed=0))
zeros = Message({"features": torch.zeros(100, 100)})
for name in ("cat", "dog"):
    (folder / "pictures" / name).mkdir(parents=True)
    for image in ("a.png", "b.png"):
        (folder / "pictures" / name / image).write_bytes(b"")
found["images"] = said(lambda: data.load(str(folder / "pictures"), None, train=None, test=None, seed=0))
found["zstd"] = Codecs.parse(["features=int8+zstd"]).encode(zeros, "up", {})[0].size()
found["report"] = said(lambda: command("report", str(folder / "run")))
found["picture"] = said(lambda: sheet(torch.zeros(1, 1, 8, 8), experiment.build_world().normalise))
found["keys"] = said(lambda: command("keys", str(folder / "keys"), "--clients", "1"))
found["loaded"] = sorted(set(ABSENT) & {name.partition(".")[0] for name in sys.modules})
print("FOUND", json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = tmp_path_factory.mktemp("device")
    draw = np.random.default_rng(0)
    for split, count in (("train", 40), ("test", 20)):
        images = draw.integers(0, 256, (count, 8, 8), dtype=np.uint8)
        np.savez(folder / f"{split}.npz", images=images, labels=np.arange(count) % 2)
    (folder / "x.toml").write_text(
        f'rounds = 1\nworkers = 1\ndata = {{ name = "{folder}", clients = 2 }}\nmodels.client = "mlp(4)"\n'
        'wire.codecs = ["up:weights/*=int8"]\n'
    )
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(ABSENT), str(folder), json.dumps(ELSEWHERE)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.rpartition("FOUND ")[2])


def test_a_device_trains_without_what_servers_and_reports_need(found: dict) -> None:
    assert 0 <= found["accuracy"] <= 1
    assert found["help"] == 0
    assert found["zstd"] < 1000  # of 40,000 bytes
    assert found["loaded"] == []


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("digits", "data set \"digits\" needs the package scikit-learn: pip install 'catchment-fl[research]'"),
        ("parquet", "reading Parquet files needs the package pyarrow: pip install 'catchment-fl[research]'"),
        ("images", "reading encoded images needs the package pillow: pip install 'catchment-fl[images]'"),
        ("report", "a report needs the package matplotlib: pip install 'catchment-fl[research]'"),
        ("picture", "a picture of what a method shows needs the package pillow: pip install 'catchment-fl[research]'"),
        ("keys", "a key needs the package cryptography: pip install 'catchment-fl[device]'"),
    ],
)
def test_a_missing_package_is_one_sentence_with_its_extra(found: dict, what: str, sentence: str) -> None:
    assert found[what] == sentence


def test_every_extra_that_is_named_is_there() -> None:
    root = Path(catchment.__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert {
        "torch",
        "device",
        "images",
        "onnx",
        "executorch",
        "watch",
        "research",
        "server",
        "hub",
        "dev",
        "docs",
        "tensorboard",
        "mlflow",
        "wandb",
        "detection",
    } == extras.keys()
    heavy = ("flwr", "pyarrow", "pillow", "scikit-learn", "matplotlib")
    assert not [need for need in project["dependencies"] if need.startswith(heavy)]
    assert extras["server"] == ["catchment-fl[device,research,watch]"]
    assert all(any(need.startswith(name) for need in extras["device"] + extras["research"]) for name in heavy)
