"""FedGKT: equations by hand, alignment by sample id, and what travels."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from worlds import experiment

import catchment
from catchment.core.client import Client
from catchment.core.replies import Reply
from catchment.core.serve import serve
from catchment.core.server import Server
from catchment.core.spool import Spool
from catchment.core.versions import Versions
from catchment.core.worker import WorkerCache
from catchment.data import Batch
from catchment.errors import ExperimentError, ModelError
from catchment.exchange.request import Request
from catchment.families.features import FeatureStore, changes
from catchment.families.stems import trained_stem
from catchment.learning.losses import distillation
from catchment.methods.fedgkt import FedGKT, Feedback, Knowledge, State
from catchment.report import write_report
from catchment.runs.reading import RunFiles

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


def test_the_factor_of_distillation_can_be_left_out():
    """Student (1/2, 1/2), teacher (3/4, 1/4) at T = 2; equation 7 has no T squared."""
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(2, 2, bias=False))
    torch.nn.init.zeros_(model[1].weight)
    batch = Batch(torch.ones(1, 1, 1, 2), torch.tensor([0]), torch.tensor([5]))
    told = Feedback(torch.tensor([[2 * LOG3, 0.0]]), torch.tensor([5]))
    divergence = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    for squared, factor in ((True, 4), (False, 1)):
        loss = FedGKT(temperature=2.0, alpha=0.5, squared_temperature=squared).l_c(model, told)(batch)
        assert loss.item() == pytest.approx(math.log(2) + 0.5 * factor * divergence)


class Half(torch.nn.Module):
    """A linear server model that starts from zero, and whose logits in training are shifted by (8, 8)."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 2, bias=False)
        torch.nn.init.zeros_(self.layer.weight)

    def forward(self, features):
        return self.layer(features.flatten(1)) + 8.0 * self.training


def one_step(method, clients=(0,), turns=None):
    """The logits of the samples' feature, 1, after the server trained on uploads, and what it answers; rate 1.

    Each client has a sample of class 0 for which it predicts (3/4, 1/4) at T = 2.
    """
    with Spool() as spool:
        store, half = FeatureStore({"1x1x1": spool}), Half()
        state = State(half, torch.optim.SGD(half.parameters(), lr=1.0), store, turns=turns or {})
        for k in range(3):
            upload = (torch.ones(1, 1, 1, 1), torch.tensor([0]), torch.tensor([[2 * LOG3, 0.0]]))
            store.put(k, torch.tensor([k]), *upload, turn=1)
        server = Server(gkt())
        method.train_server(server, state, list(clients))
        return half.layer.weight.flatten().tolist(), [store.answers[k].flatten().tolist() for k in clients]


def test_the_servers_step_with_and_without_the_factor():
    """Cross-entropy moves logits by 1/2. T^2 KL at T = 2 has the gradient 2 (1/2 - 3/4), without the factor 1/8."""
    assert one_step(FedGKT(temperature=2.0, alpha=0.5))[0] == pytest.approx([0.75, -0.75])
    as_printed = FedGKT(temperature=2.0, alpha=0.5, squared_temperature=False)
    assert one_step(as_printed)[0] == pytest.approx([0.5625, -0.5625])


@pytest.mark.parametrize(
    ("rarity", "client", "weight"),
    [
        # three clients were asked 4, 1 and 1 times, 2 times in the mean
        (1.0, 0, 1 / 2),
        (1.0, 1, 2.0),
        (0.5, 1, math.sqrt(2)),
        (0.0, 1, 1.0),
        (9.0, 1, 10.0),  # not 512
    ],
)
def test_an_upload_of_a_client_that_sends_few_weighs_more(rarity, client, weight):
    """Cross-entropy moves logits by 1/2, distillation at T = 2 with alpha = 1/2 by 1/4; both are weighed."""
    method = FedGKT(temperature=2.0, alpha=0.5, asynchronous=True, rarity=rarity)
    moved, _ = one_step(method, [client], turns={0: 4, 1: 1, 2: 1})
    assert moved == pytest.approx([0.75 * weight, -0.75 * weight])


def test_what_others_sent_before_is_not_weighed():
    """One sample that came, of weight 2, and one that is trained on again, of weight 1: 3/4 times their mean."""
    method = FedGKT(temperature=2.0, alpha=0.5, asynchronous=True, rarity=1.0, replay=1.0)
    moved, _ = one_step(method, [1], turns={0: 4, 1: 1, 2: 1})
    assert moved == pytest.approx([0.75 * 1.5, -0.75 * 1.5])


@pytest.mark.parametrize("clients", [(0,), (2, 0)])
def test_answers_are_those_before_the_step_or_after_the_epoch(clients):
    """Before it all weights are 0 and the model trains; after it the logits are (1/2, -1/2) in evaluation mode."""
    before = one_step(FedGKT(distill="server-to-edge"), clients)[1]
    after = one_step(FedGKT(distill="server-to-edge", answers="after"), clients)[1]
    assert before == [[8.0, 8.0]] * len(clients)
    assert after == [[0.5, -0.5]] * len(clients)


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
    response = serve(world, request, versions or Versions(), WorkerCache())
    assert response.error == ""
    return Knowledge.unpack(response.body)


def test_an_upload_is_the_extractors_features_of_the_samples_it_names():
    world = gkt(augment_features=False)
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

    world = gkt(server_epochs=3)
    server = Server(world)
    echo = Echo()
    for batches in ("mixed", "by-client"):
        with Spool() as spool:
            store = FeatureStore({"1x1x1": spool})
            state = State(echo, torch.optim.SGD(echo.parameters(), lr=0.0), store)
            uploads = {0: torch.arange(50), 3: torch.arange(7, 90)}
            for k, ids in uploads.items():
                marks = (ids + 1000.0 * k).reshape(-1, 1, 1, 1)
                store.put(k, ids, marks, torch.zeros_like(ids), torch.zeros(len(ids), 2), turn=1)
            FedGKT(server_epochs=3, batches=batches).train_server(server, state, [0, 3])
            for k, ids in uploads.items():
                assert torch.equal(store.answers[k][:, 0], ids + 1000.0 * k)


def test_replay_trains_again_on_as_much_as_asked_of_what_others_sent():
    world = gkt(replay=0.5, server_epochs=1)
    server = Server(world)
    state = world.method.init(server)
    for k in range(3):
        world.method.keep(state, Reply(k, 1, good_upload(world, k)))
    n = [len(world.private(k)) for k in range(3)]
    ids = torch.cat([batch.ids for batch in world.method.server_batches(server, state, [1], [0, 2])])
    assert sorted(ids[ids < n[1]].tolist()) == list(range(n[1]))  # all that came
    again = ids[ids >= n[1]].tolist()  # and some of what was there
    assert len(again) == len(set(again)) == round(n[1] / 2)
    before = state.store.answers[0]
    world.method.train_server(server, state, [1])
    fresh = (state.store.answers[0] != before).any(1)
    assert 0 < int(fresh.sum()) < n[0]
    assert set(state.store.features["16x4x4"].keys()) == {0, 1, 2}


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


def test_every_option_of_the_servers_training_reaches_it():
    slow = {"profile": ["fast", "slow"], "profiles": {"fast": {"latency": 0.1}, "slow": {"latency": 0.5}}}
    options = ({}, {"rarity": 1.0}, {"answers": "after"}, {"squared_temperature": False})
    results = [
        catchment.run(
            experiment(
                "fedgkt, asynchronous", few=True, method={"distill": "both", **option}, devices=slow, strict=strict
            )
        )["fingerprint"]
        for option in options
        for strict in (False, True)
    ]
    assert results[::2] == results[1::2]
    assert len(set(results)) == len(options)


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
            found.append(torch.cat([batch.ids for batch in world.method.server_batches(server, state, [0], [])]))
        return found

    first, second = orders(asynchronous=True)
    assert not torch.equal(first, second)
    assert torch.equal(first.sort().values, second.sort().values)
    first, second = orders()  # a round has one upload of each client, and the round is in the seed
    assert torch.equal(first, second)


def test_wrong_settings_are_refused_before_training():
    with pytest.raises(ExperimentError, match="temperature is 0"):
        FedGKT(temperature=0)
    with pytest.raises(ExperimentError, match="rarity is -1"):
        FedGKT(asynchronous=True, rarity=-1)
    with pytest.raises(ExperimentError, match="rarity is for asynchronous = true"):
        FedGKT(rarity=1)
    with pytest.raises(ModelError, match=r"fedgkt trains a server half on features; set models\.server"):
        FedGKT().check(replace(gkt(), server_model=None))
    with pytest.raises(ModelError, match="do not fit"):
        experiment("fedgkt", models={"server": "resnet20"}).build_world()


# ---- what the server does not accept ----------------------------------------------------------------------------


def good_upload(world, client):
    ids = world.private(client).ids
    n = len(ids)
    return Knowledge(torch.rand(n, 16, 4, 4), torch.rand(n, 10), world.private(client).targets, ids, turn=1)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (lambda u: replace(u, ids=u.ids + 1), r"\d+ ids came that are not the \d+ of client 0"),
        (lambda u: replace(u, ids=u.ids.flip(0)), "ids came that are not the"),
        (lambda u: Knowledge(u.features[1:], u.logits[1:], u.labels[1:], u.ids[1:]), "ids came that are not the"),
    ],
)  # fmt: skip
def test_ids_that_are_not_the_clients_own_are_refused(wrong, reason):
    world = gkt()
    server = Server(world)
    state = world.method.init(server)
    refusal = world.method.accept(server, state)
    assert re.search(reason, refusal(Reply(0, 1, wrong(good_upload(world, 0)))))
    assert refusal(Reply(0, 1, good_upload(world, 0))) == ""


def test_the_features_go_once_they_are_trained_on_and_fewer_samples_are_refused_then():
    world = gkt()
    server = Server(world)
    state = world.method.init(server)
    whole = good_upload(world, 0)
    world.method.keep(state, Reply(0, 1, whole))
    world.method.train_server(server, state, [0])
    assert not len(state.store.features["16x4x4"])
    for n in (0, 2):
        few = Knowledge(whole.features[:n], whole.logits[:n], whole.labels[:n], whole.ids[:n], 2, beside=1)
        assert "ids came that are not the" in world.method.accept(server, state)(Reply(0, 2, few))


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


# ---- start, thrift ------- ------------------------------------------------------------------------------------


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


def test_a_stem_is_trained_on_public_data():
    e = experiment("fedgkt", method={"name": "fedgkt", "stem_epochs": 2}, data={"public": 0.3})
    world = e.build_world()
    stem = trained_stem(Server(world), epochs=2)
    first = {n: w for n, w in world.client_architecture(0).facts.initial.items() if n.startswith("extractor.")}
    assert stem.keys() == first.keys()
    assert any(not torch.equal(stem[name], first[name]) for name in stem)
    assert catchment.run(e)["options"]["stem_epochs"] == 2
    with pytest.raises(ExperimentError, match=r"set data\.public"):
        experiment("fedgkt", method={"name": "fedgkt", "stem_epochs": 2}).build_world()
    with pytest.raises(ExperimentError, match="stem_epochs trains one stem for all, and with own_stems"):
        experiment("fedgkt", method={"name": "fedgkt", "stem_epochs": 2, "own_stems": True}).build_world()


def features_sent(out):
    """Rows of features that went up, round by round."""
    rows = [json.loads(line) for line in (out / "ledger.jsonl").read_text().splitlines()]
    return [
        sum(len(e["clients"]) * e["tensors"].get("features", 0) for e in r["entries"]) // (16 * 4 * 4 * 4) for r in rows
    ]


def test_uploads_every_second_turn_only(tmp_path):
    e = experiment("fedgkt", method={"name": "fedgkt", "upload_every": 2}, rounds=4, participation={"fraction": 1.0})
    result = catchment.run(e, out=tmp_path / "run")
    assert features_sent(tmp_path / "run") == [300, 0, 300, 0]
    assert result["accuracy"] > 0.2  # the server trained on what it had


def test_samples_whose_features_barely_changed_are_not_sent_again(tmp_path):
    def sent(skip_below, lr, name):
        e = experiment(
            "fedgkt",
            method={"name": "fedgkt", "skip_below": skip_below, "extractor_rate": 1.0},
            optimizer={"client": {"name": "sgd", "lr": lr}},
            participation={"fraction": 1.0},
        )
        catchment.run(e, out=tmp_path / name)
        return features_sent(tmp_path / name)

    some = sent(0.05, 0.2, "some")
    assert some[0] == 300
    assert 0 < some[1] < 300
    assert sent(1e6, 0.05, "none") == [300, 0, 0]
    with pytest.raises(ExperimentError, match="augment_features = false"):
        gkt(skip_below=0.1)


def test_what_a_client_believes_the_server_has_is_what_it_has():
    old = torch.tensor([[2.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    new = old + torch.tensor([[0.9, 0.0], [0.0, 1.1], [0.0, 0.0]])  # 0.45, 0.55 and 0 of the norm
    upload = Knowledge(new, torch.zeros(3, 2), torch.tensor([0, 1, 0]), torch.tensor([4, 5, 9]), turn=6)
    few, after = changes(upload, {"features": old, "turn": torch.tensor(3)}, holds=3, least=0.5)
    assert few.ids.tolist() == [5]
    assert torch.equal(few.features, new[1:2])
    assert (few.turn, few.beside) == (6, 3)
    assert torch.equal(after["features"], torch.stack([old[0], new[1], old[2]]))
    assert int(after["turn"]) == 6
    # The server lost the last upload: everything goes.
    whole, after = changes(upload, {"features": old, "turn": torch.tensor(3)}, holds=2, least=0.5)
    assert whole.ids.tolist() == [4, 5, 9]
    assert torch.equal(after["features"], new)


# ---- asynchronous -----------------------------------------------------------------------------------------------


def test_a_device_that_never_answers_does_not_stop_the_run():
    never = {"profile": ["dead", "fast"], "profiles": {"fast": {"latency": 0.1}, "dead": {"latency": 1e12}}}
    options = {"name": "fedgkt", "asynchronous": True}
    result = catchment.run(experiment("fedgkt", method=options, data={"clients": 4}, devices=never, rounds=4))
    assert result["virtual_seconds"] < 10


@pytest.mark.parametrize(
    "options", [{}, {"freeze_after": 1}, {"upload_every": 2}, {"asynchronous": True}], ids=lambda options: str(options)
)
def test_a_client_without_samples_is_not_asked_and_nobody_is_blamed(options, tmp_path, monkeypatch):
    (tmp_path / "dealt.py").write_text("def dealt(clients):\n    return [range(9), [], range(9, 20)]\n")
    few = {"clients": 3, "train": 20, "test": 10, "partition": {"name": "dealt:dealt"}}
    method = {"name": "fedgkt", **options}
    asked, events, feedback = [], [], FedGKT.feedback
    monkeypatch.setattr(FedGKT, "feedback", lambda self, *given: asked.append(given[-1]) or feedback(self, *given))
    settings = {"path": str(tmp_path), "data": few, "method": method, "participation": {"fraction": 1.0}, "rounds": 2}
    catchment.run(experiment("fedgkt", **settings), observe=lambda record: events.extend(record["events"]))
    assert (events, set(asked)) == ([], {0, 2})


def test_rarity_counts_the_upload_that_came_after_its_round_was_undone():
    """Undoing takes back how often clients were asked; what is in flight still comes."""
    method = FedGKT(asynchronous=True, rarity=1.0)
    world = experiment("fedgkt", method={"name": "fedgkt", "asynchronous": True, "rarity": 1.0}).build_world()
    server = Server(world)
    state = method.init(server)
    ids = world.data.clients[0]
    state.store.put(0, ids, torch.zeros(len(ids), *server.world.client_architecture(0).facts.features), ids % 10,
                    torch.zeros(len(ids), 10), turn=1)  # fmt: skip
    method.train_server(server, state, [0])
    assert state.store.answers[0].abs().sum() > 0


def test_with_a_quota_every_client_does_its_rounds(tmp_path):
    slow = {"profile": ["fast", "slow"], "profiles": {"fast": {"latency": 0.1}, "slow": {"latency": 5.0}}}

    def turns(quota, name):
        options = {"name": "fedgkt", "asynchronous": True, "quota": quota}
        e = experiment("fedgkt", method=options, data={"clients": 4}, devices=slow, rounds=3)
        result = catchment.run(e, out=tmp_path / name)
        rows = [json.loads(line) for line in (tmp_path / name / "ledger.jsonl").read_text().splitlines()]
        up = [e for row in rows for e in row["entries"] if e["direction"] == "up" and e["purpose"] == "training"]
        counts = [sum(e["clients"].count(k) for e in up) for k in range(4)]
        return counts, result["virtual_seconds"]

    assert turns(True, "quota") == ([3, 3, 3, 3], pytest.approx(30.0, abs=0.5))
    counts, seconds = turns(False, "free")
    assert sum(counts) == 12
    assert counts[0] > 3 > counts[1]
    assert seconds < 15


def test_features_need_not_be_maps():
    e = experiment("fedgkt", models={"client": "models_of_users:flat_edge", "server": "models_of_users:flat_half"})
    assert catchment.run(e)["accuracy"] > 0.2
