"""FedGKT: equations by hand, alignment by sample id, and what travels."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from worlds import experiment

import catchment
from catchment.client import Client, Versions, Workbench, serve
from catchment.data import Batch
from catchment.errors import ExperimentError, ModelError
from catchment.losses import distillation
from catchment.message import Request
from catchment.methods.fedgkt import FedGKT, Feedback, Knowledge, State
from catchment.server import Server

LOG3 = math.log(3)


def test_distillation_by_hand():
    # Teacher (3/4, 1/4), student (1/2, 1/2) at T = 1: KL = 3/4 log(3/2) + 1/4 log(1/2).
    student, teacher = torch.zeros(1, 2), torch.tensor([[LOG3, 0.0]])
    expected = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert distillation(student, teacher, 1.0).item() == pytest.approx(expected)
    # Twice the logits at T = 2 are the same softmax; the loss is scaled by T^2.
    assert distillation(student, 2 * teacher, 2.0).item() == pytest.approx(4 * expected)
    # A mean over the batch: an equal pair halves it.
    both = distillation(torch.zeros(2, 2), torch.cat([teacher, torch.zeros(1, 2)]), 1.0)
    assert both.item() == pytest.approx(expected / 2)


def test_the_clients_loss_matches_teacher_rows_by_id_under_any_order():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(2, 2, bias=False))
    ids = torch.tensor([3, 8, 20])
    teacher = torch.tensor([[4.0, 0.0], [0.0, 4.0], [1.0, 1.0]])
    loss = FedGKT(temperature=2.0, alpha=0.5).l_c(model, Feedback(teacher, ids))
    images = torch.arange(6.0).reshape(3, 1, 1, 2)
    labels = torch.tensor([0, 1, 0])
    for order in ([0, 1, 2], [2, 0, 1], [1]):
        rows = torch.tensor(order)
        logits = model(images[rows])
        by_hand = F.cross_entropy(logits, labels[rows]) + 0.5 * distillation(logits, teacher[rows], 2.0)
        assert loss(Batch(images[rows], labels[rows], ids[rows])).item() == pytest.approx(by_hand.item())


def test_no_feedback_or_no_distillation_is_plain_cross_entropy():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(2, 2))
    batch = Batch(torch.ones(2, 1, 1, 2), torch.tensor([0, 1]), torch.tensor([5, 6]))
    plain = F.cross_entropy(model(batch.images), batch.labels).item()
    assert FedGKT().l_c(model, Feedback())(batch).item() == pytest.approx(plain)
    told = Feedback(torch.eye(2) * 9, torch.tensor([5, 6]))
    assert FedGKT(distill="none").l_c(model, told)(batch).item() == pytest.approx(plain)
    assert FedGKT().l_c(model, told)(batch).item() > plain


def gkt(**options):
    e = experiment("fedgkt", method={"name": "fedgkt", **options}, data={"augment": ["crop", "flip"]})
    return e.build_world()


def local_training(world, client=0, feedback=None, round_=1, versions=None):
    request = Request(client, "local_training", round_, 0, round_, (feedback or Feedback()).pack())
    response = serve(world, request, versions or Versions(), Workbench())
    assert response.error == ""
    return Knowledge.unpack(response.body)


def test_an_upload_is_the_extractors_features_of_the_samples_it_names():
    world = gkt(augment_features=False)
    versions = Versions()
    upload = local_training(world, client=2, versions=versions)
    samples = world.private(2)
    assert torch.equal(upload.ids, samples.ids)
    assert torch.equal(upload.labels, samples.targets)
    client = Client(world, Request(2, "test", 1, 0, 9, Feedback().pack()), {}, Workbench())
    model = client.model(versions.newest(9)["model"]).eval()
    with torch.no_grad():
        features = model.extractor(world.normalise(samples.images[samples.index]))
        logits = model.classifier(features)
    assert torch.allclose(upload.features, features, atol=1e-5)
    assert torch.allclose(upload.logits, logits, atol=1e-4)


def test_the_servers_logits_go_back_to_the_samples_they_were_computed_from():
    """A model that copies a mark in the features to its logits shows every mix-up of rows or clients."""

    class Echo(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, features):
            mark = features.flatten(1)[:, :1]
            return torch.cat([mark, self.weight.expand(len(mark), 1)], 1)

    world = gkt(server_epochs=3)
    server = Server(world)
    echo = Echo()
    state = State(echo, torch.optim.SGD(echo.parameters(), lr=0.0))
    uploads = {
        k: Knowledge(
            features=(ids + 1000.0 * k).reshape(-1, 1, 1, 1),
            logits=torch.zeros(len(ids), 2),
            labels=torch.zeros(len(ids), dtype=torch.int64),
            ids=ids,
        )
        for k, ids in ((0, torch.arange(50)), (3, torch.arange(7, 90)))
    }
    FedGKT(server_epochs=3).train_server(server, state, uploads)
    for k, upload in uploads.items():
        assert torch.equal(state.feedback[k]["ids"], upload.ids)
        assert torch.equal(state.feedback[k]["logits"][:, 0], upload.ids + 1000.0 * k)


def test_feedback_changes_what_a_client_learns():
    world = gkt()
    ids = world.private(0).ids
    confident = Feedback(torch.eye(10)[torch.full((len(ids),), 3)] * 30, ids)
    told, alone = local_training(world, feedback=confident), local_training(world)
    assert told.logits.softmax(1)[:, 3].mean() > alone.logits.softmax(1)[:, 3].mean() + 0.05


def test_no_weights_of_a_client_ever_travel(tmp_path):
    catchment.run(experiment("fedgkt"), out=tmp_path / "run")
    entries = [
        e for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines() for e in json.loads(line)["entries"]
    ]
    sent = {name for e in entries if e["direction"] == "up" for name in e["tensors"]}
    assert sent == {"features", "logits", "labels", "ids", "(framing)"}
    received = {name.split("/")[0] for e in entries if e["direction"] == "down" for name in e["tensors"]}
    assert received == {"logits", "ids", "weights", "(framing)"}
    assert all(e["purpose"] == "evaluation" for e in entries if any(n.startswith("weights/") for n in e["tensors"]))


def test_bytes_of_a_round_are_equation_13_and_what_it_leaves_out(tmp_path):
    e = experiment("fedgkt", rounds=2, participation={"fraction": 1.0})
    catchment.run(e, out=tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()]

    def total(direction, tensor):
        return sum(
            len(entry["clients"]) * entry["tensors"].get(tensor, 0)
            for entry in rows[1]["entries"]
            if entry["direction"] == direction and entry["purpose"] == "training"
        )

    samples = 300
    features = 16 * 4 * 4  # of the cnn on 8 x 8 images
    assert total("up", "features") + total("down", "logits") == samples * (features + 10) * 4
    assert total("up", "logits") == samples * 10 * 4
    assert total("up", "labels") == total("up", "ids") == samples * 8


def test_asynchronous_clients_run_ahead_of_slow_ones():
    slow = {"profile": ["fast", "slow"], "profiles": {"fast": {"latency": 0.1}, "slow": {"latency": 5.0}}}
    options = {"name": "fedgkt", "asynchronous": True}
    ahead = experiment("fedgkt", method=options, data={"clients": 4}, devices=slow, rounds=4)
    waiting = experiment("fedgkt", data={"clients": 4}, devices=slow, rounds=4, participation={"fraction": 1.0})
    asynchronous, synchronous = catchment.run(ahead), catchment.run(waiting)
    assert synchronous["virtual_seconds"] == pytest.approx(40.0)
    assert asynchronous["virtual_seconds"] < synchronous["virtual_seconds"] / 2


def test_wrong_settings_are_refused_before_training():
    with pytest.raises(ExperimentError, match="temperature is 0"):
        FedGKT(temperature=0)
    with pytest.raises(ModelError, match=r"fedgkt trains a server half on features; set models\.server"):
        FedGKT().check(replace(gkt(), server_model=None))
    with pytest.raises(ModelError, match="do not fit"):
        experiment("fedgkt", models={"server": "resnet20"}).build_world()
