"""What a handler sees of its client."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from worlds import experiment
from worlds_by_hand import HandlersOnly, world

from catchment.core.client import Client
from catchment.core.server import Server
from catchment.core.worker import WorkerCache
from catchment.data.parts import Parts
from catchment.errors import DataError
from catchment.exchange.message import Message
from catchment.exchange.request import Request
from catchment.learning.optimizers import OptimizerSettings

CLIENTS = [([[1.0, 0.0]] * 4, [0, 1, 0, 1]), ([[0.0, 2.0]] * 3, [1] * 3)]


class Keeps(HandlersOnly):
    persistent: ClassVar[tuple[str, ...]] = ("model", "optimizer")


WORLD = world(Keeps(), CLIENTS, batch_size=2)


def client_of(number=0, state=None, cache=None, in_world=WORLD, **fields):
    request = Request(number, "x", fields.get("round", 1), fields.get("turn", 0), 0, Message({}))
    return Client(in_world, request, {} if state is None else state, cache or WorkerCache())


def test_a_model_has_the_weights_it_is_given_and_forgets_the_last_step():
    cache = WorkerCache()
    model = client_of(cache=cache).model({"1.weight": torch.full((2, 2), 3.0)})
    model(torch.ones(1, 1, 1, 2)).sum().backward()
    model.eval()
    again = client_of(1, cache=cache).model()
    assert again is model
    assert again[1].weight.eq(0).all()
    assert again[1].weight.grad is None
    assert again.training


def test_what_is_kept_is_there_in_the_next_request_optimiser_included():
    """Momentum 0.5 and gradients of -1: steps of 1 and 1.5."""
    heavy = replace(WORLD, client_optimizer=OptimizerSettings(name="sgd", lr=1.0, momentum=0.5, batch_size=2))
    state, cache = {}, WorkerCache()
    for weight in (1.0, 2.5):
        client = client_of(state=state, cache=cache, in_world=heavy)
        model, optimizer = client.own_model()
        model[1].weight.grad = -torch.ones(2, 2)
        optimizer.step()
        assert model[1].weight.eq(weight).all()
        client.keep(model, optimizer)
        state = {group: {name: t.clone() for name, t in tensors.items()} for group, tensors in client.state.items()}
    assert client_of(state=state, cache=cache, in_world=heavy).kept_model()[1].weight.eq(2.5).all()
    fresh = client_of(1, cache=cache, in_world=heavy)
    assert fresh.kept_model()[1].weight.eq(0).all()
    assert not fresh.own_model()[1].state


def test_seeds_depend_on_purpose_client_round_and_turn():
    seeds = [
        client_of().seed("a"), client_of().seed("b"), client_of(1).seed("a"), client_of(round=2).seed("a"),
        client_of(turn=1).seed("a"),
    ]  # fmt: skip
    assert len(set(seeds)) == 5
    assert client_of().seed("a") == seeds[0]


def test_a_model_is_scored_on_the_test_set_or_on_what_is_given():
    """All logits are 0, so class 0 is predicted: 2 of 7 test samples have it, and 2 of the client's 4."""
    client = client_of()
    assert client.evaluate(client.model()).accuracy == pytest.approx(2 / 7)
    assert client.evaluate(client.model(), client.train).accuracy == 0.5


def test_an_epoch_can_be_cut_short_to_see_what_a_request_costs():
    client = client_of(cache=WorkerCache(batches=1))
    assert [len(batch.labels) for batch in client.batches(epochs=2)] == [2, 2]


def test_a_batch_by_number_is_that_of_the_first_request_of_the_round_in_every_request():
    def client(turn):
        return Client(WORLD, Request(1, "order", 3, turn, 0, Message({})), {}, WorkerCache())

    whole = list(client(0).batches(epochs=4))
    assert client(0).batches_per_epoch == 1  # three samples in batches of two: the last one joins
    assert len({tuple(batch.ids.tolist()) for batch in whole}) > 1
    for turn in (0, 5):
        for number, batch in enumerate(whole):
            assert all(mine.equal(its) for mine, its in zip(client(turn).batch(number), batch))


def test_a_client_without_samples_has_no_batch_to_give():
    rows = Parts.of([torch.tensor([]).long(), *[*WORLD.data.clients][1:]])
    empty = replace(WORLD, data=replace(WORLD.data, clients=rows))
    with pytest.raises(DataError, match=r"client 0 has no samples to train on; another data\.partition"):
        Client(empty, Request(0, "order", 1, 0, 0, Message({})), {}, WorkerCache()).batch(0)


def test_handlers_and_server_see_the_public_data_and_the_ids_of_its_samples():
    own = experiment("fedmd").build_world()
    public = own.data.public
    assert client_of(in_world=own).public is public
    assert Server(own).public is public
    assert torch.equal(public.ids, public.index)
