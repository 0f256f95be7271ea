"""FedPM: frozen weights, masks and their count by hand."""

from __future__ import annotations

import math

import pytest
import torch
from worlds import experiment

import catchment
from catchment.core.intake import Reply
from catchment.core.server import Server
from catchment.errors import ExperimentError
from catchment.methods.fedpm import FedPM, Masks, frozen, masked
from catchment.reading import read_table


def server() -> Server:
    own = Server(experiment("fedpm", models={"client": "resnet4"}).build_world())
    own.round = 1
    return own


class Told:
    """A fleet whose replies are given."""

    def __init__(self, replies) -> None:
        self.replies = replies

    def cohort(self):
        return [reply.client for reply in self.replies]

    def ask(self, handler, bodies, in_order):
        return iter(self.replies)


def test_weights_are_signs_times_their_deviation_and_the_rest_stays():
    architecture = server().world.client_architecture(0)
    first, fixed = architecture.facts.initial, frozen(architecture)
    convolution = first["extractor.0.weight"]
    size = math.sqrt(float(convolution.double().square().mean()))
    assert torch.allclose(fixed["extractor.0.weight"], size * convolution.sign())
    assert torch.equal(fixed["extractor.1.weight"], first["extractor.1.weight"])
    assert masked(architecture) == [name for name, w in fixed.items() if w.dim() > 1]
    assert "extractor.1.weight" not in masked(architecture)


def replies(own: Server, masks: dict[int, float]) -> list[Reply[Masks]]:
    """Clients that keep this share of every tensor, its first numbers; their statistics are their number."""
    method, found = FedPM(), []
    state = method.init(own)
    for client, share in masks.items():
        kept = {n: torch.arange(t.numel()).view(t.shape) < round(share * t.numel()) for n, t in state.theta.items()}
        buffers = {n: torch.full_like(b, client) for n, b in state.buffers.items()}
        found.append(Reply(client, 1, Masks(kept, buffers, len(own.world.data.clients[client]), 0.0)))
    return found


def test_a_probability_is_the_share_of_clients_that_kept_the_weight():
    own, method = server(), FedPM()
    state, fleet = method.init(own), Told(replies(own, {0: 1.0, 1: 0.5, 2: 0.5}))
    assert all(0 <= float(theta.min()) < 0.1 < 0.9 < float(theta.max()) < 1 for theta in state.theta.values())
    method.round(own, state, fleet)
    theta = state.theta["extractor.0.weight"].reshape(-1)
    assert theta.tolist() == pytest.approx([1.0] * (len(theta) // 2) + [1 / 3] * (len(theta) // 2))
    sizes = [len(own.world.data.clients[client]) for client in range(3)]
    mean = (sizes[1] + 2 * sizes[2]) / sum(sizes)
    assert state.buffers["extractor.1.running_mean"].tolist() == pytest.approx([mean] * 16)


def test_rounds_are_counted_together_until_the_reset():
    own, method = server(), FedPM(reset_every=2)
    state = method.init(own)
    seen = []
    for number, share in ((1, 1.0), (2, 0.0), (3, 0.0)):
        own.round = number
        method.round(own, state, Told(replies(own, {0: share})))
        seen.append(float(state.theta["extractor.0.weight"].mean()))
    assert seen == [1, 0.5, 0]


def test_the_model_is_the_frozen_one_under_a_mask():
    own, method = server(), FedPM()
    state = method.init(own)
    state.theta = {name: torch.full_like(theta, 0.25) for name, theta in state.theta.items()}
    weights, fixed = method.global_weights(own, state), frozen(own.world.client_architecture(0))
    kept = weights["classifier.0.body.0.weight"] != 0
    assert 0.2 < float(kept.float().mean()) < 0.3
    assert torch.equal(weights["classifier.0.body.0.weight"][kept], fixed["classifier.0.body.0.weight"][kept])
    own.round = 9
    again = method.global_weights(own, state)
    assert all(torch.equal(weights[name], again[name]) for name in weights)


def test_a_mask_takes_a_bit_a_weight_or_less():
    settings = experiment("fedpm", models={"client": "resnet8"}, participation={"fraction": 0.2}, rounds=1)
    result = catchment.run(settings)
    weights = sum(t.numel() for t in FedPM().init(Server(settings.build_world())).theta.values())
    assert 0.95 < 8 * result["bytes_by_field"]["up"]["masks"] / weights < 1.03


def test_it_learns():
    settings = {
        "method": {"name": "fedpm", "client_epochs": 5},
        "models": {"client": "cnn"},
        "optimizer": {"client": {"name": "adam", "lr": 0.5, "batch_size": 16}},
        "data": {"train": 600, "clients": 4, "partition": {"name": "iid"}},
    }
    assert catchment.run(experiment("fedpm", rounds=4, participation={"fraction": 1.0}, **settings))["accuracy"] > 0.4


def test_settings_that_make_no_sense():
    with pytest.raises(ExperimentError, match=r"clamp is 0\.5; a number between"):
        read_table(FedPM, {"clamp": 0.5})
    with pytest.raises(ExperimentError, match="reset_every is 0"):
        read_table(FedPM, {"reset_every": 0})
