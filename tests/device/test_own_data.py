"""Data that only the devices have: a server with a test set, clients with a folder each."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake import Fake
from marks import quick
from worlds import HERE, METHODS

import catchment
from catchment import Experiment
from catchment.cli.experiments import clients_table
from catchment.client.state import Versions
from catchment.core.client import Client
from catchment.core.server import Server
from catchment.core.worker import WorkerCache
from catchment.data import Form, load, own_division
from catchment.errors import DataError, ExperimentError, UserError
from catchment.exchange.message import Message
from catchment.exchange.request import Request
from catchment.report import write_report
from catchment.runs.directory import begin
from catchment.runs.loop import run_rounds
from catchment.runs.reading import RunFiles
from catchment.runtimes.torch import serve

SIZES = (70, 40, 90)
DIVIDED = [name for name, settings in METHODS.items() if "public" in settings.get("data", {})]  # a share of all samples
LIARS = ("fedgkt, poisoned",)  # of five clients, and here are three


def save(file: Path, images: Any, labels: Any, **more: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, images=np.asarray(images), labels=np.asarray(labels), **more)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits as `whole`, and the same samples with a `server` and three devices: all test on the same."""
    root = tmp_path_factory.mktemp("own")
    digits = load("digits", None, train=sum(SIZES), test=60, seed=0)
    images, labels = digits.train.images[digits.train.index][:, 0].numpy() * 15, digits.train.targets.numpy()
    test = digits.test.images[digits.test.index][:, 0].numpy() * 15, digits.test.targets.numpy()
    save(root / "whole/train.npz", images, labels)
    start = 0
    for name in ("whole", "server", "0", "1", "2"):
        save(root / name / "test.npz", *test)
    for client, size in enumerate(SIZES):
        save(root / str(client) / "train.npz", images[start : start + size], labels[start : start + size])
        start += size
    return root


def build(name: str, data: dict, **more: Any) -> Experiment:
    """A small experiment with a method of the table of worlds on other data, without its validation samples."""
    table: dict[str, Any] = {"rounds": 2, "workers": 1, "path": HERE, "models": {"client": "cnn"}, "seed": 5}
    validated = "validation" in METHODS[name].get("data", {})
    own = {key: value for key, value in METHODS[name].items() if key != "optimizer" or not validated}
    return Experiment.from_dict({**table, **own, **more, "data": {"clients": 3, **data}})


def over_a_network(name: str, folder: Path, **more: Any) -> Experiment:
    """The experiment of a server whose clients have data of their own; its transport is that of `run` below."""
    e = build(name, {"name": str(folder), "partition": {"name": "own"}}, **more)
    return dataclasses.replace(e, engine="flower")


class Devices:
    """Clients with worlds of their own: each knows the experiment, the form of the data, and its folder."""

    def __init__(self, e: Experiment, form: Form, folders: list[Path]) -> None:
        told = Form.from_dict(json.loads(json.dumps(form.to_dict())))
        self.worlds = [e.build_world(own_division(folder, told, k, len(folders))) for k, folder in enumerate(folders)]
        self.versions = [Versions() for _ in folders]

    def answer(self, request):
        k = request.client
        return serve(self.worlds[k], request, self.versions[k] if self.worlds[k].remembers else None, WorkerCache())


def run(e: Experiment, folders: list[Path], out: Path) -> dict:
    devices = Devices(e, e.build_world().data.dataset.form, folders)
    return run_rounds(e, e.build_world(), Fake(len(folders), devices.answer), begin(e, out))


ASYNCHRONOUS = (
    "fedgkt, asynchronous",
    "fedgkt, asynchronous, sign-flip",
)  # what is in flight at the end is booked by who had it come
QUICK = ("fedavg", "fedgkt", "oneshot")
BOXES = "fedkgf, detection"  # these folders hold digits, without boxes
TRIED = quick(QUICK, [name for name in METHODS if name not in (*DIVIDED, *LIARS, BOXES)])


@pytest.mark.parametrize("name", TRIED)
def test_own_data_give_what_the_same_data_give_when_they_are_dealt(name: str, folders: Path, tmp_path: Path) -> None:
    in_order = {"name": "worlds_by_hand:in_order", "sizes": list(SIZES)}
    expected = catchment.run(build(name, {"name": str(folders / "whole"), "partition": in_order}))
    e = over_a_network(name, folders / "server")
    found = run(e, [folders / str(k) for k in range(3)], tmp_path / "run")
    assert [found[what] for what in ("refused", "failed", "lost")] == [0, 0, 0]
    assert found["accuracy"] == expected["accuracy"]
    if name not in ASYNCHRONOUS:
        assert found["bytes"] == expected["bytes"]
    assert found["data"] == {
        "name": str(folders / "server"), "clients": 3, "train": None, "smallest_client": None, "largest_client": None,
        "test": 60, "public": 0, "classes": [str(digit) for digit in range(10)],
    }  # fmt: skip
    assert set(found["costs"]["peak_memory"].values()) == {None}


def test_a_report_of_such_a_run_says_what_it_does_not_know(folders: Path, tmp_path: Path) -> None:
    e = over_a_network("fedgkt", folders / "server", rounds=1)
    run(e, [folders / str(k) for k in range(3)], tmp_path / "run")
    page = write_report([RunFiles.read(tmp_path / "run")], tmp_path / "report.html").read_text()
    assert "not measured" in page
    assert "own" in page
    table = clients_table(e.build_world())
    assert [list(column.cells) for column in table.columns][:3] == [["3"], ["their own"], ["their own"]]


@pytest.mark.parametrize("name", ["fedgkt", "standalone"])
def test_a_client_that_measures_itself_needs_a_test_set(name: str, folders: Path, tmp_path: Path) -> None:
    (tmp_path / "train.npz").write_bytes((folders / "0/train.npz").read_bytes())
    e = over_a_network(name, folders / "server")
    division = own_division(tmp_path, e.build_world().data.dataset.form, 0, 3)
    with pytest.raises(DataError, match=rf"clients of {name} measure their models themselves; put a test split"):
        e.build_world(division)
    other = over_a_network("fedavg", folders / "server").build_world(division)
    client = Client(other, Request(0, "local_training", 1, 0, 0, Message({})), {}, WorkerCache())
    assert len(client.train) == SIZES[0]
    with pytest.raises(DataError, match="client 0 has no samples to test on; put a test split"):
        client.evaluate(client.model())


# ---- what the server of FedGKT accepts


def test_the_server_learns_the_ids_of_a_client_from_its_first_upload(folders: Path) -> None:
    world = over_a_network("fedgkt", folders / "server").build_world()
    store = world.method.init(Server(world)).store

    def refusal(*ids: int) -> str:
        return store.refusal(world, 1, torch.tensor(ids, dtype=torch.int64))

    for first in ([3, 3], [5, 2]):
        assert refusal(*first) == "2 ids came that are not ascending"
    assert not refusal()
    assert not refusal(2, 5, 9)
    store.put(1, torch.tensor([2, 5, 9]), torch.zeros(3, 16, 4, 4), torch.zeros(3, dtype=torch.int64))
    assert not refusal(2, 5, 9)
    for other in ([2, 5, 8], [5], [2, 5, 9, 11]):
        assert refusal(*other) == f"{len(other)} ids came that are not the 3 of client 1"


# ---- what is refused


def test_the_engine_without_a_network_refuses_and_writes_nothing(folders: Path, tmp_path: Path) -> None:
    e = dataclasses.replace(over_a_network("fedavg", folders / "server"), engine="inprocess")
    with pytest.raises(ExperimentError, match="only clients that join over the network have data of their own; use"):
        catchment.run(e, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("setting", [{"train": 100}, {"public": 0.5}])
def test_settings_about_dealt_samples_are_refused(setting: dict) -> None:
    with pytest.raises(ExperimentError, match=rf"data\.{next(iter(setting))} is about samples that are dealt"):
        Experiment.from_dict({"data": {"partition": {"name": "own"}, **setting}})


def test_wrong_classes_are_refused(folders: Path) -> None:
    with pytest.raises(ExperimentError, match=r"data\.classes is \['a', 'a'\]; different names"):
        Experiment.from_dict({"data": {"classes": ["a", "a"]}})
    with pytest.raises(ExperimentError, match=r"data\.classes is \[\]"):
        Experiment.from_dict({"data": {"classes": []}})
    with pytest.raises(DataError, match=r'data\.classes is a, b, but data set "digits" has its own: 0, 1'):
        Experiment.from_dict({"data": {"classes": ["a", "b"]}}).build_world()


@pytest.mark.parametrize("client", [-1, 3])
def test_a_client_that_does_not_exist_is_refused(folders: Path, client: int) -> None:
    form = load(str(folders / "server"), None, train=None, test=None, seed=0, own=True).form
    with pytest.raises(UserError, match=rf"client {client} does not exist; 3 clients are numbered 0 to 2"):
        own_division(folders / "0", form, client, 3)
