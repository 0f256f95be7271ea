"""First weights: by seed, side and client, and shared where a method shares them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from worlds import experiment

from catchment import models
from catchment.core.server import Server
from catchment.data.parts import Parts
from catchment.families.features import first_weights


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def world(method="standalone", **settings):
    return experiment(method, models={"client": "mlp", "server": "mlp"}, **settings).build_world()


def test_every_client_begins_with_weights_of_its_own_and_always_with_the_same():
    one, again = world(), world()
    weights = [one.first_weights(client) for client in range(5)]
    assert not any(same(weights[a], weights[b]) for a in range(5) for b in range(a))
    assert all(same(weights[client], again.first_weights(client)) for client in range(5))
    assert not same(weights[0], dataclasses.replace(one, seed=one.seed + 1).first_weights(0))


def test_a_server_of_the_same_architecture_begins_elsewhere():
    own = world()
    server = Server(own).model().state_dict()
    assert server.keys() == own.first_weights(0).keys()
    assert not any(same(server, own.first_weights(client)) for client in range(5))
    assert not same(server, Server(own).first_weights())
    assert same(own.server_twin().facts.initial, server)


def test_what_is_shared_is_one_draw_for_all():
    fedavg = world("fedavg")
    assert same(fedavg.method.init(Server(fedavg)).weights, fedavg.client_architecture(3).facts.initial)


def test_extractors_of_fedgkt_begin_with_one_stem_whatever_the_heads():
    own = experiment("fedgkt", models={"client": ["resnet4", "resnet8"], "server": "resnet10"}).build_world()
    first = [first_weights(own, client, None, own=False) for client in range(4)]
    stems = [{name: w for name, w in weights.items() if name.startswith("extractor.")} for weights in first]
    assert len(stems[0]) > 1
    assert all(same(stems[0], stem) for stem in stems)
    assert not same(first[0], first[2])  # the same architecture with heads of their own
    sent = {"extractor.0.weight": torch.full_like(first[0]["extractor.0.weight"], 3.0)}
    assert bool((first_weights(own, 0, sent, own=False)["extractor.0.weight"] == 3).all())


def test_facts_and_modules_are_made_by_architecture_not_by_client(monkeypatch):
    built = []
    build = models.build
    monkeypatch.setattr(models, "build", lambda name, *rest: built.append(name) or build(name, *rest))
    own = experiment("standalone", models={"client": ["mlp", "cnn"]}).build_world()
    nothing = Parts(own.data.clients.whole[:0], np.zeros(1_000_000, dtype=np.int64))
    own = dataclasses.replace(own, data=dataclasses.replace(own.data, clients=nothing))
    assert own.clients == 1_000_000
    built.clear()
    for client in range(100):
        assert own.client_architecture(client * 9973).facts.parameters > 0
    assert sorted(built) == ["cnn", "mlp"]
    own.first_weights(999_999)
    assert built[2:] == ["cnn"]


@pytest.mark.parametrize("name", ["fedgkt", "fedzkt", "standalone", "fedmd"])
def test_a_client_that_was_never_asked_has_its_first_weights(name):
    own = experiment(name).build_world()
    server = Server(own)
    state = own.method.init(server)
    expected = first_weights(own, 1, None, own=False) if name == "fedgkt" else own.first_weights(1)
    weights = own.method.client_model(server, state, 1, {}).state_dict()
    assert all(torch.equal(weights[n], w) for n, w in expected.items() if n in weights)
    assert weights.keys() & expected.keys()
