"""FedMD, DS-FL, Cronus and FedDF: their rules by hand, and their bytes beside the formulas of FedGEMS' Figure 6."""

from __future__ import annotations

import dataclasses
import json
import math

import formulas
import pytest
import torch
from worlds import experiment
from worlds_by_hand import linear, world

import catchment
from catchment.core.client import Client
from catchment.core.fleet import Fleet
from catchment.core.ledger import Ledger
from catchment.core.method import on_client
from catchment.core.server import Server
from catchment.core.worker import WorkerCache
from catchment.data import Division, Samples
from catchment.data.parts import Parts
from catchment.errors import ExperimentError, UserError
from catchment.exchange.request import Request
from catchment.families.logits import Predictions, predictions, public_subset
from catchment.families.own_models import Question
from catchment.families.weights import GlobalModel, LocalModel
from catchment.learning.optimizers import OptimizerSettings
from catchment.methods.cronus import Cronus
from catchment.methods.dsfl import DSFL, era
from catchment.methods.feddf import FedDF
from catchment.methods.fedmd import FedMD
from catchment.reading import read_table
from catchment.robust.aggregators import Cronus as Filter
from catchment.simulation.inprocess import InProcess

X, Y = [[1.0, 0.0]], [0]  # the public set, and that of a client; models are linear and begin with zeros, SGD with lr 1


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def by_hand(method, clients=((X, Y),), public=(X, Y), **settings):
    w = world(method, [*clients, public])
    images, labels = w.data.dataset.train.images, w.data.dataset.train.labels
    *rows, own = w.data.clients
    samples = Samples(images, labels, own)
    return dataclasses.replace(
        w,
        data=Division(w.data.dataset, Parts.of(rows), samples, samples, samples),
        server_optimizer=OptimizerSettings(name="sgd", lr=1.0, batch_size=100),
        **settings,
    )


def client_of(w, number=0):
    return Client(w, Request(number, "x", 1, 0, 0, Question().pack()), {}, WorkerCache())


def test_teachers_see_plain_images_and_students_augmented_ones():
    """Images of two pixels, (1, 0), which a flip makes (0, 1); the model's logits are the pixels."""
    w = by_hand(FedMD(), public=([[1.0, 0.0]] * 40, [0] * 40), augment=("flip",))
    model, client, public = linear((1, 1, 2), 2), client_of(w), w.data.public
    torch.nn.init.eye_(model[1].weight)
    assert predictions(client, model, public).tolist() == [[1, 0]] * 40
    assert predictions(Server(w), model, public).tolist() == [[1, 0]] * 40
    seen = {tuple(image) for batch in client.batches(public) for image in batch.images.flatten(1).tolist()}
    assert seen == {(1, 0), (0, 1)}


def one_round(w, method):
    server, fleet = Server(w), Fleet(InProcess(w), method, Ledger(), seed=0)
    state = method.init(server)
    server.round = 1
    fleet.begin_round(1)
    method.round(server, state, fleet)
    return server, state, fleet


def weight(client):
    """Of class 0 along the first feature; class 1 has the opposite."""
    return client.state["model"]["1.weight"][0, 0].item()


# ---- FedMD -------------------------------------------------------------------------------------------------------


def test_fedmd_digests_with_l1_and_then_revisits():
    method = FedMD(transfer_epochs=0)
    client = client_of(by_hand(method))
    scores = method.communicate(client, Question()).logits
    assert torch.allclose(scores, torch.tensor([[0.5, -0.5]]))  # it began with a revisit
    # l1 is a mean over both scores: they move by 1/2 towards a consensus that is far; then a step on private data.
    method.digest_and_revisit(client, Predictions(torch.tensor([[9.0, -9.0]])))
    assert weight(client) == pytest.approx(1.0 + 1 - sigmoid(2.0))


def test_fedmd_digests_with_kl():
    method = FedMD(transfer_epochs=0, digest="kl")
    client = client_of(by_hand(method))
    method.communicate(client, Question())
    method.digest_and_revisit(client, Predictions(torch.tensor([[2.0, -2.0]])))
    a = 0.5 + sigmoid(4) - sigmoid(1)
    assert weight(client) == pytest.approx(a + 1 - sigmoid(2 * a))


def test_fedmd_transfer_learning_is_public_then_private():
    # Public label 1 pulls to (-1/2, 1/2); the private label 0 pulls back from p = sigmoid(-1).
    method = FedMD(transfer_epochs=1)
    w = by_hand(method, public=(X, [1]))
    scores = method.communicate(client_of(w), Question()).logits
    a = -0.5 + 1 - sigmoid(-1)
    assert torch.allclose(scores, torch.tensor([[a, -a]]))


def test_the_alignment_set_is_drawn_afresh_and_alike_on_both_sides():
    w = experiment("fedmd").build_world()
    server = Server(w)
    server.round = 1
    first = public_subset(server, 50)
    assert len(first) == 50
    assert torch.equal(first.ids, public_subset(client_of(w), 50).ids)
    assert bool(torch.isin(first.ids, w.data.public.ids).all())
    server.round = 2
    assert not torch.equal(first.ids, public_subset(server, 50).ids)
    assert public_subset(server, None) is public_subset(server, 5000) is w.data.public


# ---- DS-FL -------------------------------------------------------------------------------------------------------


def test_entropy_reduction_by_hand():
    mean = torch.tensor([[0.6, 0.4], [0.5, 0.5]])
    assert torch.allclose(era(mean, 0.1), torch.tensor([[sigmoid(2), 1 - sigmoid(2)], [0.5, 0.5]]))
    assert era(mean, 1e-3)[0].tolist() == [1.0, 0.0]  # sharper and sharper


@pytest.mark.parametrize("aggregation", ["era", "sa"])
def test_a_round_of_dsfl_by_hand(aggregation):
    # Labels 0 and 1: both clients step to (1/2, -1/2) and the opposite; so the mean of p is (1/2, 1/2). With a third
    # client of label 0 it is (1/2 + (2 sigmoid(1) - 1) / 6, ...).
    method = DSFL(aggregation=aggregation)
    w = by_hand(method, clients=((X, Y), (X, [1]), (X, Y)))
    _, state, _ = one_round(w, method)
    p = (2 * sigmoid(1) + 1 - sigmoid(1)) / 3
    target = sigmoid((2 * p - 1) / 0.1) if aggregation == "era" else p
    # The server's model from zero takes one step of cross-entropy to it.
    assert state.model[1].weight[0, 0].item() == pytest.approx(target - 0.5, rel=1e-5)


def test_a_client_of_dsfl_distils():
    method = DSFL()
    client = client_of(by_hand(method))
    p = method.update_and_predict(client, Question()).logits
    assert torch.allclose(p, torch.tensor([[sigmoid(1), 1 - sigmoid(1)]]))
    method.distillation(client, Predictions(torch.tensor([[0.9, 0.1]])))
    assert weight(client) == pytest.approx(0.5 + 0.9 - sigmoid(1))


# ---- Cronus ------------------------------------------------------------------------------------------------------


def test_cronus_leaves_out_who_is_far_away():
    # Five clients of label 0 predict sigmoid(1), one of x = (9, 0) is far more certain of the opposite.
    method = Cronus()
    w = by_hand(method, clients=[*[(X, Y)] * 5, ([[9.0, 0.0]], [1])])
    server, state, fleet = Server(w), None, Fleet(InProcess(w), method, Ledger(), seed=0)
    server.round = 1
    fleet.begin_round(1)
    sent = []
    ask = fleet.ask

    def watching(handler, bodies, **more):
        sent.extend(bodies.values())
        return ask(handler, bodies, **more)

    fleet.ask = watching
    method.round(server, state, fleet)
    soft = next(body.logits for body in sent if isinstance(body, Predictions))
    assert torch.allclose(soft, torch.tensor([[sigmoid(1), 1 - sigmoid(1)]]))


def test_a_client_of_cronus_trains_on_soft_labels_and_private_data():
    method = Cronus()
    client = client_of(by_hand(method))
    assert torch.allclose(method.predict(client, Question()).logits, torch.tensor([[sigmoid(1), 1 - sigmoid(1)]]))
    method.local_training(client, Predictions(torch.tensor([[0.2, 0.8]])))
    a = 0.5 + 0.2 - sigmoid(1)
    assert weight(client) == pytest.approx(a + 1 - sigmoid(2 * a))


def test_the_parameters_of_the_filter_are_those_of_the_method():
    assert Cronus(bound=2.0, most=0.1).filter == Filter(2.0, 0.1)
    with pytest.raises(ExperimentError, match=r"most is 0\.7"):
        read_table(Cronus, {"most": 0.7})


# ---- FedDF -------------------------------------------------------------------------------------------------------


def test_a_round_of_feddf_by_hand():
    # Clients with 1 sample of label 0 and 3 of label 1: (1/2) and (-1/2), their mean by samples is -1/4. The teachers'
    # mean logits count each client once: 0. One step of KL from p = sigmoid(-1/2) to 1/2, at the full rate.
    method = FedDF(server_steps=1, stop_after=None)
    w = by_hand(method, clients=((X, Y), (X * 3, [1] * 3)))
    _, state, _ = one_round(w, method)
    (weights,) = state.weights.values()
    assert weights["1.weight"][0, 0].item() == pytest.approx(-1 / 4 + 1 / 2 - sigmoid(-1 / 2))


def test_the_rate_falls_along_a_cosine():
    method = FedDF(server_steps=2, stop_after=None)
    w = by_hand(method, clients=((X, Y), (X * 3, [1] * 3)))
    _, state, _ = one_round(w, method)
    (weights,) = state.weights.values()
    a = -1 / 4 + 1 / 2 - sigmoid(-1 / 2)
    assert weights["1.weight"][0, 0].item() == pytest.approx(a + (1 / 2 - sigmoid(2 * a)) / 2)


def test_early_stopping_keeps_the_best_student():
    # The public test sample has label 1, and every step moves away from it: the first validation stays the best.
    method = FedDF(server_steps=50, validate_every=1, stop_after=3)
    w = by_hand(method, clients=((X, Y),))
    wrong = by_hand(method, public=(X, [1])).data.public
    w = dataclasses.replace(w, data=dataclasses.replace(w.data, public_test=wrong))
    server = Server(w)
    model = method.student(server, {"1.weight": torch.tensor([[-1.0, 0.0], [1.0, 0.0]])}, w.client_models[0])
    weights = method.distil(server, model, torch.tensor([[4.0, -4.0]]))
    first = -1 + sigmoid(8) - sigmoid(-2)
    assert weights["1.weight"][0, 0].item() == pytest.approx(first)


def test_without_public_test_samples_no_step_is_left_out():
    method = FedDF(server_steps=2, validate_every=1, stop_after=1)
    w = by_hand(method, clients=((X, Y), (X * 3, [1] * 3)))
    w = dataclasses.replace(w, data=dataclasses.replace(w.data, public_test=None))
    _, state, _ = one_round(w, method)
    (weights,) = state.weights.values()
    a = -1 / 4 + 1 / 2 - sigmoid(-1 / 2)  # as above: the last student
    assert weights["1.weight"][0, 0].item() == pytest.approx(a + (1 / 2 - sigmoid(2 * a)) / 2)


@pytest.mark.parametrize("name", ["fedmd", "dsfl", "cronus", "feddf"])
def test_labels_of_public_data_are_not_needed(name):
    method = {"fedmd": {"transfer_epochs": 0}, "feddf": {"server_steps": 2}}.get(name, {})
    letters = {"public": {"name": "models_of_users:letters"}}
    result = catchment.run(experiment(name, rounds=1, method={"name": name, **method}, data=letters))
    assert result["data"]["public"] == 20


def test_every_architecture_has_a_student_and_all_clients_teach_it(tmp_path):
    e = experiment("feddf, two architectures", participation={"fraction": 1.0})
    result = catchment.run(e, out=tmp_path / "run")
    mlp, cnn = (result["models"][name]["accuracy"] for name in ("mlp", "cnn"))
    assert result["accuracy"] == pytest.approx((3 * mlp + 2 * cnn) / 5)  # clients 0, 2, 4 and 1, 3
    assert result["server"]["accuracy"] == pytest.approx((mlp + cnn) / 2)
    run = catchment.Run(tmp_path / "run")
    with pytest.raises(UserError, match="a student for each of mlp, cnn"):
        run.model()


@dataclasses.dataclass(frozen=True)
class OneOverflows(FedDF):
    """Client 0 sends finite weights whose logits are not."""

    @on_client
    def local_training(self, client: Client, request: GlobalModel) -> LocalModel:
        """FedDF's, spoilt on client 0."""
        trained = FedDF.local_training(self, client, request)
        return trained if client.id else LocalModel({"1.weight": torch.full((2, 2), 3e38)}, {}, 1, 0.0)


def test_feddf_refuses_models_that_overflow():
    method = OneOverflows(server_steps=1)
    w = by_hand(method, clients=((X, Y), (X, Y)), public=([[2.0, 0.0]], Y))
    _, state, fleet = one_round(w, method)
    assert [(event["client"], event["why"]) for event in fleet.outcomes.events] == [
        (0, "its model gives NaN or infinity on public samples")
    ]
    (student,) = state.weights.values()
    assert torch.allclose(student["1.weight"], torch.tensor([[0.5, 0.0], [-0.5, 0.0]]))  # client 1's alone


# ---- bytes -------------------------------------------------------------------------------------------------------

CLIENTS, PUBLIC, CLASSES, CNN = 5, 120, 10, 6_090  # as in `experiment`, with 300 samples of 8x8


def payload(result, up, down):
    sizes = result["bytes_by_field"]
    return sizes["up"].get(up, 0), sizes["down"].get(down, 0)


@pytest.mark.parametrize(
    ("name", "field", "expected"),
    [
        ("fedavg", "weights", formulas.fedavg(CLIENTS, CNN)),
        ("fedgem", "logits", formulas.fedmd(CLIENTS, PUBLIC, CLASSES)),
        ("fedmd", "logits", formulas.fedmd(CLIENTS, 50, CLASSES)),
        ("dsfl", "logits", formulas.fedmd(CLIENTS, 60, CLASSES)),
        ("cronus", "logits", formulas.fedmd(CLIENTS, PUBLIC, CLASSES)),
        ("feddf", "weights", formulas.fedavg(CLIENTS, CNN)),  # the server computes the logits itself
    ],
)
def test_the_ledger_counts_what_the_formulas_say(name, field, expected):
    rounds = 2
    result = catchment.run(experiment(name, rounds=rounds, participation={"fraction": 1.0}))
    assert payload(result, field, field) == (rounds * expected.up, rounds * expected.down)


def test_the_ledger_counts_what_the_formula_of_fedgems_says(tmp_path):
    result = catchment.run(experiment("fedgems", rounds=2, participation={"fraction": 1.0}), out=tmp_path / "run")
    rounds = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    public = 108  # 0.4 of what validation leaves of 300
    each = [formulas.fedgems(CLIENTS, public, CLASSES, r["notes"]["ensemble_distillation"]) for r in rounds]
    assert payload(result, "logits", "logits") == (sum(t.up for t in each), sum(t.down for t in each))


def test_the_ledger_counts_what_the_formula_of_fedgkt_says():
    result = catchment.run(experiment("fedgkt", rounds=2, participation={"fraction": 1.0}))
    expected = formulas.fedgkt(300, 16 * 4 * 4, CLASSES)
    up = result["bytes_by_field"]["up"]
    assert up["features"] + up["logits"] == 2 * expected.up
    assert result["bytes_by_field"]["down"]["logits"] == expected.down  # nothing comes down in the first round


def test_the_formula_of_feddf_also_counts_logits():
    both = formulas.feddf(CLIENTS, CNN, PUBLIC, CLASSES)
    assert both.up == formulas.fedavg(CLIENTS, CNN).up + formulas.fedmd(CLIENTS, PUBLIC, CLASSES).up
    assert both.down == formulas.fedavg(CLIENTS, CNN).down
