"""FedGKT: equations by hand, alignment by sample id, and what travels."""

from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors.torch import save_file
from worlds import experiment

import catchment
from catchment.client.state import Versions
from catchment.core.client import Client
from catchment.core.intake import Reply
from catchment.core.server import Server
from catchment.core.spool import Spool
from catchment.core.worker import WorkerCache
from catchment.errors import ExperimentError, ModelError
from catchment.exchange.request import Request
from catchment.families.features import FeatureStore
from catchment.learning.losses import distillation
from catchment.methods.fedgkt import FedGKT, Feedback, Knowledge, State, loss
from catchment.reading import read_table
from catchment.report import write_report
from catchment.runs.reading import RunFiles
from catchment.runtimes.torch import serve

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


def test_the_loss_of_both_sides_by_hand():
    """Student (1/2, 1/2), teacher (3/4, 1/4) at T = 2."""
    student, label, teacher = torch.zeros(1, 2), torch.tensor([0]), torch.tensor([[2 * LOG3, 0.0]])
    divergence = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    numbers = {"alpha": 0.5, "temperature": 2.0}
    assert loss(student, label, teacher, **numbers).item() == pytest.approx(math.log(2) + 0.5 * 4 * divergence)
    assert loss(student, label, **numbers).item() == pytest.approx(math.log(2))


class Half(torch.nn.Module):
    """A linear server model that starts from zero, and whose logits in training are shifted by (8, 8)."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 2, bias=False)
        torch.nn.init.zeros_(self.layer.weight)

    def forward(self, features):
        return self.layer(features.flatten(1)) + 8.0 * self.training


def one_step(method):
    """The logits of a sample's feature, 1, after the server trained on an upload, and what it answers; rate 1.

    The sample is of class 0, for which the client predicts (3/4, 1/4) at T = 2.
    """
    with Spool() as spool:
        half = Half()
        state = State(half, torch.optim.SGD(half.parameters(), lr=1.0), FeatureStore({"1x1x1": spool}))
        z_k, y_k, ids = torch.tensor([[2 * LOG3, 0.0]]), torch.tensor([0]), torch.tensor([5])
        method.keep(state, Reply(0, 1, Knowledge(torch.ones(1, 1, 1, 1), z_k, y_k, ids)))
        method.train_server(Server(gkt()), state, [0])
        return half.layer.weight.flatten().tolist(), state.z_s[0].tolist()


def test_the_servers_step():
    """Cross-entropy moves logits by 1/2. T^2 KL at T = 2 has the gradient 2 (1/2 - 3/4)."""
    assert one_step(FedGKT(temperature=2.0, alpha=0.5))[0] == pytest.approx([0.75, -0.75])
    as_printed = FedGKT(temperature=2.0, alpha=0.5 / 4)  # without the factor T squared
    assert one_step(as_printed)[0] == pytest.approx([0.5625, -0.5625])
    assert one_step(FedGKT(distill="server-to-edge"))[0] == pytest.approx([0.5, -0.5])


def test_answers_are_those_before_the_step():
    """When all weights are 0 and the model trains; after it they would be (1/2, -1/2)."""
    assert one_step(FedGKT(distill="server-to-edge"))[1] == [[8.0, 8.0]]


def gkt(**options):
    e = experiment("fedgkt", method={"name": "fedgkt", **options}, data={"augment": ["crop", "flip"]})
    return e.build_world()


def local_training(world, client=0, feedback=None, round_=1, versions=None):
    request = Request(client, "local_training", round_, 0, round_, (feedback or Feedback()).pack())
    response = serve(world, request, versions or Versions(), WorkerCache())
    assert response.error == ""
    return Knowledge.unpack(response.body)


def test_an_upload_is_the_extractors_features_of_the_samples_it_names():
    world = experiment("fedgkt").build_world()  # without augmentation
    versions = Versions()
    upload = local_training(world, client=2, versions=versions)
    samples = world.private(2)
    assert torch.equal(upload.ids, samples.ids)
    assert torch.equal(upload.labels, samples.targets)
    client = Client(world, Request(2, "test", 1, 0, 9, Feedback().pack()), {}, WorkerCache())
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

    method, server, echo = FedGKT(server_epochs=3), Server(gkt()), Echo()
    with Spool() as spool:
        state = State(echo, torch.optim.SGD(echo.parameters(), lr=0.0), FeatureStore({"1x1x1": spool}))
        uploads = {0: torch.arange(50), 3: torch.arange(7, 90)}
        for k, ids in uploads.items():
            marks = (ids + 1000.0 * k).reshape(-1, 1, 1, 1)
            upload = Knowledge(marks, torch.zeros(len(ids), 2), torch.zeros_like(ids), ids)
            method.keep(state, Reply(k, 1, upload))
        method.train_server(server, state, [0, 3])
        for k, ids in uploads.items():
            assert torch.equal(state.z_s[k][:, 0], ids + 1000.0 * k)


def test_replay_trains_again_on_as_much_as_asked_of_what_others_sent():
    world = gkt(replay=0.5, server_epochs=1)
    server = Server(world)
    state = world.method.init(server)
    for k in range(3):
        world.method.keep(state, Reply(k, 1, good_upload(world, k)))
    n = [len(world.private(k)) for k in range(3)]
    ids = torch.cat([batch.ids for batch in world.method.epochs(server, state, [1], [0, 2])])
    assert sorted(ids[ids < n[1]].tolist()) == list(range(n[1]))  # all that came
    again = ids[ids >= n[1]].tolist()  # and some of what was there
    assert len(again) == len(set(again)) == round(n[1] / 2)
    before = state.z_s[0]
    world.method.train_server(server, state, [1])
    fresh = (state.z_s[0] != before).any(1)
    assert 0 < int(fresh.sum()) < n[0]
    assert set(state.store.files["16x4x4"].keys()) == {0, 1, 2}


def test_feedback_changes_what_a_client_learns():
    world = gkt()
    ids = world.private(0).ids
    confident = Feedback(torch.eye(10)[torch.full((len(ids),), 3)] * 30, ids)
    told, alone = local_training(world, feedback=confident), local_training(world)
    assert told.logits.softmax(1)[:, 3].mean() > alone.logits.softmax(1)[:, 3].mean() + 0.05


def test_extractors_learn_at_their_share_of_the_rate_and_heads_at_all_of_it():
    """A step of SGD changes an extractor in proportion to its share: a hundredth by default."""
    changes = {}
    for options in ({}, {"extractor_rate": 1.0}):
        table = {"train": 8, "test": 4, "clients": 1, "partition": {"name": "iid"}}
        sgd = {"client": {"name": "sgd", "lr": 0.001, "batch_size": 8, "momentum": 0.0}}
        world = experiment("fedgkt", method={"name": "fedgkt", **options}, data=table, optimizer=sgd).build_world()
        client = Client(world, Request(0, "local_training", 1, 0, 1, Feedback().pack()), {}, WorkerCache())
        world.method.begin(client, None)
        before = {name: tensor.clone() for name, tensor in client.state["model"].items()}
        world.method.local_training(client, Feedback())
        after = client.state["model"]
        moved = {part: sum(float((after[n] - before[n]).norm()) for n in before if n.startswith(part))
                 for part in ("extractor", "classifier")}  # fmt: skip
        changes[options.get("extractor_rate", FedGKT().extractor_rate)] = moved
    assert changes[0.01]["classifier"] == pytest.approx(changes[1.0]["classifier"], rel=1e-4) != 0
    assert changes[0.01]["extractor"] == pytest.approx(0.01 * changes[1.0]["extractor"], rel=0.02)


def test_no_weights_of_a_client_ever_travel(tmp_path):
    catchment.run(experiment("fedgkt"), out=tmp_path / "run")
    entries = [
        e for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines() for e in json.loads(line)["entries"]
    ]
    sent = {name for e in entries if e["direction"] == "up" for name in e["tensors"]}
    of_the_test = {"numbers", "rates"}
    assert sent == {"features", "logits", "labels", "ids", "(framing)"} | of_the_test
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


def test_two_uploads_of_one_client_in_one_asynchronous_round_have_orders_of_their_own():
    def orders(**options):
        world = gkt(**options)
        server = Server(world)
        server.begin_round(1)
        state = world.method.init(server)
        found = []
        for turn in (1, 2):
            state.turns[0] = turn
            world.method.keep(state, Reply(0, 1, good_upload(world, 0)))
            found.append(torch.cat([batch.ids for batch in world.method.epochs(server, state, [0], [])]))
        return found

    first, second = orders(asynchronous=True)
    assert not torch.equal(first, second)
    assert torch.equal(first.sort().values, second.sort().values)
    first, second = orders()  # a round has one upload of each client, and the round is in the seed
    assert torch.equal(first, second)


def test_wrong_settings_are_refused_before_training():
    with pytest.raises(ExperimentError, match="temperature is 0"):
        read_table(FedGKT, {"temperature": 0})
    with pytest.raises(ExperimentError, match="replay is -1"):
        read_table(FedGKT, {"replay": -1})
    with pytest.raises(ModelError, match="do not fit"):
        experiment("fedgkt", models={"server": "resnet20"}).build_world()


# ---- what the server does not accept ----------------------------------------------------------------------------


def good_upload(world, client):
    ids = world.private(client).ids
    n = len(ids)
    return Knowledge(torch.rand(n, 16, 4, 4), torch.rand(n, 10), world.private(client).targets, ids)


def test_features_go_once_they_are_trained_on():
    world = gkt()
    server = Server(world)
    state = world.method.init(server)
    world.method.keep(state, Reply(0, 1, good_upload(world, 0)))
    world.method.train_server(server, state, [0])
    assert not len(state.store.files["16x4x4"])
    assert len(world.method.feedback(server, state, 0).logits) == len(world.private(0))


def test_a_refused_upload_is_in_the_record_and_the_round_goes_on(tmp_path):
    e = experiment("fedgkt", method={"name": "models_of_users:OneLies"}, participation={"fraction": 1.0})
    result = catchment.run(e, out=tmp_path / "run")
    assert result["refused"] == 3
    events = [
        e for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines() for e in json.loads(line)["events"]
    ]
    assert {(e["what"], e["client"], e["handler"]) for e in events} == {("refused", 2, "local_training")}
    assert all("features has numbers from nan to nan" in e["why"] for e in events)
    write_report([RunFiles.read(tmp_path / "run")], tmp_path / "report.html")
    assert "features has numbers from nan to nan" in (tmp_path / "report.html").read_text()


# ---- start ------------------------------------------------------------------------------------------------------


def test_pretrained_weights_reach_every_client_by_message_alone(tmp_path):
    whole = experiment("centralized", models={"client": "cnn"}, rounds=1)
    catchment.run(whole, out=tmp_path / "central")
    given = catchment.Run(tmp_path / "central").model().state_dict()
    save_file({name: tensor.contiguous() for name, tensor in given.items()}, tmp_path / "cnn.safetensors")
    still = {"client": {"name": "sgd", "lr": 1e-12}}
    models = {"client": "cnn", "weights": str(tmp_path / "cnn.safetensors")}
    e = experiment("fedgkt", rounds=1, optimizer=still, models=models)
    catchment.run(e, out=tmp_path / "run")
    run = catchment.Run(tmp_path / "run")
    for client in range(5):  # those of the round, and those that were not asked
        weights = run.client_model(client).extractor.state_dict()
        for name, tensor in weights.items():
            if "running" not in name:
                assert torch.allclose(tensor, given[f"extractor.{name}"], atol=1e-6), (client, name)
    world = e.build_world()
    device = e.build_world(world.data)  # as a device has it: without the file
    assert not device.weights
    state = world.method.init(server := Server(world))
    server.begin_round(1)
    versions = Versions()
    local_training(device, 0, world.method.feedback(server, state, 0), versions=versions)
    kept = versions.newest(9)["model"]
    assert all(torch.allclose(kept[n], t, atol=1e-6) for n, t in given.items() if "running" not in n and t.ndim)


@pytest.mark.parametrize("own", [False, True])
def test_clients_begin_with_one_stem_or_with_their_own(own, tmp_path):
    """At a rate of next to nothing, what clients have after a round is what they began with, but for statistics."""
    still = {"name": "sgd", "lr": 1e-30, "batch_size": 16}
    method = {"name": "fedgkt", "own_stems": own}
    settings = experiment("fedgkt", method=method, optimizer={"client": still, "server": still}, rounds=1,
                          participation={"fraction": 0.4}, evaluation={"average": 0.0})  # fmt: skip
    catchment.run(settings, tmp_path / "run")
    run = catchment.Run(tmp_path / "run")
    convolutions = [
        next(part.weight for part in run.client_model(client).modules() if isinstance(part, torch.nn.Conv2d))
        for client in range(5)  # two took part; the others would begin like that
    ]
    pairs = [torch.equal(one, two) for i, one in enumerate(convolutions) for two in convolutions[:i]]
    assert pairs == [not own] * 10


# ---- asynchronous -----------------------------------------------------------------------------------------------


def test_a_device_that_never_answers_does_not_stop_the_run():
    never = {"profile": ["dead", "fast"], "profiles": {"fast": {"latency": 0.1}, "dead": {"latency": 1e12}}}
    options = {"name": "fedgkt", "asynchronous": True}
    result = catchment.run(experiment("fedgkt", method=options, data={"clients": 4}, devices=never, rounds=4))
    assert result["virtual_seconds"] < 10


@pytest.mark.parametrize("options", [{}, {"replay": 1.0}, {"asynchronous": True}], ids=str)
def test_a_client_without_samples_sends_none_and_nobody_is_blamed(options, tmp_path):
    (tmp_path / "dealt.py").write_text("def dealt(clients):\n    return [range(9), [], range(9, 20)]\n")
    few = {"clients": 3, "train": 20, "test": 10, "partition": {"name": "dealt:dealt"}}
    events, method = [], {"name": "fedgkt", **options}
    settings = {"path": str(tmp_path), "data": few, "method": method, "participation": {"fraction": 1.0}, "rounds": 2}
    e = experiment("fedgkt", **settings)
    catchment.run(e, tmp_path / "run", observe=lambda record: events.extend(record["events"]))
    assert events == []
    assert {k: len(z) for k, z in catchment.Run(tmp_path / "run", trust=True)._state.z_k.items()} == {0: 9, 1: 0, 2: 11}


def test_features_need_not_be_maps():
    e = experiment("fedgkt", models={"client": "models_of_users:flat_edge", "server": "models_of_users:flat_half"})
    assert catchment.run(e)["accuracy"] > 0.2
