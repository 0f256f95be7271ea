"""Features sent once: what goes up, what the server makes of it, and the model that comes out."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from safetensors.torch import save_file
from worlds import experiment

import catchment
from catchment.core.intake import Reply
from catchment.core.server import Server
from catchment.core.spool import Spool
from catchment.core.worker import WorkerCache
from catchment.errors import ExperimentError, ModelError, RunError
from catchment.exchange.request import Request
from catchment.families.features import FeatureStore, first_weights
from catchment.methods.oneshot import Features, OneShot, Start, State
from catchment.randomness import per_sample
from catchment.reading import read_table
from catchment.runtimes.torch import serve

EVERYBODY = {"participation": {"fraction": 1.0}}


def settings(few=True, **more):
    options = {key: more.pop(key) for key in ("mirror", "shift", "server_epochs") if key in more}
    return experiment("oneshot", few=few, method={"name": "oneshot", **options}, **{**EVERYBODY, **more})


def extracted(world, client=0, start=None, versions=None):
    request = Request(client, "extract", 1, 0, 1, Start(start).pack())
    response = serve(world, request, versions, WorkerCache())
    assert response.error == ""
    return Features.unpack(response.body), response.macs


# ---- the device -------------------------------------------------------------------------------------------------


def test_features_are_of_plain_images_and_of_their_mirror_images():
    world = settings(mirror=True, data={"augment": ["crop", "flip"]}).build_world()
    upload, _ = extracted(world, 2)
    samples = world.private(2)
    model = world.client_architecture(2).build()
    model.load_state_dict(first_weights(world, 2, None))
    images = world.normalise(samples.images[samples.index])
    with torch.no_grad():
        plain, mirrored = (model.eval().extractor(view) for view in (images, images.flip(3)))
    assert torch.allclose(upload.features, plain, atol=1e-5)
    assert torch.allclose(upload.mirrored, mirrored, atol=1e-5)
    assert torch.equal(upload.labels, samples.targets)
    assert torch.equal(upload.ids, samples.ids)


def test_a_device_remembers_nothing_and_works_for_one_forward_pass_of_the_first_layers():
    world = settings(models={"client": "resnet4"}).build_world()
    assert not world.remembers
    upload, macs = extracted(world)
    assert upload.mirrored is None
    assert macs == len(world.private(0)) * world.client_architecture(0).facts.macs["extractor"]
    assert extracted(settings(mirror=True, models={"client": "resnet4"}).build_world())[1] == 2 * macs


def test_first_layers_of_a_file_come_down_and_no_others(tmp_path):
    given = settings().build_world().client_architecture(0).build().state_dict()
    given = {name: torch.full(tensor.shape, 0.25) for name, tensor in given.items()}
    save_file(given, tmp_path / "cnn.safetensors")
    e = settings(models={"client": "cnn", "server": "resnet10", "weights": str(tmp_path / "cnn.safetensors")})
    world = e.build_world()
    start = world.method.start(Server(world), 0).weights
    assert start.keys() == {name for name in given if name.startswith("extractor.")}
    device = e.build_world(world.data)  # without the file
    assert torch.equal(extracted(device, start=start)[0].features, extracted(world)[0].features)
    assert not torch.equal(extracted(device)[0].features, extracted(world)[0].features)


# ---- what travels -----------------------------------------------------------------------------------------------


def entries(out, direction):
    """What crossed in training, round by round, as (clients, bytes by field)."""
    rows = [json.loads(line) for line in (out / "ledger.jsonl").read_text().splitlines()]
    return [
        [(entry["clients"], entry["tensors"]) for entry in row["entries"] if entry["direction"] == direction]
        for row in rows
    ]


def test_everything_goes_up_once_and_nothing_comes_down(tmp_path):
    result = catchment.run(settings(rounds=3, mirror=True), out=tmp_path / "run")
    up, down = entries(tmp_path / "run", "up"), entries(tmp_path / "run", "down")
    assert up[1:] == down[1:] == [[], []]
    sums = {name: sum(len(ks) * sizes[name] for ks, sizes in up[0]) for name in up[0][0][1]}
    features = 100 * 16 * 4 * 4 * 4
    assert {"features": features, "mirrored": features, "labels": 800, "ids": 800}.items() <= sums.items()
    assert {name for _, sizes in down[0] for name in sizes} == {"(framing)"}
    assert result["bytes"]["evaluation"] == 0
    assert result["bytes"]["up"] == sum(sums.values())


def test_who_was_lost_or_late_is_asked_again(tmp_path):
    faults = {"drop": 0.4}
    result = catchment.run(settings(rounds=6, faults=faults, participation={"fraction": 0.8}), out=tmp_path / "run")
    assert result["lost"] > 0
    assert sorted(catchment.Run(tmp_path / "run")._state.store.ids) == [0, 1, 2, 3, 4]
    asked = [sorted(k for clients, _ in row for k in clients) for row in entries(tmp_path / "run", "up")]
    assert sorted(k for row in asked for k in row) == [0, 1, 2, 3, 4]  # each came once


@pytest.mark.parametrize("mirror", [False, True])
def test_mirror_images_that_are_missing_or_not_asked_for_are_refused(mirror, monkeypatch):
    monkeypatch.setattr(OneShot, "extract", OneShot(mirror=not mirror).extract)
    said = "are missing" if mirror else "came that nobody asked for"
    with pytest.raises(RunError, match=f"all 5 clients failed; .* refused, features of mirror images {said}"):
        catchment.run(settings(rounds=1, mirror=mirror))


# ---- the server -------------------------------------------------------------------------------------------------


def state_of(*clients):
    """Four maps a client: of ones, tens or hundreds, with minus these for their mirror images."""
    state = State(torch.nn.Identity(), None, FeatureStore({"1x3x3": Spool()}), FeatureStore({"1x3x3": Spool()}))
    for k in clients:
        ids, maps = torch.arange(4), torch.full((4, 1, 3, 3), 10.0**k)
        OneShot().keep(state, Reply(k, 1, Features(maps, ids, ids, -maps)))
    return state


def test_the_mirror_image_is_taken_where_its_draw_is_below_a_half():
    draws = torch.tensor([[0.6, 0, 0], [0.4, 0, 0], [0.5, 0, 0], [0.0, 0, 0]])
    rows = torch.tensor([0, 5, 4, 3])  # client 2 has rows 0 to 3, client 0 has 4 to 7
    taken = OneShot(mirror=True).view(state_of(0, 2), [2, 0], rows, draws)
    assert taken[:, 0, 1, 1].tolist() == [100, -1, 1, -100]
    assert OneShot().view(state_of(0, 2), [2, 0], rows, draws)[:, 0, 1, 1].tolist() == [100, 1, 1, 100]


def test_maps_move_by_as_many_pixels_as_is_drawn_and_zeros_come_in():
    draws = torch.tensor([[1, 0.0, 0.5], [1, 0.99, 0.79], [1, 0.5, 0.5]])  # of five: -2, 0; 2, 1; 0, 0
    taken = OneShot(shift=2).view(state_of(0), [0], torch.arange(3), draws)[:, 0].tolist()
    assert taken[0] == [[1, 1, 1], [0, 0, 0], [0, 0, 0]]
    assert taken[1] == [[0, 0, 0], [0, 0, 0], [0, 1, 1]]
    assert taken[2] == [[1, 1, 1]] * 3


def test_draws_belong_to_the_row_of_the_epoch_whatever_batch_it_is_in():
    world = settings(mirror=True, server_epochs=2).build_world()
    found = []
    for size in (3, 5):
        server = Server(replace(world, server_optimizer=replace(world.server_optimizer, batch_size=size)))
        values = {}
        for batch in OneShot(mirror=True, server_epochs=2).epochs(server, state_of(0, 1), [0, 1]):
            for number, maps in zip(batch.ids.tolist(), batch.images):
                values.setdefault(number, []).append(float(maps[0, 1, 1]))
        found.append(dict(sorted(values.items())))
    assert found[0] == found[1]
    epochs = [per_sample(server.seed("augment", epoch, 0), torch.arange(8), 3)[:, 0] < 0.5 for epoch in (0, 1)]
    own = [1.0] * 4 + [10.0] * 4
    assert [found[0][n] for n in range(8)] == [[-x if one[n] else x for one in epochs] for n, x in enumerate(own)]


def test_the_server_trains_on_all_that_is_there_in_every_round(monkeypatch):
    calls, epochs = [], OneShot.epochs
    monkeypatch.setattr(OneShot, "epochs", lambda *given: calls.append(given[-1]) or epochs(*given))
    catchment.run(settings(rounds=9, participation={"fraction": 0.4}))
    assert len(calls[0]) == 2
    assert all(set(before) <= set(after) for before, after in pairwise(calls))
    assert calls[-1] == [0, 1, 2, 3, 4]


# ---- what comes out ---------------------------------------------------------------------------------------------


def test_the_accuracy_is_of_the_first_layers_followed_by_the_servers_model(tmp_path):
    two = {"client": ["cnn", "resnet4(16,2,1)"], "server": "resnet10"}
    result = catchment.run(settings(rounds=2, models=two, evaluation={"average": 0.9}), out=tmp_path / "run")
    run = catchment.Run(tmp_path / "run")
    test, right = run.world.data.test, []
    for client in range(5):
        model = run.client_model(client)
        stem = first_weights(run.world, client, None)
        assert all(torch.equal(w, stem[f"extractor.{name}"]) for name, w in model.extractor.state_dict().items())
        with torch.no_grad():
            found = model(run.world.normalise(test.images[test.index])).argmax(1)
        right.append(float((found == test.targets).float().mean()))
    assert sum(right) / 5 == pytest.approx(result["accuracy"], abs=1e-6)
    assert (right[0], right[1]) == (right[2], right[3])
    one = catchment.run(settings(rounds=2))
    assert one["server"]["accuracy"] == one["accuracy"]


def test_random_first_layers_are_enough_to_learn_from():
    """Digits, of which each went up once."""
    assert catchment.run(settings(few=False, rounds=12, mirror=True, shift=1, server_epochs=2))["accuracy"] > 0.6


# ---- what is refused --------------------------------------------------------------------------------------------


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ExperimentError, match="shift is -1; at least 0"):
        read_table(OneShot, {"shift": -1})
    with pytest.raises(ExperimentError, match="server_epochs is 0; at least 1"):
        read_table(OneShot, {"server_epochs": 0})
    with pytest.raises(ModelError, match=r"oneshot trains a server half on features; set models\.server"):
        OneShot().check(replace(settings().build_world(), server_model=None))
    with pytest.raises(ExperimentError, match=r"shift is 4, and features of cnn have the shape \[16, 4, 4\]"):
        settings(shift=4).build_world()
    flat = {"client": "models_of_users:flat_edge", "server": "models_of_users:flat_half"}
    with pytest.raises(ExperimentError, match=r"shift is 1, and features of models_of_users:flat_edge have the shape"):
        settings(shift=1, models=flat).build_world()
    assert catchment.run(settings(mirror=True, models=flat, rounds=2))["accuracy"] > 0
