"""What leaves a device: by hand for some methods, and the page that shows all of them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import get_args

import pytest
from worlds import METHODS, experiment

from catchment import Experiment
from catchment.core.declarations import Kind
from catchment.methods.fedavg import FedAvg
from catchment.methods.split import Split
from catchment.privacy.disclosure import SHOWS, Disclosed, disclosed

ROOT = Path(__file__).parents[2]


def script(name):
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_a_world_sizes_are_those_of_the_papers():
    assert disclosed(FedAvg) == [
        Disclosed("weights", "weights", "client parameters", "local_training", None),
        Disclosed("buffers", "weights", "client buffers", "local_training", None),
        Disclosed("samples", "counts", "int", "local_training", None),
        Disclosed("loss", "metrics", "float", "local_training", None),
    ]


def test_a_field_of_several_handlers_has_one_row():
    rows = {row.field: row for row in disclosed(Split)}
    assert len(rows) == len(disclosed(Split))
    assert rows["features"].when == "begin, step"
    assert rows["weights"].when == "finish"


def test_in_a_world_sizes_are_those_of_the_client():
    world = experiment("fedgkt").build_world()  # cnn on digits: features of 16 x 4 x 4
    for client in (0, 1):
        n = len(world.data.clients[client])
        rows = {row.field: row for row in disclosed(type(world.method), world, client)}
        features = Disclosed("features", "features", f"float32 [{n}, 16, 4, 4]", "local_training", 4 * n * 256)
        assert rows["features"] == features
        assert rows["ids"] == Disclosed("ids", "ids", f"int64 [{n}]", "local_training", 8 * n)
        assert rows["rates"] == Disclosed("rates", "metrics", "float32 [10, 10]", "test", 4 * 100)
        assert rows["edge"].most is None


@pytest.mark.parametrize(
    ("name", "field", "shape", "most"),
    [
        ("fedavg", "weights", "6,090 numbers in 6 tensors", 4 * 6090),
        ("fedkgf", "weights", "at most 2,562 numbers in 6 tensors", 4 * 2562),
        ("fedmd", "logits", "float32 [n <= 120, 10]", 4 * 1200),  # 40 % of 300 samples are public
    ],
)
def test_weights_are_counted_and_public_samples_are_known(name, field, shape, most):
    world = experiment(name).build_world()
    (row,) = (row for row in disclosed(type(world.method), world) if row.field == field)
    assert (row.shape, row.most) == (shape, most)


def test_samples_that_only_clients_know_stay_a_letter():
    own = {"clients": 2, "test": 20, "partition": {"name": "own"}}
    table = {"engine": "flower", "method": {"name": "fedgkt"}, "data": own}
    world = Experiment.from_dict({**table, "models": {"client": "cnn", "server": "resnet10"}}).build_world()
    rows = {row.field: row for row in disclosed(type(world.method), world)}
    assert (rows["features"].shape, rows["features"].most) == ("float32 [N_k, 16, 4, 4]", None)


def test_every_kind_says_what_it_shows():
    assert set(SHOWS) == set(get_args(Kind))


@pytest.mark.parametrize("name", METHODS)
def test_no_field_of_a_method_is_undeclared(name):
    assert "unknown" not in {row.kind for row in disclosed(type(experiment(name).build_method()))}


def test_the_pages_show_what_leaves_today():
    leaving = script("leaving")
    pages = {path: path.read_text() for path in leaving.PAGES}
    behind = [path.name for path, page in pages.items() if leaving.rewritten(page) != page]
    assert behind == [], "python benchmarks/leaving.py writes them anew"
    assert sorted(name for page in pages.values() for name in leaving.named(page)) == sorted(leaving.METHODS)


def test_the_page_shows_what_was_measured():
    inversion = script("inversion")
    rows = json.loads(inversion.RESULTS.read_text())["rows"]
    assert list(rows) == list(inversion.ROWS)
    assert inversion.shown(rows) in (ROOT / "docs" / "privacy.md").read_text()
