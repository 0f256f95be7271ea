"""The experiments of the papers: every file can be read, every row has a small form, and the small forms can run."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

import pytest

from catchment import data
from catchment.experiment import Experiment

ROOT = Path(__file__).parents[1] / "experiments"
FILES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.toml"))
PAPERS = [file for file in FILES if not file.startswith("demo/") and "/base/" not in file]
SMALL = [file for file in PAPERS if file.endswith("-small.toml")]


@pytest.mark.parametrize("file", FILES)
def test_it_can_be_read(file):
    Experiment.load(ROOT / file)


@pytest.mark.parametrize("file", sorted(set(PAPERS) - set(SMALL)))
def test_a_row_says_what_it_is_and_has_a_small_form(file):
    comments = [line for line in (ROOT / file).read_text().splitlines() if line.startswith("#")]
    text = "\n".join(comments)
    assert f"catchment run experiments/{file} " in text
    assert "The paper: " in text
    assert "not run by us" in text
    small = ROOT / file.replace(".toml", "-small.toml")
    assert f"catchment run experiments/{small.relative_to(ROOT).as_posix()}\n" in small.read_text()
    row, standing_for_it = Experiment.load(ROOT / file), Experiment.load(small)
    assert standing_for_it.name == f"{row.name}-small"
    assert standing_for_it.method["name"] == row.method["name"]
    assert standing_for_it.rounds < row.rounds


load_once = functools.cache(data.load)
FITTED = set()  # methods with their models and data: rows that differ in how data are dealt need not build them again


@pytest.mark.parametrize("file", SMALL)
def test_a_small_form_fits_its_data_and_models(file, monkeypatch):
    monkeypatch.setattr(data, "load", load_once)
    experiment = Experiment.load(ROOT / file, {"data.train": 320, "data.test": 20})  # few images are quick to decode
    settings = experiment.data
    for name in (settings.name, getattr(settings.public, "name", settings.name)):
        if not (Path(os.environ.get("CATCHMENT_DATA", "")) / name / "train.parquet").exists():
            pytest.skip(f"needs CATCHMENT_DATA with {name}")
    what = (str(experiment.method), experiment.models, settings.name, settings.public)
    if what not in FITTED:
        experiment.build_world()
        FITTED.add(what)
    else:
        dataset = data.load(settings.name, None, train=320, test=20, seed=0, download=False, mean=None, std=None)
        data.divide(dataset, settings.clients, settings.partition, None, 0)


@pytest.mark.parametrize(
    ("file", "method", "models", "rounds", "partition"),
    [
        ("cifar10-iid-resnet56-fedgkt", {"client_epochs": 1, "server_epochs": 20, "distill": "server-to-edge"},
         ("resnet8", "resnet55"), 200, "iid"),
        ("cifar10-noniid-resnet110-fedgkt", {"client_epochs": 1, "server_epochs": 40, "distill": "server-to-edge"},
         ("resnet8", "resnet109"), 200, "table"),
        ("cifar100-noniid-resnet56-fedgkt", {"server_epochs": 40, "distill": "both"},
         ("resnet8", "resnet55"), 200, "dirichlet"),
        ("cinic10-noniid-resnet110-fedavg", {"client_epochs": 20}, ("resnet110", None), 200, "dirichlet"),
        ("cifar100-resnet8-centralized", {"client_epochs": 1}, ("resnet8", None), 300, "iid"),
    ],
)  # fmt: skip
def test_rows_of_table_1_of_fedgkt_have_the_papers_settings(file, method, models, rounds, partition):
    row = Experiment.load(ROOT / "fedgkt" / "table1" / f"{file}.toml")
    assert method.items() <= row.method.items()
    assert (row.models.client, row.models.server) == models
    assert (row.rounds, row.data.clients, row.data.partition["name"]) == (rounds, 16, partition)
    assert row.data.augment == ("crop", "flip")
    assert (row.data.train, row.data.test) == (None, None)


@pytest.mark.parametrize(
    ("file", "optimizer"),
    [
        ("cifar10-iid-resnet56-fedgkt", ("adam", 1e-3, 1e-4, 0.0, 256)),
        ("cifar10-noniid-resnet56-fedgkt", ("sgd", 5e-3, 0.0, 0.9, 256)),
        ("cifar10-noniid-resnet56-fedavg", ("adam", 1e-3, 1e-4, 0.0, 64)),
        ("cifar10-resnet56-centralized", ("adam", 3e-3, 1e-4, 0.0, 256)),
    ],
)
def test_rows_of_table_1_of_fedgkt_have_the_papers_optimisers(file, optimizer):
    row = Experiment.load(ROOT / "fedgkt" / "table1" / f"{file}.toml")
    for own in (row.optimizer.client, row.optimizer.server) if "fedgkt" in file else (row.optimizer.client,):
        assert (own.name, own.lr, own.weight_decay, own.momentum, own.batch_size) == optimizer


def test_small_rows_of_fedgkt_share_one_optimiser():
    small = [Experiment.load(ROOT / file).optimizer for file in SMALL if file.startswith("fedgkt/")]
    assert small
    assert all(optimizer == small[0] for optimizer in small)
    assert small[0].client == small[0].server


ADAM = ("adam", 1e-3, 1e-4)


@pytest.mark.parametrize(
    ("file", "method", "models", "rounds", "batch"),
    [
        ("homo-fedgems", {"epsilon": 0.75, "client_epochs": 1, "public_epochs": 1, "server_epochs": 1},
         ("resnet11", "resnet56"), 200, 256),
        ("homo-fedmd", {"client_epochs": 2, "public_epochs": 1}, ("resnet11", None), 200, 64),
        ("homo-dsfl", {"client_epochs": 1, "public_epochs": 1, "server_epochs": 2}, ("resnet11", None), 300, 64),
        ("homo-cronus", {"client_epochs": 1, "public_epochs": 1}, ("resnet11", None), 200, 64),
        ("homo-feddf", {"client_epochs": 40, "server_steps": 5 * 391}, ("resnet11", None), 100, 64),
        ("homo-fedavg", {"client_epochs": 20}, ("resnet11", None), 200, 64),
        ("homo-fedgkt", {"client_epochs": 1, "server_epochs": 20}, ("resnet11", "resnet55"), 200, 256),
        ("homo-standalone", {"client_epochs": 1, "server_epochs": 1}, ("resnet11", "resnet56"), 200, 256),
    ],
)  # fmt: skip
def test_rows_of_table_2_of_fedgems_have_the_settings_of_table_13(file, method, models, rounds, batch):
    row = Experiment.load(ROOT / "fedgems" / "table2" / f"cifar10-{file}.toml")
    assert method.items() <= row.method.items()
    assert (row.models.client, row.models.server) == models
    assert (row.rounds, row.data.clients, row.data.public) == (rounds, 16, 0.5)
    own = row.optimizer.client
    assert (own.name, own.lr, own.weight_decay, own.batch_size) == (*ADAM, batch)


def test_heterogeneous_clients_of_fedgems_are_those_of_table_11():
    row = Experiment.load(ROOT / "fedgems" / "table2" / "cifar10-hetero-fedgems.toml")
    blocks = ["1,1,1", "1,1,2", "1,2,1", "2,1,1", "1,2,2", "2,1,2", "2,2,1", "1,1,2"]
    assert list(row.models.client) == [f"resnet({three})" for three in blocks]
    assert row.data.partition == {"name": "dirichlet", "alpha": 0.5}


@pytest.mark.parametrize(
    ("file", "method", "rounds", "server", "partition"),
    [
        ("table1/mnist-fedzkt", {"client_epochs": 5, "iterations": 200, "loss": "sl", "mu": 1.0}, 50, "cnn", "iid"),
        ("table1/cifar10-fedzkt", {"client_epochs": 10, "iterations": 500}, 100, "resnet18", "iid"),
        ("table2/c-5-kl", {"iterations": 500, "loss": "kl"}, 100, "resnet18", "classes_per_client"),
        ("table4/beta-0.5-no-anchor", {"iterations": 500, "mu": 0.0}, 100, "resnet18", "dirichlet"),
        ("figure6/mnist-active-0.2", {"iterations": 200}, 50, "cnn", "iid"),
    ],
)
def test_rows_of_fedzkt_have_the_papers_settings(file, method, rounds, server, partition):
    row = Experiment.load(ROOT / "fedzkt" / f"{file}.toml")
    assert method.items() <= row.method.items()
    assert (row.rounds, row.data.clients, row.data.partition["name"]) == (rounds, 10, partition)
    assert (row.models.server, row.models.initial, len(row.models.client)) == (server, "glorot", 5)
    for own in (row.optimizer.client, row.optimizer.server):
        assert (own.name, own.lr, own.weight_decay, own.momentum, own.batch_size) == ("sgd", 0.01, 5e-4, 0.0, 256)
    assert (row.data.train, row.data.test) == (None, None)


def test_small_rows_of_fedzkt_share_their_optimisers():
    small = [
        Experiment.load(ROOT / file)
        for file in SMALL
        if file.startswith("fedzkt/") and not re.search("cifar10|fedmd", file)
    ]
    assert len({(e.optimizer.client, e.optimizer.server, e.rounds) for e in small}) == 1
