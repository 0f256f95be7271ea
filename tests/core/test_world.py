"""What both sides agree on, and what is refused before anything runs."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from worlds_by_hand import HandlersOnly, world

from catchment.codecs import Codecs
from catchment.errors import DataError, ExperimentError, ModelError

CLIENTS = [([[1.0, 0.0]], [0]), ([[0.0, 2.0]], [1]), ([[1.0, 2.0]], [1])]
WORLD = world(HandlersOnly(), CLIENTS)
MIXED = replace(WORLD, client_models=("worlds_by_hand:linear", "worlds_by_hand:normed"))


class Keeps(HandlersOnly):
    persistent: ClassVar[tuple[str, ...]] = ("model",)


def test_models_are_dealt_to_the_clients_in_turn():
    names = [MIXED.client_architecture(client).name for client in range(MIXED.clients)]
    assert names == ["worlds_by_hand:linear", "worlds_by_hand:normed", "worlds_by_hand:linear"]
    assert MIXED.client_architecture(0) is MIXED.client_architecture(2)


def test_facts_of_a_model_by_hand():
    """A linear layer from 2 features to 2 classes has 4 weights, and as many multiply-accumulates per sample."""
    facts = WORLD.client_architecture(0).facts
    assert (facts.parameters, facts.total_macs, facts.draws, facts.features) == (4, 4, False, None)


def test_shared_weights_need_one_architecture():
    assert WORLD.one_architecture("fedavg") is WORLD.client_architecture(0)
    with pytest.raises(ModelError, match=r"fedavg shares weights among clients.*linear, worlds_by_hand:normed"):
        MIXED.one_architecture("fedavg")


def test_clients_that_measure_themselves_need_test_samples():
    WORLD.check_tests("standalone")
    none = WORLD.data.test.select(torch.tensor([], dtype=torch.int64))
    with pytest.raises(DataError, match="clients of standalone measure their models themselves; put a test split"):
        replace(WORLD, data=replace(WORLD.data, test=none)).check_tests("standalone")


def test_public_labels_must_be_there():
    with pytest.raises(ExperimentError, match=r"it trains on them, and there are none: set data\.public"):
        WORLD.need_public_labels("it trains on them")


@pytest.mark.parametrize(
    ("changes", "remembers"),
    [
        ({}, False),
        ({"method": Keeps()}, True),
        ({"codecs": Codecs.parse(["up:x=feedback+fp16"])}, True),
        ({"codecs": Codecs.parse(["x=fp16"])}, False),
    ],
)
def test_clients_remember_for_the_method_or_for_the_codecs(changes, remembers):
    assert replace(WORLD, **changes).remembers is remembers
