"""Split learning and SplitFed: equal to joint training, by hand with two clients, and what travels."""

from __future__ import annotations

import dataclasses
import json
import math
import re

import pytest
import torch
import torch.nn.functional as F
import worlds_by_hand
from torch import nn
from worlds import experiment

import catchment
from catchment.client.state import Versions
from catchment.core.client import Client
from catchment.core.expectations import Expectations
from catchment.core.fleet import Fleet
from catchment.core.ledger import Ledger
from catchment.core.server import Server
from catchment.core.worker import WorkerCache
from catchment.errors import ExperimentError, ModelError
from catchment.exchange.message import Message
from catchment.exchange.request import Request
from catchment.learning.optimizers import OptimizerSettings
from catchment.methods.split import Extractor, Split
from catchment.methods.splitfed import SplitFed
from catchment.models import SplitModel
from catchment.reading import read_table
from catchment.runtimes.torch import serve
from catchment.simulation.inprocess import InProcess


class Tampered(InProcess):
    """Clients whose replies pass through a function: tamper(response, how many this client gave before)."""

    def __init__(self, world, tamper):
        super().__init__(world)
        self._tamper, self._given = tamper, {}

    def pull(self, until):
        response = super().pull(until)
        if response is None:
            return None
        before = self._given[response.client] = self._given.get(response.client, -1) + 1
        return self._tamper(response, before)


class Play:
    """Some rounds of a method, with everything that was asked."""

    def __init__(self, world, rounds=1, tamper=lambda response, before: response):
        self.server = Server(world)
        expectations = Expectations.of(world.method, world)
        self.fleet = Fleet(Tampered(world, tamper), world.method, Ledger(), seed=0, expectations=expectations)
        self.requests = []
        self.fleet.watch = self.requests.extend
        self.state = world.method.init(self.server)
        for number in range(1, rounds + 1):
            self.server.round = number
            self.fleet.begin_round(number)
            world.method.round(self.server, self.state, self.fleet)
        self.metrics = world.method.evaluate(self.server, self.state, self.fleet)

    @property
    def asked(self):
        return [(request.client, request.handler) for request in self.requests]

    def begun_with(self, client):
        (request,) = [r for r in self.requests if (r.client, r.handler) == (client, "begin")]
        return request.body.tensors["weights/1.weight"]

    @property
    def extractor(self):
        return self.state.extractor["1.weight"]

    @property
    def half(self):
        return self.state.model.weight.detach()


# ---- the same as training both halves in one place --------------------------------------------------------------


@pytest.mark.parametrize("client_model", ["cnn", "resnet4"])  # without and with batch normalisation
@pytest.mark.parametrize(
    ("method", "fresh"),
    [
        ({"name": "split"}, ()),
        ({"name": "splitfed"}, ("extractor",)),
        ({"name": "splitfed", "variant": "v1"}, ("extractor", "half")),
    ],
)
def test_one_client_is_joint_training_with_two_optimisers(method, fresh, client_model):
    e = experiment(
        "split learning",
        method={**method, "client_epochs": 2},
        models={"client": client_model, "server": "resnet10"},
        data={"clients": 1, "train": 97, "partition": {"name": "iid"}},  # batches of 32, 32 and 33
        optimizer={  # small steps: large ones blow the rounding of a mean up to visible size
            "client": {"name": "sgd", "lr": 0.001, "momentum": 0.9},
            "server": {"name": "sgd", "lr": 0.002, "momentum": 0.5},
        },
    )
    world = e.build_world()
    play = Play(world, rounds=2)

    extractor, half = world.client_architecture(0).build().extractor, world.server_architecture.build()
    for number in (1, 2):
        if number == 1 or "extractor" in fresh:
            client_optimizer = world.client_optimizer.build(extractor.parameters())
        if number == 1 or "half" in fresh:
            server_optimizer = world.server_optimizer.build(half.parameters())
        client = Client(world, Request(0, "begin", number, 0, 0, Message({})), {}, WorkerCache())
        for batch in client.batches(epochs=2):
            client_optimizer.zero_grad()
            server_optimizer.zero_grad()
            F.cross_entropy(half(extractor(batch.images)), batch.labels).backward()
            client_optimizer.step()
            server_optimizer.step()

    for got, expected in (
        (play.state.extractor, extractor.state_dict()),
        (play.state.model.state_dict(), half.state_dict()),
    ):
        assert got.keys() == expected.keys()
        for name, tensor in expected.items():
            assert torch.allclose(got[name], tensor, rtol=0, atol=1e-6), name


# ---- by hand ----------------------------------------------------------------------------------------------------


def edge(shape, classes):
    """f_e: the identity of two numbers."""
    extractor = nn.Sequential(nn.Flatten(), nn.Linear(2, 2, bias=False))
    nn.init.eye_(extractor[1].weight)
    return SplitModel(extractor, nn.Linear(2, classes))


def half(shape, classes):
    """f_s: the identity of two numbers."""
    layer = nn.Linear(2, 2, bias=False)
    nn.init.eye_(layer.weight)
    return layer


# Client 0 has one sample x = (1, 0) of class 0, client 1 has three of x = (0, 2) of class 1. Everything is SGD with a
# rate of 1 from E = W = I, one batch each.
CLIENTS = [([[1.0, 0.0]], [0]), ([[0.0, 2.0]] * 3, [1] * 3)]
Q, R = 1 / (1 + math.e), 1 / (1 + math.e**2)
IDENTITY = torch.eye(2)
# Client 0: logits (1, 0), p - y = (-q, q) with q = sigmoid(-1). E and W lose (-q, q) x^T, as H = x and dL/dH = p - y.
ALONE_0 = torch.tensor([[1 + Q, 0], [-Q, 1]])
# Client 1 alike, with r = sigmoid(-2): p - y = (r, -r), times x^T = (0, 2).
ALONE_1 = torch.tensor([[1, -2 * R], [0, 1 + 2 * R]])
# Client 1 after client 0 on one server half. H = (0, 2) whichever extractor it has, logits (0, 2), p - y = (r, -r):
W = ALONE_0 + torch.tensor([[0, -2 * R], [0, 2 * R]])
# dL/dH = W^T (p - y) with W = ALONE_0: ((1 + 2q) r, -r). E loses it times (0, 2).
MOVE_1 = torch.tensor([[0, -2 * (1 + 2 * Q) * R], [0, 2 * R]])


def by_hand(method, clients=CLIENTS, **settings):
    world = worlds_by_hand.world(method, clients, model=f"{__name__}:edge", **settings)
    server = OptimizerSettings(name="sgd", lr=1.0)
    return dataclasses.replace(world, server_model=f"{__name__}:half", server_optimizer=server)


def test_split_learning_hands_the_extractor_from_client_to_client():
    play = Play(by_hand(Split()))
    assert play.asked == [(0, "begin"), (0, "finish"), (1, "begin"), (1, "finish")]
    assert torch.equal(play.begun_with(0), IDENTITY)
    assert torch.allclose(play.begun_with(1), ALONE_0)
    assert torch.allclose(play.extractor, ALONE_0 + MOVE_1)
    assert torch.allclose(play.half, W)


def test_splitfed_v2_has_one_server_half_and_the_mean_of_the_extractors():
    play = Play(by_hand(SplitFed()))
    assert play.asked == [(0, "begin"), (1, "begin"), (0, "finish"), (1, "finish")]
    assert torch.equal(play.begun_with(1), IDENTITY)
    assert torch.allclose(play.extractor, ALONE_0 / 4 + (IDENTITY + MOVE_1) * 3 / 4)
    assert torch.allclose(play.half, W)


def test_splitfed_v1_is_the_mean_of_both_halves():
    play = Play(by_hand(SplitFed(variant="v1")))
    mean = ALONE_0 / 4 + ALONE_1 * 3 / 4
    assert torch.allclose(play.extractor, mean)
    assert torch.allclose(play.half, mean)


def test_the_headline_is_the_stacked_model_on_the_server():
    play = Play(by_hand(Split()))
    x, y = torch.tensor([[1.0, 0.0], *[[0.0, 2.0]] * 3]), torch.tensor([0, 1, 1, 1])
    logits = x @ (ALONE_0 + MOVE_1).T @ W.T
    assert play.metrics.accuracy == play.metrics.server["accuracy"] == 1.0
    assert play.metrics.server["loss"] == pytest.approx(F.cross_entropy(logits, y).item())
    assert play.metrics.clients is None


def test_clients_with_more_batches_go_on_when_others_are_done():
    play = Play(by_hand(SplitFed(), batch_size=1))
    assert play.asked == [
        (0, "begin"), (1, "begin"), (1, "step"), (1, "step"), (0, "finish"), (1, "finish")
    ]  # fmt: skip


# ---- what travels -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["split", "splitfed"])
def test_one_exchange_a_batch_with_the_bytes_of_equation_12(name, tmp_path):
    e = experiment(
        "split learning",
        method={"name": name, "client_epochs": 2},
        models={"client": "cnn"},
        rounds=1,
        participation={"fraction": 1.0},
    )
    result = catchment.run(e, out=tmp_path / "run")
    (row,) = [json.loads(line) for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()]

    def total(direction, prefix):
        return sum(
            len(entry["clients"]) * size
            for entry in row["entries"]
            if entry["direction"] == direction
            for tensor, size in entry["tensors"].items()
            if tensor.startswith(prefix)
        )

    def messages(direction):
        return sum(len(entry["clients"]) for entry in row["entries"] if entry["direction"] == direction)

    samples, epochs, features = 300, 2, 16 * 4 * 4  # of the cnn on 8 x 8 images
    assert total("up", "features") == total("down", "gradient") == epochs * samples * features * 4
    assert total("up", "labels") == epochs * samples * 8
    extractor = (16 * 9 + 16) * 4  # 3 x 3 from one channel to 16, and biases
    assert total("up", "weights/") == total("down", "weights/") == 5 * extractor
    sizes = [len(rows) for rows in e.build_world().data.clients]
    batches = sum(n // 32 if n % 32 == 1 and n > 1 else math.ceil(n / 32) for n in sizes)
    assert messages("up") == messages("down") == epochs * batches + 5
    assert result["bytes"]["evaluation"] == 0


# ---- the second pass --------------------------------------------------------------------------------------------

SEEN = []


class Forgetful(nn.Module):
    """An extractor with dropout, which shows what it made."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(2, 64), nn.Dropout(0.5))

    def forward(self, images):
        features = self.layers(images)
        SEEN.append(features.detach())
        return features


def forgetful(shape, classes):
    return SplitModel(Forgetful(), nn.Linear(64, classes))


def wide(shape, classes):
    return nn.Linear(64, classes)


def test_a_gradient_meets_the_features_that_were_sent_whatever_is_drawn():
    world = by_hand(Split(client_epochs=2), CLIENTS[:1])
    world = dataclasses.replace(world, client_models=(f"{__name__}:forgetful",), server_model=f"{__name__}:wide")
    _ = world.client_architecture(0).facts
    SEEN.clear()
    Play(world)
    first, first_again, second, second_again = SEEN[-5:-1]  # the last one is of the evaluation
    assert torch.equal(first, first_again)
    assert torch.equal(second, second_again)
    assert not torch.equal(first == 0, second == 0)


# ---- clients that are lost or send nonsense ---------------------------------------------------------------------


def lose(number):
    """Lose one reply of client 0."""

    def tamper(response, before):
        if (response.client, before) == (0, number):
            return response._replace(body=None, error="gone")
        return response

    return tamper


def test_a_client_lost_in_its_turn_hands_nothing_over():
    play = Play(by_hand(Split(client_epochs=2)), rounds=1, tamper=lose(1))
    assert play.asked == [(0, "begin"), (0, "step"), (1, "begin"), (1, "step"), (1, "finish")]
    assert torch.equal(play.begun_with(1), IDENTITY)
    assert play.fleet.outcomes.counts.lost == 1
    again = Play(by_hand(Split(client_epochs=2)), rounds=2, tamper=lose(1))
    assert again.asked[5:] == [(k, handler) for k in (0, 1) for handler in ("begin", "step", "finish")]


def test_an_extractor_lost_at_the_end_of_a_turn_is_that_from_before():
    play = Play(by_hand(Split()), tamper=lose(1))
    assert torch.allclose(play.extractor, IDENTITY + MOVE_1)
    assert torch.allclose(play.half, W)  # the server's step with client 0 stays


@pytest.mark.parametrize("number", [0, 1])
def test_who_is_lost_is_left_out_of_the_means(number):
    play = Play(by_hand(SplitFed(variant="v1")), tamper=lose(number))
    assert torch.allclose(play.extractor, ALONE_1)
    assert torch.allclose(play.half, ALONE_1)


@pytest.mark.parametrize(("method", "kept"), [(Split(), {"optimizer"}), (SplitFed(), set())])
def test_what_stays_on_a_client_after_its_turn(method, kept):
    world = by_hand(method)
    momentum = OptimizerSettings(name="sgd", lr=1.0, momentum=0.9)
    play = Play(dataclasses.replace(world, client_optimizer=momentum))
    versions, bench = Versions(), WorkerCache()
    for request in [request for request in play.requests if request.client == 0]:
        assert not serve(play.server.world, request, versions, bench).failed
    assert set(versions.newest(100)) == kept


@pytest.mark.parametrize(("method", "momentum"), [(Split(), 7.0), (SplitFed(), None)])
def test_a_turn_begins_with_the_clients_optimiser_or_with_a_fresh_one(method, momentum):
    """Whatever an earlier turn left behind, even one that was cut off."""
    versions = Versions()
    versions.restore({"optimizer": {"0.momentum_buffer": torch.full((2, 2), 7.0)}})
    request = Request(0, "begin", 1, 0, 0, Extractor({"1.weight": IDENTITY}).pack())
    assert not serve(by_hand(method), request, versions, WorkerCache()).failed
    left = versions.newest(100)["optimizer"]
    assert [tensor.unique().tolist() for tensor in left.values()] == ([[momentum]] if momentum else [])


@pytest.mark.parametrize("method", [Split(), SplitFed(), SplitFed(variant="v1")])
def test_a_round_without_anybody_changes_no_extractor(method):
    play = Play(by_hand(method), tamper=lambda response, before: response._replace(body=None, error="gone"))
    assert torch.equal(play.extractor, IDENTITY)
    assert torch.equal(play.half, IDENTITY)


def bend(number, **changes):
    """Replace tensors or scalars in one reply of client 0."""

    def tamper(response, before):
        if (response.client, before) != (0, number):
            return response
        tensors, scalars = dict(response.body.tensors), dict(response.body.scalars)
        for name, value in changes.items():
            if name in scalars:
                scalars[name] = value
            else:
                tensors[name.replace("weight_", "weights/1.weight")] = value
        return response._replace(body=Message(tensors, scalars))

    return tamper


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"features": torch.ones(1, 3)}, r"features is of shape \[1, 3\]; size 1 should be 2"),
        ({"features": torch.ones(2, 2)}, r"labels is of shape \[1\]; size 0 should be 2 as in the other"),
        ({"features": torch.ones(1, 2).double()}, r"features is float64 of 2 dimensions; float32"),
        ({"features": torch.tensor([[1.0, math.nan]])}, "features has numbers from nan to nan"),
        ({"labels": torch.tensor([2])}, "labels has numbers from 2 to 2; 0 to 1 is expected"),
        ({"labels": torch.tensor([-1])}, "labels has numbers from -1 to -1; 0 to 1 is expected"),
        ({"labels": torch.tensor([1.0])}, "labels is float32 of 1 dimensions; int64 of 1 is expected"),
        (
            {"features": torch.ones(0, 2), "labels": torch.tensor([]).long()},
            "features is of shape .*; at least 1 row",
        ),
    ],
)
@pytest.mark.parametrize("method", [Split(), SplitFed()])
def test_a_batch_that_cannot_be_is_refused_and_ends_the_turn(method, changes, reason):
    play = Play(by_hand(method), tamper=bend(0, **changes))
    assert [asked for asked in play.asked if asked[0] == 0] == [(0, "begin")]
    assert play.fleet.outcomes.counts.refused == 1
    (event,) = play.fleet.outcomes.events
    assert (event["what"], event["client"], event["handler"]) == ("refused", 0, "begin")
    assert re.match(reason, event["why"])
    assert torch.allclose(play.extractor, ALONE_1)  # as if client 0 had not been there
    assert torch.allclose(play.half, ALONE_1)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"weight_": torch.ones(3, 2)},
            r"weights/1\.weight is of shape \[3, 2\]; size 0 should be 2",
        ),
        ({"weight_": torch.full((2, 2), math.inf)}, "weights has the norm inf"),
        ({"weight_2": torch.ones(1)}, r"no tensor 'weights/1\.weight2' is expected"),
        ({"samples": 0}, "samples is 0; 1 to 1 is expected"),
    ],
)
@pytest.mark.parametrize("method", [Split(), SplitFed()])
def test_an_extractor_that_cannot_be_is_refused(method, changes, reason):
    play = Play(by_hand(method), tamper=bend(1, **changes))
    (event,) = play.fleet.outcomes.events
    assert (event["what"], event["client"], event["handler"]) == ("refused", 0, "finish")
    assert re.match(reason, event["why"])
    assert torch.allclose(play.extractor, IDENTITY + MOVE_1)


# ---- before anything runs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["split", "splitfed"])
def test_worlds_that_cannot_work_are_refused(name):
    def build(**models):
        return experiment("split learning", method={"name": name}, models=models).build_world()

    world = build(client="cnn", server="resnet10")
    with pytest.raises(ModelError, match=rf"{name} trains a server half on features; set models\.server"):
        world.method.check(dataclasses.replace(world, server_model=None))
    with pytest.raises(ModelError, match=rf"{name} .*so all need one architecture.*cnn, resnet4"):
        build(client=["cnn", "resnet4"], server="resnet10")
    with pytest.raises(ModelError, match="do not fit"):
        build(client="cnn", server="resnet20")


def test_wrong_settings_are_refused():
    for method in (Split, SplitFed):
        with pytest.raises(ExperimentError, match="client_epochs is 0"):
            read_table(method, {"client_epochs": 0})
    with pytest.raises(ExperimentError, match='variant is the text "v3"; expected one of v1, v2'):
        read_table(SplitFed, {"variant": "v3"})
