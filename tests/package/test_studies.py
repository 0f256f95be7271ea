"""The studies of the papers: every row can be read at every scale, and the small ones fit their data and models."""

from __future__ import annotations

import functools
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from catchment import data
from catchment.codecs import Codecs
from catchment.config.experiment import Experiment
from catchment.core.patterns import check_rules
from catchment.studies.file import PAPER, Row, StudyFile
from catchment.studies.results import StudyResult
from catchment.studies.study import Study

ROOT = Path(__file__).parents[2] / "experiments"
STUDIES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [*ROOT.glob("*.toml"), *ROOT.glob("fed*/*.toml")]
    if tomllib.loads(path.read_text()).keys() & {"row", "axes"}  # others are what studies share
)
SCALES = [(file, scale) for file in STUDIES for scale in StudyFile.scales(ROOT / file)]
FULL_SIZE = (PAPER, "nights")
SMALL = [file for file, scale in SCALES if scale == "small"]


def read(study: StudyFile, row: Row, changes: dict[str, Any] | None = None) -> Experiment:
    """A row as `catchment study` reads it: a study's own modules are beside its file."""
    return Experiment.from_dict({"path": study.path, **row.settings}, changes or {})


@pytest.mark.parametrize(("file", "scale"), SCALES)
def test_every_row_is_an_experiment(file, scale):
    study = StudyFile.load(ROOT / file, scale)
    for row in study.rows:
        experiment = read(study, row)
        check_rules(Codecs.parse(experiment.wire.codecs).rules, type(experiment.build_method()), row.label)


@pytest.mark.parametrize("study", ["fedgkt/headline", "fedgems/table8"])
def test_committed_results_are_known(study):
    result = StudyResult.read(ROOT / "results" / f"{study.replace('/', '-')}-small.json")
    jobs = Study.load(ROOT / f"{study}.toml", scale="small").jobs()
    assert {run.digest for row in result.rows for run in row.runs} <= {job.digest for job in jobs}


@pytest.mark.parametrize("file", SMALL)
def test_a_small_row_stands_for_a_row_of_the_paper(file):
    paper, small = (StudyFile.load(ROOT / file, scale) for scale in (PAPER, "small"))
    assert [row.label for row in small.rows] == [row.label for row in paper.rows]
    for row, standing_for_it in zip(paper.rows, small.rows):
        assert standing_for_it.settings["method"]["name"] == row.settings["method"]["name"]
        assert standing_for_it.settings["rounds"] <= row.settings["rounds"]
    assert len(StudyFile.load(ROOT / file).title) > 10


def test_there_are_few_files_and_no_setting_is_written_many_times():
    files = [*ROOT.glob("*.toml"), *ROOT.glob("fed*/*.toml")]
    assert len(files) <= 70
    assert sum(len(path.read_text().splitlines()) for path in files) < 3000


def row_of(study: str, label: str) -> Experiment:
    return next(
        Experiment.from_dict(row.settings) for row in StudyFile.load(ROOT / f"{study}.toml").rows if row.label == label
    )


def small_rows(paper: str) -> list[tuple[str, Experiment]]:
    return [
        (f"{file}: {row.label}", Experiment.from_dict(row.settings))
        for file in SMALL
        if file.startswith(f"{paper}/")
        for row in StudyFile.load(ROOT / file, "small").rows
    ]


@pytest.mark.parametrize(
    ("label", "method", "models", "rounds", "partition"),
    [
        ("CIFAR-10, ResNet-56, IID, GKT", {"client_epochs": 1, "server_epochs": 20, "distill": "server-to-edge"},
         ("resnet8", "resnet55"), 200, "iid"),
        ("CIFAR-10, ResNet-110, non-IID, GKT", {"client_epochs": 1, "server_epochs": 40, "distill": "server-to-edge"},
         ("resnet8", "resnet109"), 200, "table"),
        ("CIFAR-100, ResNet-56, non-IID, GKT", {"server_epochs": 40, "distill": "both"},
         ("resnet8", "resnet55"), 200, "dirichlet"),
        ("CINIC-10, ResNet-110, non-IID, FedAvg", {"client_epochs": 20}, ("resnet110", None), 200, "dirichlet"),
        ("CIFAR-100, ResNet-8, Centralized", {"client_epochs": 1}, ("resnet8", None), 300, "iid"),
    ],
)  # fmt: skip
def test_table_1_of_fedgkt_has_the_papers_settings(label, method, models, rounds, partition):
    row = row_of("fedgkt/table1", label)
    assert method.items() <= row.method.items()
    assert (row.models.client, row.models.server) == models
    assert (row.rounds, row.data.clients, row.data.partition["name"]) == (rounds, 16, partition)
    assert row.data.augment == ("crop", "flip")
    assert (row.data.train, row.data.test) == (None, None)


@pytest.mark.parametrize(
    ("label", "optimizer"),
    [
        ("CIFAR-10, ResNet-56, IID, GKT", ("adam", 1e-3, 1e-4, 0.0, 256)),
        ("CIFAR-10, ResNet-56, non-IID, GKT", ("sgd", 5e-3, 0.0, 0.9, 256)),
        ("CIFAR-10, ResNet-56, non-IID, FedAvg", ("adam", 1e-3, 1e-4, 0.0, 64)),
        ("CIFAR-10, ResNet-56, Centralized", ("adam", 3e-3, 1e-4, 0.0, 256)),
    ],
)
def test_table_1_of_fedgkt_has_the_papers_optimisers(label, optimizer):
    row = row_of("fedgkt/table1", label)
    for own in (row.optimizer.client, row.optimizer.server) if "GKT" in label else (row.optimizer.client,):
        assert (own.name, own.lr, own.weight_decay, own.momentum, own.batch_size) == optimizer


def test_table_6_of_fedgkt_shrinks_to_what_validation_leaves():
    row = row_of("fedgkt/table1", "CIFAR-10, ResNet-56, non-IID, GKT")
    assert row.data.validation > 0
    assert row.data.partition == {"name": "table", "file": "fedgkt_table6", "scale": True}


def test_small_rows_of_a_study_of_fedgkt_share_one_optimiser():
    studies: dict[str, list[Experiment]] = {}
    for label, experiment in small_rows("fedgkt"):
        studies.setdefault(label.partition(":")[0], []).append(experiment)
    for rows in studies.values():
        assert all(row.optimizer == rows[0].optimizer for row in rows)
        assert rows[0].optimizer.client == rows[0].optimizer.server


@pytest.mark.parametrize(
    ("label", "method", "models", "rounds", "batch"),
    [
        ("FedGEMS", {"epsilon": 0.75, "client_epochs": 1, "public_epochs": 1, "server_epochs": 1},
         ("resnet11", "resnet56"), 200, 256),
        ("FedMD", {"client_epochs": 2, "public_epochs": 1}, ("resnet11", None), 200, 64),
        ("DS-FL", {"client_epochs": 1, "public_epochs": 1, "server_epochs": 2}, ("resnet11", None), 300, 64),
        ("Cronus", {"client_epochs": 1, "public_epochs": 1}, ("resnet11", None), 200, 64),
        ("FedDF", {"client_epochs": 40, "server_steps": 5 * 391}, ("resnet11", None), 100, 64),
        ("FedAvg", {"client_epochs": 20}, ("resnet11", None), 200, 64),
        ("FedGKT", {"client_epochs": 1, "server_epochs": 20}, ("resnet11", "resnet55"), 200, 256),
        ("Stand-Alone", {"client_epochs": 1, "server_epochs": 1}, ("resnet11", "resnet56"), 200, 256),
    ],
)  # fmt: skip
def test_table_2_of_fedgems_has_the_settings_of_table_13(label, method, models, rounds, batch):
    row = row_of("fedgems/table2", f"CIFAR-10, homo, {label}")
    assert method.items() <= row.method.items()
    assert (row.models.client, row.models.server) == models
    assert (row.rounds, row.data.clients, row.data.public) == (rounds, 16, 0.5)
    own = row.optimizer.client
    assert (own.name, own.lr, own.weight_decay, own.batch_size) == ("adam", 1e-3, 1e-4, batch)


def test_heterogeneous_clients_of_fedgems_are_those_of_table_11():
    row = row_of("fedgems/table2", "CIFAR-10, hetero, FedGEMS")
    blocks = ["1,1,1", "1,1,2", "1,2,1", "2,1,1", "1,2,2", "2,1,2", "2,2,1", "1,1,2"]
    assert list(row.models.client) == [f"resnet({three})" for three in blocks]
    assert row.data.partition == {"name": "dirichlet", "alpha": 0.5}


@pytest.mark.parametrize(
    ("study", "label", "method", "rounds", "server", "partition"),
    [
        ("table1", "MNIST, FedZKT", {"client_epochs": 5, "iterations": 200, "loss": "sl"}, 50, "cnn", "iid"),
        ("table1", "CIFAR-10, FedZKT", {"client_epochs": 10, "iterations": 500}, 100, "resnet18", "iid"),
        ("table2", "5 classes per device, KL-divergence", {"iterations": 500, "loss": "kl"}, 100, "resnet18",
         "classes_per_client"),
        ("table4", "Dirichlet(0.5), no anchor", {"iterations": 500, "anchor": 0.0}, 100, "resnet18", "dirichlet"),
        ("table4", "Dirichlet(0.5), anchor", {"iterations": 500, "anchor": 1.0}, 100, "resnet18", "dirichlet"),
        ("figure6", "MNIST, 20 % active", {"iterations": 200}, 50, "cnn", "iid"),
    ],
)  # fmt: skip
def test_fedzkt_has_the_papers_settings(study, label, method, rounds, server, partition):
    row = row_of(f"fedzkt/{study}", label)
    assert method.items() <= row.method.items()
    assert (row.rounds, row.data.clients, row.data.partition["name"]) == (rounds, 10, partition)
    assert (row.models.server, row.models.initial, len(row.models.client)) == (server, "glorot", 5)
    for own in (row.optimizer.client, row.optimizer.server):
        assert (own.name, own.lr, own.weight_decay, own.momentum, own.batch_size) == ("sgd", 0.01, 5e-4, 0.0, 256)
    assert (row.data.train, row.data.test) == (None, None)


@pytest.mark.parametrize("scale", [PAPER, "small"])
def test_fedzkt_has_an_anchor_where_data_are_not_iid(scale):
    """Equation 9 is for these; Algorithm 2 has none."""
    files = [file for file in STUDIES if file.startswith("fedzkt/") and file != "fedzkt/table4.toml"]
    rows = [Experiment.from_dict(row.settings) for file in files for row in StudyFile.load(ROOT / file, scale).rows]
    anchors = {(row.data.partition["name"] == "iid", row.method["anchor"]) for row in rows if "anchor" in row.method}
    assert anchors == {(True, 0.0), (False, 1.0)}


load_once = functools.cache(data.load)
FITTED = set()  # methods with their models and data: rows that differ in how data are dealt need not build them again


@pytest.mark.parametrize(
    ("file", "scale"), [(file, scale) for file, scale in SCALES if scale not in FULL_SIZE or "/" not in file]
)
def test_small_rows_fit_their_data_and_models(file, scale, monkeypatch):
    monkeypatch.setattr(data, "load", load_once)
    missing = set()
    study = StudyFile.load(ROOT / file, scale)
    for row in study.rows:
        few = min(320, row.settings.get("data", {}).get("train", 320))  # quick to decode
        if row.settings["data"].get("partition", {}).get("counts"):
            few = row.settings["data"]["train"]  # as many as are dealt
        whole = row.settings["data"]["name"].partition("halved:")[2]  # as quick to decode as few images are
        experiment = read(study, row, {"data.train": few, "data.test": 20, **({"data.name": whole} if whole else {})})
        settings = experiment.data
        what = (str(experiment.method), experiment.models, settings.name, settings.public)
        sets = {settings.name, getattr(settings.public, "name", settings.name)} - {"digits"}
        absent = {
            name for name in sets if not (Path(os.environ.get("CATCHMENT_DATA", "")) / name / "train.parquet").exists()
        }
        missing |= absent
        if not absent and what not in FITTED:
            experiment.build_world()
            FITTED.add(what)
    if missing:
        pytest.skip(f"rows need CATCHMENT_DATA with {', '.join(sorted(missing))}")
