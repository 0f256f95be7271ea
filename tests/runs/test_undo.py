"""A round that breaks the server's state is undone, whoever sent what."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import nn
from worlds import experiment

import catchment
from catchment.core.fleet import Fleet
from catchment.errors import Diverged
from catchment.exchange.message import Message
from catchment.methods.fedgkt import FedGKT
from catchment.methods.fedprox import FedProx
from catchment.runs.undo import broken, restorer
from catchment.simulation import inprocess


@dataclass
class State:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    weights: dict[str, torch.Tensor]
    known: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)
    turns: list[int] = field(default_factory=list)


def test_a_state_comes_back_as_it_was():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    state = State(model, optimizer, {"w": torch.ones(2)}, {3: {"a": torch.zeros(1)}}, [1, 2])
    before = model.weight.detach().clone()
    undo = restorer(state)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state.weights["w"].mul_(torch.nan)
    state.weights = {}
    state.known[3]["a"] = torch.ones(1)
    state.known[4] = {}
    state.turns.append(3)
    undo()
    assert torch.equal(model.weight, before)
    assert not optimizer.state_dict()["state"]
    assert torch.equal(state.weights["w"], torch.ones(2))
    assert list(state.known) == [3]
    assert torch.equal(state.known[3]["a"], torch.zeros(1))
    assert state.turns == [1, 2]


def test_what_is_not_a_number_is_found_wherever_it_is():
    model = nn.BatchNorm1d(2)
    state = State(model, torch.optim.SGD(model.parameters()), {"w": torch.ones(2)}, {0: {"a": torch.arange(3)}})
    assert broken(state) == ""
    model.running_var[0] = torch.inf
    assert "not finite" in broken(state)
    model.running_var[0] = 1.0
    assert "not finite" in broken(replace(state, known={0: {"a": torch.tensor([torch.nan])}}))


def test_a_round_that_diverges_is_undone_and_the_client_that_stands_out_is_asked_no_more(monkeypatch, tmp_path):
    honest, train_server = inprocess.serve, FedGKT.train_server

    def serve(world, request, versions, cache):
        response = honest(world, request, versions, cache)
        if request.client == 0 and response.body is not None and "features" in response.body.tensors:
            huge = torch.full_like(response.body.tensors["features"], 9e5)
            response = response._replace(
                body=Message({**response.body.tensors, "features": huge}, response.body.scalars)
            )
        return response

    def fragile(self, server, state, clients):
        if 0 in clients:
            for parameter in state.model.parameters():
                parameter.data.fill_(torch.nan)
            raise Diverged("the loss is nan")
        train_server(self, server, state, clients)

    monkeypatch.setattr(inprocess, "serve", serve)
    monkeypatch.setattr(FedGKT, "train_server", fragile)
    result = catchment.run(experiment("fedgkt", participation={"fraction": 1.0}), tmp_path / "run")
    rounds = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    events = [(record["round"], event["what"], event["client"]) for record in rounds for event in record["events"]]
    assert events == [(1, "undone", None), (1, "suspended", 0)]
    assert rounds[1]["accuracy"] > 0.1
    assert (result["failed"], result["refused"]) == (0, 0)


def test_divergence_that_is_nobodys_fault_stops_the_run_with_its_reason(monkeypatch):
    def diverges(self, server, state, clients):
        raise Diverged("the loss is nan; a lower learning rate usually helps")

    monkeypatch.setattr(FedGKT, "train_server", diverges)
    with pytest.raises(Diverged, match="the loss is nan; a lower learning rate"):
        catchment.run(experiment("fedgkt", rounds=5))


def test_a_reply_that_makes_the_method_raise_undoes_the_round_and_a_mistake_of_the_method_is_raised(monkeypatch):
    ask = Fleet.ask

    def picky(self, handler, bodies, **more):
        for reply in ask(self, handler, bodies, **more):
            if reply.client == 2:
                raise IndexError("no such place")
            yield reply

    monkeypatch.setattr(Fleet, "ask", picky)
    events = []
    full = experiment("fedprox", participation={"fraction": 1.0})
    catchment.run(full, observe=lambda record: events.extend(record["events"]))
    assert [(event["what"], event["client"]) for event in events][:2] == [("undone", None), ("suspended", 2)]
    assert {event["what"] for event in events[2:]} <= {"late"}  # who was not heard when the round was undone, if any
    monkeypatch.setattr(Fleet, "ask", ask)
    monkeypatch.setattr(FedProx, "step", lambda self, server, state, mean: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        catchment.run(full)
