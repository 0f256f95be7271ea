"""FedGEM and FedGEMS: equations by hand, one round by hand, the three paths, what travels, and the edges of data."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch
from torch import Tensor, nn
from worlds import experiment
from worlds_by_hand import world

import catchment
from catchment.core.client import Client
from catchment.core.expectations import Expectations
from catchment.core.fleet import Fleet
from catchment.core.ledger import Ledger
from catchment.core.server import Server
from catchment.core.worker import WorkerCache
from catchment.data import Division, Samples
from catchment.data.parts import Parts
from catchment.errors import ExperimentError, ModelError
from catchment.exchange.request import Request
from catchment.families.logits import Predictions
from catchment.learning.optimizers import OptimizerSettings
from catchment.methods.fedgem import (
    ENTROPY_FLOOR,
    FedGEM,
    FedGEMS,
    Lesson,
    ServerLogits,
    Wanted,
    client_weights,
    entropy,
    fusion_loss,
)
from catchment.reading import read_table
from catchment.simulation.inprocess import InProcess

LOG3 = math.log(3)
YES, NO = torch.tensor([True]), torch.tensor([False])


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


# ---- equations ---------------------------------------------------------------------------------------------------


def loss(*tensors: Tensor, epsilon: float = 0.75, temperature: float = 1.0) -> float:
    return fusion_loss(*tensors, epsilon=epsilon, temperature=temperature).item()


def test_losses_by_hand():
    # Server (1/2, 1/2), label 0, teacher (3/4, 1/4): CE = log 2, KL = 3/4 log(3/2) + 1/4 log(1/2).
    logits, labels, teacher = torch.zeros(1, 2), torch.tensor([0]), torch.tensor([[LOG3, 0.0]])
    ce, kl = math.log(2), 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert loss(logits, labels, teacher, NO) == pytest.approx(ce)  # equation 1
    blended = 0.75 * ce + 0.25 * kl
    assert loss(logits, labels, teacher, YES) == pytest.approx(blended)  # equations 2 and 5
    assert loss(logits, labels, teacher) == pytest.approx(blended)  # equation 6
    assert loss(logits, labels, teacher, YES, epsilon=0.0) == pytest.approx(kl)
    assert loss(logits, labels, 2 * teacher, YES, epsilon=0.0, temperature=2.0) == pytest.approx(4 * kl)  # T^2
    both = loss(logits.expand(2, 2), labels.expand(2), teacher.expand(2, 2), torch.cat([YES, NO]))
    assert both == pytest.approx((blended + ce) / 2)  # a mean over samples, not over the paths


def test_a_sample_without_a_teacher_ignores_what_stands_in_its_row():
    logits = torch.zeros(1, 2, requires_grad=True)
    teacher = torch.tensor([[-50.0, 50.0]])
    fusion_loss(logits, torch.tensor([0]), teacher, NO, epsilon=0.5, temperature=1.0).backward()
    assert logits.grad.tolist() == [[-0.5, 0.5]]


def test_entropy_by_hand():
    assert entropy(torch.zeros(2)).item() == pytest.approx(math.log(2))
    assert entropy(torch.tensor([LOG3, 0.0])).item() == pytest.approx(0.75 * math.log(4 / 3) + 0.25 * math.log(4))
    assert entropy(torch.tensor([1e4, 0.0, -1e4])).item() == 0.0


def test_weights_of_clients_by_hand():
    # Label 0. Two clients are right with (3/4, 1/4) and (9/10, 1/10), one is wrong however sure it is.
    h = [-(p * math.log(p) + (1 - p) * math.log(1 - p)) for p in (0.75, 0.9)]
    first = 1 / (1 + math.exp(1 / h[1] - 1 / h[0]))
    logits = torch.tensor([[[LOG3, 0.0]], [[math.log(9), 0.0]], [[-90.0, 0.0]]])
    alpha = client_weights(logits, torch.tensor([0]))
    assert alpha[:, 0].tolist() == pytest.approx([first, 1 - first, 0.0])
    assert alpha[2, 0].item() == 0.0  # exactly
    assert first < 1 / 2  # the surer client counts more


def test_weights_where_nobody_is_right_and_where_entropies_are_zero():
    sure = torch.tensor([[[200.0, 0.0]], [[300.0, 0.0]], [[0.1, 0.0]]])
    assert client_weights(sure, torch.tensor([1])).tolist() == [[0.0]] * 3
    assert client_weights(sure, torch.tensor([0]))[:, 0].tolist() == [0.5, 0.5, 0.0]  # 1/H of the third is far behind
    assert math.exp(1 / math.log(2) - 1 / ENTROPY_FLOOR) == 0.0


# ---- a round by hand ---------------------------------------------------------------------------------------------

# The public set is one sample x = (1, 0) of class 0; so is the private set of the one client.
X, Y = [[1.0, 0.0]], [0]


def by_hand(method, clients=((X, Y),), public=(X, Y), test=None):
    """A world of linear models from zero, full-batch SGD with lr 1; public samples come after the private ones."""
    w = world(method, [*clients, public])
    images, labels = w.data.dataset.train.images, w.data.dataset.train.labels
    *rows, own = w.data.clients
    samples = Samples(images, labels, own)
    data = Division(w.data.dataset, Parts.of(rows), samples if test is None else test, samples, samples)
    settings = OptimizerSettings(name="sgd", lr=1.0, batch_size=100)
    return dataclasses.replace(w, data=data, server_model="worlds_by_hand:linear", server_optimizer=settings)


def answering(w, state=None, round=1):
    """A client that can be called directly."""
    body = Wanted(torch.zeros(0, dtype=torch.int32)).pack()
    return Client(w, Request(0, "client_select", round, 0, 0, body), state or {}, WorkerCache())


def test_a_round_of_fedgem_by_hand():
    method = FedGEM(epsilon=0.75, start_epochs=0)
    w = by_hand(method)
    # The client trains on private data first: from p = (1/2, 1/2) its weights become (1/2, -1/2) along x.
    client = answering(w)
    came = method.client_select(client, Wanted())
    assert torch.allclose(came.logits, torch.tensor([[0.5, -0.5]]))
    # The server from zero: its gradient is eps (p - y) + (1 - eps) (p - t) with t = sigmoid(1).
    server = Server(w)
    state = method.init(server)
    method.train_server(server, state, Lesson(came.logits, torch.ones(1, dtype=torch.bool)), epochs=1)
    a = 0.75 * 0.5 + 0.25 * (sigmoid(1) - 0.5)
    assert torch.allclose(state.model(w.data.public.images), torch.tensor([[a, -a]]))
    # The client learns from it, from p = sigmoid(1), and then from its private sample.
    method.client_train(client, ServerLogits(torch.tensor([[a, -a]])))
    c = 0.5 + 0.75 * (1 - sigmoid(1)) + 0.25 * (sigmoid(2 * a) - sigmoid(1))
    c += 1 - sigmoid(2 * c)
    assert torch.allclose(client.state["model"]["1.weight"], torch.tensor([[c, 0.0], [-c, 0.0]]))
    # And the whole round does just this.
    assert torch.allclose(played(w, method, 1).model[1].weight, torch.tensor([[a, 0.0], [-a, 0.0]]))


def test_epochs_on_public_labels_before_the_first_transfer():
    method = FedGEM(epsilon=0.75, start_epochs=1)
    w = by_hand(method)
    # One step on the public label, from p = 1/2 to (1/2, -1/2) along x, then one on the private one.
    c = 0.5 + 1 - sigmoid(1)
    assert torch.allclose(method.client_select(answering(w), Wanted()).logits, torch.tensor([[c, -c]]))
    # The server takes the first of these steps, too, and then learns with the client as its teacher.
    a = 0.5 + 0.75 * (1 - sigmoid(1)) + 0.25 * (sigmoid(2 * c) - sigmoid(1))
    assert torch.allclose(played(w, method, 1).model[1].weight, torch.tensor([[a, 0.0], [-a, 0.0]]))
    # FedGEMS does not ask about a sample that it gets right, so clients begin where they are taught.
    selective = FedGEMS(start_epochs=1)
    client = answering(by_hand(selective))
    selective.client_train(client, ServerLogits(torch.tensor([[c, -c]])))
    taught = c + 0.75 * (1 - sigmoid(2 * c))  # the teacher agrees with the client
    taught += 1 - sigmoid(2 * taught)
    assert torch.allclose(client.state["model"]["1.weight"][0, 0], torch.tensor(taught))


def played(w, method, rounds, notes=None):
    """The server's state after some rounds of a world, in which everybody answered and no model has NaN."""
    transport = InProcess(w)
    server, fleet = Server(w), Fleet(transport, method, Ledger(), seed=0)
    state = method.init(server)
    for n in range(1, rounds + 1):
        server.round, server.notes = n, {}
        fleet.begin_round(n)
        method.round(server, state, fleet)
        metrics = method.evaluate(server, state, fleet)
        assert math.isfinite(metrics.accuracy)
        assert (fleet.outcomes.counts.failed, fleet.outcomes.counts.refused) == (0, 0)
        if notes is not None:
            notes.append(server.notes)
    kept = transport.snapshot(lambda client: 10**6).states
    for client in range(w.clients):
        model = method.client_model(server, state, client, kept.get(client, {}))
        assert all(bool(tensor.isfinite().all()) for tensor in model.state_dict().values())
    return state


def test_the_mean_is_that_of_the_aggregator():
    method = FedGEM(start_epochs=0)
    w = by_hand(method, clients=((X, Y), (X, [1]), (X, [1])))
    server, fleet = Server(w), Fleet(InProcess(w), method, Ledger(), seed=0)
    server.round = 1
    fleet.begin_round(1)
    lesson = method.fuse(server, method.init(server), fleet, [0, 1, 2])
    assert torch.allclose(lesson.teacher, torch.tensor([[-1 / 6, 1 / 6]]))  # of (1/2, -1/2) and twice the opposite
    assert lesson.distilled.tolist() == [True]


# ---- the three paths ---------------------------------------------------------------------------------------------

# Four public samples; the server's model gives row i of SCORES to sample i. Samples 0 and 1 are right, 2 and 3 wrong.
PUBLIC = ([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 1.0]], [0, 1, 0, 1])
SCORES = torch.tensor([[2.0, 0.0], [0.0, 3.0], [0.0, 1.0], [1.0, 0.0]])


class Fixed(nn.Module):
    """A server that always says SCORES of the sample."""

    def forward(self, images: Tensor) -> Tensor:
        known = torch.tensor(PUBLIC[0])
        rows = [(known == image.flatten()).all(1).nonzero()[0, 0] for image in images]
        return SCORES[torch.stack(rows)]


def fused(method, *, pooled=(), clients=(([[1.0, 1.0]], [0]), ([[2.0, 1.0]], [0]))):
    """Lesson, state and notes of one fusion; the clients are asked for real."""
    w = by_hand(method, clients=clients, public=PUBLIC)
    server, fleet = Server(w), Fleet(InProcess(w), method, Ledger(), seed=0)
    state = method.init(server)
    state.model = Fixed()
    for sample in pooled:
        state.pool[sample], state.pooled[sample] = torch.tensor([5.0, -5.0]), True
    server.round = 1
    fleet.begin_round(1)
    lesson = method.fuse(server, state, fleet, list(range(len(clients))))
    return lesson, state, server.notes


def test_a_sample_takes_one_of_three_paths():
    # After one step both clients say class 0 of every sample: right about sample 2, wrong about sample 3.
    lesson, state, notes = fused(FedGEMS(start_epochs=0), pooled=[3])
    assert notes == {"self_training": 2, "self_distillation": 1, "ensemble_distillation": 1, "nobody_right": 0}
    assert lesson.distilled.tolist() == [False, False, True, True]
    assert lesson.teacher[3].tolist() == [5.0, -5.0]  # from the pool
    # Client 0 learned (1/2, 1/2; -1/2, -1/2) from x = (1, 1), client 1 learned (1, 1/2; -1, -1/2) from x = (2, 1).
    own = [torch.tensor([1.0, -1.0]), torch.tensor([1.5, -1.5])]
    inverse = [1 / entropy(logits).item() for logits in own]
    first = 1 / (1 + math.exp(inverse[1] - inverse[0]))
    assert torch.allclose(lesson.teacher[2], first * own[0] + (1 - first) * own[1])
    # Right logits went into the pool.
    assert state.pooled.tolist() == [True, True, False, True]
    assert state.pool[:2].tolist() == SCORES[:2].tolist()


def test_nobody_right_is_cross_entropy_alone():
    lesson, _, notes = fused(FedGEMS(start_epochs=0))
    assert notes == {"self_training": 2, "self_distillation": 0, "ensemble_distillation": 2, "nobody_right": 1}
    assert lesson.distilled.tolist() == [False, False, True, False]


@pytest.mark.parametrize(
    ("off", "paths", "distilled"),
    [
        ("self_training", (0, 3, 1), [True, True, True, True]),  # what is right is in the pool
        ("self_distillation", (2, 0, 2), [False, False, True, False]),
        ("ensemble_distillation", (2, 1, 0), [False, False, False, True]),
    ],
)
def test_an_ablation_leaves_its_samples_to_the_next_path(off, paths, distilled):
    lesson, _, notes = fused(FedGEMS(start_epochs=0, **{off: False}), pooled=[3])
    assert tuple(notes.values())[:3] == paths
    assert lesson.distilled.tolist() == distilled


def test_the_selection_batch_by_batch_by_hand():
    """Two batches of one sample, in an order that is drawn. The server begins at zero, and says class 0 of everything.

    x = (1, 0) is of class 0: right, so it goes its own way, to the weights (1/2, -1/2) along the first number if it is
    first. x = (0, 1) is of class 1: wrong, in no pool, so the client is asked, who knows it by one step: (-1/2, 1/2).
    """
    method, public = FedGEMS(start_epochs=0, selection="batch"), ([[1.0, 0.0], [0.0, 1.0]], [0, 1])
    w = by_hand(method, clients=(([[0.0, 1.0]], [1]),), public=public)
    w = dataclasses.replace(w, server_optimizer=OptimizerSettings(name="sgd", lr=1.0, batch_size=1))
    state = played(w, method, 1, notes := [])
    assert notes == [{"self_training": 1, "self_distillation": 0, "ensemble_distillation": 1, "nobody_right": 0}]
    taught = 0.75 * 0.5 + 0.25 * (sigmoid(1) - 0.5)  # the inputs share no number, so either order gives the same
    assert torch.allclose(state.model[1].weight, torch.tensor([[0.5, -taught], [-0.5, taught]]))
    assert state.pooled.tolist() == [True, False]
    assert state.pool[0].tolist() == [0.0, 0.0]  # the logits that the batch trained with, before its step


def test_batch_by_batch_the_running_model_decides():
    """Two equal samples: the first is asked about, and after its step the second is right."""
    method, public = FedGEMS(start_epochs=0, selection="batch"), ([[0.0, 1.0], [0.0, 1.0]], [1, 1])
    w = by_hand(method, clients=(([[0.0, 1.0]], [1]),), public=public)
    w = dataclasses.replace(w, server_optimizer=OptimizerSettings(name="sgd", lr=1.0, batch_size=1))
    played(w, method, 1, batch := [])
    played(w, FedGEMS(start_epochs=0), 1, round := [])
    assert [batch[0][path] for path in ("self_training", "ensemble_distillation")] == [1, 1]
    assert [round[0][path] for path in ("self_training", "ensemble_distillation")] == [0, 2]


def test_an_empty_selection_asks_nobody():
    method = FedGEMS(start_epochs=0)
    w = by_hand(method, clients=((X, Y), (X, Y)))
    ledger = Ledger()
    server, fleet = Server(w), Fleet(InProcess(w), method, ledger, seed=0)
    state = method.init(server)
    state.pool, state.pooled = torch.ones(1, 2), torch.ones(1, dtype=torch.bool)
    server.round = 1
    fleet.begin_round(1)
    lesson = method.fuse(server, state, fleet, [0, 1])
    assert not ledger.totals
    assert server.notes["ensemble_distillation"] == 0
    assert lesson.distilled.tolist() == [False]  # right, as the first of two equal scores is taken


# ---- what travels ------------------------------------------------------------------------------------------------


def test_only_wanted_samples_are_asked_for_and_sent(tmp_path):
    whole = {"participation": {"fraction": 1.0}, "rounds": 4, "models": {"client": ["mlp", "cnn"], "server": "cnn"}}
    catchment.run(experiment("fedgems", **whole), out=tmp_path / "run")
    rounds = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    ledger = [json.loads(line) for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()]
    public, clients, classes = 108, 5, 10  # 0.4 of what validation leaves of 300
    for record, line in zip(rounds, ledger):
        wanted = record["notes"]["ensemble_distillation"]
        assert sum(list(record["notes"].values())[:3]) == public
        moved = {"up": {}, "down": {}}
        for entry in line["entries"]:
            for name, size in entry["tensors"].items():
                if entry["purpose"] == "training":
                    sizes = moved[entry["direction"]]
                    sizes[name] = sizes.get(name, 0) + size * len(entry["clients"])
        assert moved["up"].get("logits", 0) == 4 * classes * wanted * clients
        assert moved["down"].get("positions", 0) == 4 * wanted * clients
        assert moved["down"]["logits"] == 4 * classes * public * clients
    assert rounds[0]["notes"]["ensemble_distillation"] > rounds[-1]["notes"]["ensemble_distillation"]


def test_uploads_of_wrong_form_are_refused(monkeypatch):
    bad = {0: torch.zeros(3, 2), 1: torch.full((1, 2), math.nan), 2: torch.zeros(1, 2).double()}
    honest = FedGEM.client_select

    def client_select(self, client: Client, request: Wanted) -> Predictions:
        return Predictions(bad[client.id]) if client.id in bad else honest(self, client, request)

    client_select.on_client = True
    monkeypatch.setattr(FedGEM, "client_select", client_select, raising=False)
    method = FedGEM(start_epochs=0)
    w = by_hand(method, clients=[(X, Y)] * 4)
    server = Server(w)
    fleet = Fleet(InProcess(w), method, Ledger(), expectations=Expectations.of(method, w), seed=0)
    server.round = 1
    fleet.begin_round(1)
    lesson = method.fuse(server, method.init(server), fleet, [0, 1, 2, 3])
    assert [event["why"] for event in fleet.outcomes.events] == [
        "logits is of shape [3, 2]; size 0 should be at most 1",
        "logits has numbers from nan to nan; -1e+06 to 1e+06 is expected",
        "logits is float64 of 2 dimensions; float32 of 2 is expected",
    ]
    assert torch.allclose(lesson.teacher, torch.tensor([[0.5, -0.5]]))


# ---- the edges of data -------------------------------------------------------------------------------------------

NAMES = ["fedgem", "fedgems", "fedmd", "dsfl", "cronus", "feddf", "feddf, two architectures"]


@pytest.mark.parametrize("name", NAMES)
def test_a_client_with_one_sample(name):
    sizes = {"name": "worlds_by_hand:in_order", "sizes": [1, 161]}
    result = catchment.run(experiment(name, rounds=2, data={"public": 0.4, "clients": 2, "partition": sizes}))
    assert (result["data"]["smallest_client"], result["failed"], result["refused"]) == (1, 0, 0)
    assert 0 <= result["accuracy"] <= 1


@pytest.mark.parametrize("name", NAMES)
def test_a_public_set_of_one_class(name):
    w = experiment(name).build_world()
    public = w.data.public
    w = dataclasses.replace(
        w, data=dataclasses.replace(w.data, public=public.select((public.targets == 3).nonzero().squeeze(1)))
    )
    assert 1 < len(w.data.public) < 30
    played(w, w.method, 2)


@pytest.mark.parametrize("name", NAMES)
def test_a_public_set_of_one_sample(name):
    w = experiment(name, models={"client": "cnn", "server": "cnn"}).build_world()
    w = dataclasses.replace(w, data=dataclasses.replace(w.data, public=w.data.public.select(torch.tensor([5]))))
    played(w, w.method, 2)


@pytest.mark.parametrize("name", NAMES)
def test_nobody_answers(name):
    """Every request is lost: the round goes on without anybody."""
    result = catchment.run(experiment(name, rounds=2, faults={"drop": 1.0}))
    assert result["lost"] > 0
    assert result["bytes"]["up"] == 0


# ---- what cannot work --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_without_public_data_it_is_refused(name):
    e = experiment(name)
    e = dataclasses.replace(e, data=dataclasses.replace(e.data, public=None))
    with pytest.raises(ExperimentError, match=r"there are none: set data\.public, such as 0\.5"):
        e.build_world()


def test_a_server_without_a_model_or_with_a_half_is_refused():
    with pytest.raises(ModelError, match=r"fedgems trains a larger model on the server; set models\.server"):
        FedGEMS().check(dataclasses.replace(by_hand(FedGEMS()), server_model=None))
    with pytest.raises(ModelError, match="is a half that takes features; fedgem needs a whole model"):
        FedGEM().check(dataclasses.replace(by_hand(FedGEM()), server_model="resnet19"))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"epsilon": 1.5}, r"epsilon is 1.5; a share from 0 to 1 is expected"),
        ({"temperature": 0.0}, "temperature is 0.0; a number above 0"),
        ({"public_epochs": 0}, "public_epochs is 0; at least 1"),
    ],
)
def test_settings_that_cannot_be_meant(settings, reason):
    with pytest.raises(ExperimentError, match=reason):
        read_table(FedGEMS, settings)


def test_a_robust_mean_goes_with_fedgem_and_not_with_fedgems():
    experiment("fedgem", aggregation={"name": "median"}).build_world()
    with pytest.raises(ExperimentError, match=r"does not average what clients send; leave \[aggregation\] out"):
        experiment("fedgems", aggregation={"name": "median"}).build_world()
