"""Learning rates of a round, validation samples and a client's moving average, on both sides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor
from worlds_by_hand import HandlersOnly, world

from catchment.client.state import Versions
from catchment.config.experiment import Experiment
from catchment.core.client import AVERAGE
from catchment.core.method import on_client
from catchment.core.server import Server
from catchment.core.worker import WorkerCache
from catchment.exchange.message import Message
from catchment.exchange.payload import Payload
from catchment.exchange.request import TRAINING, VALIDATION, Request
from catchment.learning.optimizers import OptimizerSettings
from catchment.learning.schedules import Schedule
from catchment.runtimes.torch import serve

HALVES = Schedule("step", every=1, factor=0.5)
PLATEAU = Schedule("plateau", patience=1, factor=0.5)


@dataclass(frozen=True)
class Question(Payload):
    """Nothing."""


@dataclass(frozen=True)
class Answer(Payload):
    number: float
    weight: Tensor | None = None


@dataclass(frozen=True)
class Steps(HandlersOnly):
    """Every step adds the learning rate to all weights."""

    persistent: ClassVar[tuple[str, ...]] = ("model", "optimizer")

    @on_client
    def rate(self, client, request: Question) -> Answer:
        optimizer = client.optimizer(client.model())
        assert optimizer.param_groups[0]["lr"] == client.rate
        return Answer(client.rate)

    @on_client
    def step(self, client, request: Question) -> Answer:
        model, optimizer = client.own_model()
        model[1].weight.grad = -torch.ones_like(model[1].weight)
        optimizer.step()
        client.keep(model, optimizer)
        return Answer(model[1].weight[0, 0].item())

    @on_client
    def step_of_another_model(self, client, request: Question) -> Answer:
        model = client.model()
        optimizer = client.optimizer(model)
        model[1].weight.grad = torch.ones_like(model[1].weight)
        optimizer.step()
        return Answer(0.0)

    @on_client
    def measured(self, client, request: Question) -> Answer:
        return Answer(float(len(client.test)), client.kept_model()[1].weight)


CLIENTS = [([[1.0, 0.0]] * 4, [0, 1, 0, 1])]


def steps(**changes):
    return replace(world(Steps(), CLIENTS, lr=1.0), rounds=4, **changes)


def ask(w, handler, *, round=1, sequence=0, versions=None, cache=None, purpose=TRAINING, drops=0) -> Answer:
    request = Request(0, handler, round, 0, sequence, Message({}), purpose, rate_drops=drops)
    response = serve(w, request, Versions() if versions is None else versions, cache or WorkerCache())
    assert response.error == ""
    return Answer.unpack(response.body)


# ---- rates ------------------------------------------------------------------------------------------------------


def test_a_client_has_the_rate_of_the_round() -> None:
    w = steps(client_optimizer=OptimizerSettings("sgd", lr=0.8, schedule=HALVES))
    cache = WorkerCache()
    assert [ask(w, "rate", round=round, cache=cache).number for round in (1, 2, 3, 1)] == [0.8, 0.4, 0.2, 0.8]


def test_a_request_says_how_often_the_rate_dropped() -> None:
    w = steps(client_optimizer=OptimizerSettings("sgd", lr=0.8, schedule=PLATEAU))
    assert [ask(w, "rate", drops=drops).number for drops in (0, 1, 2)] == [0.8, 0.4, 0.2]


def test_optimisers_of_the_server_have_the_rate_of_the_round() -> None:
    own, other = OptimizerSettings("sgd", lr=0.8, schedule=HALVES), OptimizerSettings("sgd", lr=4.0, schedule=PLATEAU)
    server = Server(steps(server_optimizer=own))
    model = server.client_model(0)
    first, second = server.optimizer(model), server.optimizer(model, other)

    def rates() -> tuple[float, float]:
        return first.param_groups[0]["lr"], second.param_groups[0]["lr"]

    assert rates() == (0.8, 4.0)
    server.begin_round(2, [0.5])
    assert rates() == (0.4, 4.0) == (server.rate(), server.rate(other))
    assert server.share == 0.5
    server.begin_round(3, [0.5, 0.4])
    assert rates() == (0.2, 2.0)
    assert server.optimizer(model).param_groups[0]["lr"] == 0.2  # made in the middle of a round


def test_the_server_does_not_hold_optimisers_that_are_gone() -> None:
    server = Server(steps())
    server.optimizer(server.client_model(0))
    assert len(server._optimizers) == 0


# ---- validation -------------------------------------------------------------------------------------------------


def test_validation_samples_stand_in_for_the_test_set() -> None:
    w = steps()
    w = replace(w, data=replace(w.data, validation=w.data.test.select(torch.arange(3))))
    assert ask(w, "measured", purpose="evaluation").number == 4
    assert ask(w, "measured", purpose=VALIDATION).number == 3
    server = Server(w)
    with server.validating():
        assert len(server.test) == 3
    assert len(server.test) == 4


# ---- averages ---------------------------------------------------------------------------------------------------


def test_a_client_keeps_the_average_of_its_own_model_and_measures_it() -> None:
    w, versions, cache = steps(average=0.15), Versions(), WorkerCache()
    assert ask(w, "step", sequence=0, versions=versions, cache=cache).number == 1.0  # average 0.9
    assert ask(w, "step_of_another_model", sequence=1, versions=versions, cache=cache)  # which is no business of it
    assert ask(w, "step", sequence=2, versions=versions, cache=cache).number == 2.0
    average = 0.15 * 0.9 + 0.85 * 2.0
    assert versions.newest(9)[AVERAGE]["1.weight"][0, 0].item() == pytest.approx(average)
    assert versions.newest(9)["model"]["1.weight"][0, 0].item() == 2.0
    for purpose in ("evaluation", VALIDATION):
        measured = ask(w, "measured", sequence=9, versions=versions, purpose=purpose)
        assert measured.weight[0, 0].item() == pytest.approx(average)


def test_without_an_average_nothing_is_kept_for_it() -> None:
    w, versions = steps(), Versions()
    ask(w, "step", versions=versions)
    assert set(versions.newest(9)) == {"model", "optimizer"}
    assert ask(w, "measured", sequence=9, versions=versions, purpose="evaluation").weight[0, 0].item() == 1.0


@pytest.mark.parametrize(
    ("method", "average"),
    [("fedgkt", 0.99), ("fedgems", 0.99), ("fedmd", 0.99), ("centralized", 0.99), ("fedavg", 0.0), ("splitfed", 0.0)],
)
def test_a_method_says_whether_its_models_are_averaged(method, average):
    """The written file has the number, so that it gives the same experiment again."""
    experiment = Experiment.from_dict({"method": {"name": method}})
    assert experiment.to_dict()["evaluation"]["average"] == average
    assert Experiment.from_toml(experiment.to_toml()).evaluation.average == average
    chosen = Experiment.from_dict({"method": {"name": method}, "evaluation": {"average": 0.5}})
    assert chosen.to_dict()["evaluation"]["average"] == 0.5


@pytest.mark.parametrize(("given", "decay"), [({}, 0.99), ({"average": 0.0}, 0.0)])
def test_the_file_goes_before_the_method(given, decay):
    settings = {"method": {"name": "standalone"}, "data": {"name": "digits", "clients": 2, "train": 40}}
    assert Experiment.from_dict({**settings, "evaluation": given}).build_world().average == decay
