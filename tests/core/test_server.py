"""The server's tools: one module per architecture, batches and seeds of a round."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from worlds_by_hand import HandlersOnly, world

from catchment.core.server import Server
from catchment.errors import ModelError

CLIENTS = [([[1.0, 0.0]] * 3, [0, 1, 0]), ([[0.0, 2.0]] * 3, [1] * 3)]
WORLD = world(HandlersOnly(), CLIENTS)


def server_of(round: int = 1) -> Server:
    server = Server(WORLD)
    server.begin_round(round)
    return server


def test_the_model_of_a_client_is_one_module_that_the_next_call_overwrites():
    server = server_of()
    model = server.client_model(0, {"1.weight": torch.full((2, 2), 3.0)})
    assert model[1].weight.eq(3).all()
    assert server.client_model(1, {"1.weight": torch.full((2, 2), 4.0)}) is model
    assert model[1].weight.eq(4).all()


def test_what_a_client_keeps_is_its_model_and_before_that_its_first_weights():
    server = server_of()
    assert server.kept_model(0, {"model": {"1.weight": torch.full((2, 2), 3.0)}})[1].weight.eq(3).all()
    assert server.kept_model(0, {})[1].weight.eq(0).all()


def test_batches_are_shuffled_anew_in_every_round_or_come_in_order():
    def order(round: int, **options) -> list[int]:
        batches = server_of(round).batches(WORLD.data.test, 2, epochs=2, **options)
        return torch.cat([batch.ids for batch in batches]).tolist()

    assert order(1, shuffle=False) == [0, 1, 2, 3, 4, 5] * 2
    assert order(1) == order(1)
    assert len({tuple(order(round)) for round in range(1, 6)}) > 1
    first = order(1)
    assert sorted(first[:6]) == sorted(first[6:]) == [0, 1, 2, 3, 4, 5]


def test_a_batch_is_as_large_as_the_servers_optimiser_says_unless_the_size_is_given():
    settings = replace(WORLD.server_optimizer, batch_size=4)
    server = Server(replace(WORLD, server_optimizer=settings))
    assert [len(batch.ids) for batch in server.batches(WORLD.data.test)] == [4, 2]
    assert [len(batch.ids) for batch in server.batches(WORLD.data.test, 3)] == [3, 3]


def test_a_model_is_scored_on_the_test_set_or_on_what_is_given():
    """All logits are 0, so class 0 is predicted: 2 of the 6 test samples have it, none of client 1's."""
    server = server_of()
    model = server.client_model(0)
    assert server.evaluate(model).accuracy == pytest.approx(2 / 6)
    assert server.evaluate(model, WORLD.private(1)).accuracy == 0


def test_seeds_depend_on_purpose_and_round():
    seeds = [server_of().seed("a"), server_of().seed("b"), server_of().seed("a", 1), server_of(2).seed("a")]
    assert len(set(seeds)) == 4
    assert server_of().seed("a") == seeds[0]


def test_a_round_begins_without_notes():
    server = server_of()
    server.notes["loss"] = 1.0
    server.begin_round(2)
    assert server.notes == {}
    assert server.round == 2


def test_a_server_without_a_model_says_which_setting_is_missing():
    with pytest.raises(ModelError, match=r"this method needs a server model; set models\.server"):
        server_of().model()


def test_what_a_model_draws_depends_on_the_round_and_the_pass_alone():
    dropping = world(HandlersOnly(), [([[1.0] * 64], [0])], model="models_of_users:dropout")

    def outputs(round: int) -> list[torch.Tensor]:
        server = Server(dropping)
        model = server.client_model(0)
        server.begin_round(round)
        model = server.client_model(0).train()
        torch.rand(1)  # somebody else draws
        return [model(torch.ones(2, 64)) for _ in range(2)]

    (one, two), (again, _), (later, _) = outputs(1), outputs(1), outputs(2)
    assert torch.equal(one, again)
    assert not torch.equal(one, two)
    assert not torch.equal(one, later)


def test_what_a_model_draws_leaves_the_global_generator_alone():
    server = Server(world(HandlersOnly(), [([[1.0] * 64], [0])], model="models_of_users:dropout"))
    server.begin_round(1)
    before = torch.get_rng_state()
    server.client_model(0).train()(torch.ones(2, 64))
    with pytest.raises(RuntimeError):
        server.client_model(0).train()(torch.ones(2, 3))
    assert torch.equal(before, torch.get_rng_state())
