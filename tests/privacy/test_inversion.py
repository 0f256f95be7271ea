"""The probe: what it hears, what it rebuilds, how it scores, and that a run does not notice it."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from worlds import experiment

from catchment import Message, run
from catchment.core.server import Server
from catchment.data.pictures import GAP, LEAST
from catchment.errors import ExperimentError
from catchment.exchange.request import Request
from catchment.families.features import first_weights
from catchment.launch import resume
from catchment.privacy.inversion import CuriousServer, ProbeSettings

QUICK = {"inversion": True, "images": 100, "epochs": 1}


def images(count, *shape, seed=0):
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed))


# ---- in a run ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "more", "attackers"),
    [
        ("fedgkt", {"models": {"client": "resnet4"}}, ["first"]),
        ("fedgkt", {"models": {"client": "resnet4"}, "wire": {"codecs": ["features=int8+sparse"]}}, ["first"]),
        ("fedgkt", {"models": {"client": "resnet4"}, "data": {"augment": ["crop", "flip"]}}, ["first"]),
        ("split learning", {}, ["first", "current"]),  # augmented, two epochs
        ("splitfed, v1", {}, ["first", "current"]),
    ],
)
def test_a_curious_server_sees_the_images_and_the_run_does_not_notice(name, more, attackers):
    probed = run(experiment(name, rounds=2, probe=QUICK, **more))
    assert probed["fingerprint"] == run(experiment(name, rounds=2, **more))["fingerprint"]
    assert [found["round"] for found in probed["probe"]] == [1, 2]
    for found in probed["probe"]:
        decoders = [f"{kind}, {known} extractor" for known in attackers for kind in ("linear map", "decoder")]
        assert list(found["attacks"]) == ["mean image", *decoders]
        linear = found["attacks"]["linear map, first extractor"]
        assert linear["correlation"] > 0.95
        assert linear["identified"] > 0.95
        assert linear["psnr"] > found["attacks"]["mean image"]["psnr"] + 6
        assert found["attacks"]["mean image"]["identified"] < 0.2
        assert found["private"] == 300


def test_features_of_mirror_images_do_not_make_a_leak_look_smaller():
    def found(mirror):
        more = {"method": {"name": "oneshot", "mirror": mirror}, "models": {"client": "resnet4"}}
        return run(experiment("oneshot", rounds=2, probe=QUICK, participation={"fraction": 1.0}, **more))["probe"]

    alone, beside = found(False), found(True)
    assert alone == beside
    assert [probed["round"] for probed in alone] == [1]  # nothing goes up later
    assert alone[0]["attacks"]["linear map, first extractor"]["correlation"] > 0.97


def test_no_more_images_are_attacked_than_asked_for():
    found = run(experiment("split learning", rounds=1, probe={**QUICK, "attacked": 40}))["probe"][0]
    assert found["images"] == 40


def test_without_the_probe_nothing_is_observed():
    result = run(experiment("fedgkt", rounds=1))
    assert result["probe"] is None


def test_a_run_with_a_probe_goes_on_to_the_same_result_and_leaves_pictures(tmp_path):
    probed = experiment("fedgkt", rounds=3, probe=QUICK)
    whole = run(probed, tmp_path / "whole")

    def stop(record):
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(probed, tmp_path / "stopped", observe=stop)
    assert resume(tmp_path / "stopped")["probe"] == whole["probe"]
    assert json.loads((tmp_path / "stopped" / "result.json").read_text())["probe"] == whole["probe"]
    for number in (1, 3):
        pictures = [
            (tmp_path / run / "images" / f"inversion-{number}.png").read_bytes() for run in ("whole", "stopped")
        ]
        assert pictures[0] == pictures[1]
        width, height = (int.from_bytes(pictures[0][at : at + 4], "big") for at in (16, 20))  # of a PNG's header
        assert (width, height) == (8 * (LEAST + GAP) - GAP, 2 * (LEAST + GAP) - GAP)


def test_rows_without_ids_are_the_clients_samples_in_order():
    world = experiment("fedgkt", models={"client": "resnet4"}, rounds=1).build_world()
    server, images = Server(world), world.private(0).images[world.private(0).index]
    model = world.client_architecture(0).build()
    model.load_state_dict(first_weights(world, 0, None, own=False))
    with torch.no_grad():
        features = model.eval().extractor(world.normalise(images))
    curious = CuriousServer(ProbeSettings(**QUICK), world)
    curious.observe(Request(0, "local_training", 1, 0, 0, Message({})), Message({"features": features}))
    found = curious.attack(server, world.method.init(server))
    assert found.images == len(images)
    assert found.attacks["linear map, first extractor"].correlation > 0.95


# ---- what is not attacked ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["ids of another client", "too few ids", "no rows"])
def test_what_does_not_fit_the_clients_samples_is_passed_over(wrong):
    world = experiment("fedgkt").build_world()
    curious = CuriousServer(ProbeSettings(**QUICK), world)
    own, other = world.data.clients[0], world.data.clients[1]
    ids = {"ids of another client": other[:3], "too few ids": own[:2], "no rows": own[:0]}[wrong]
    features = torch.zeros(0 if wrong == "no rows" else 3, 16, 4, 4)
    request = Request(0, "local_training", 1, 0, 0, Message({}))
    curious.observe(request, Message({"features": features, "ids": ids}))
    assert curious.attack(None, None) is None


def test_a_model_without_an_extractor_is_refused():
    world = experiment("fedgkt").build_world()
    world = dataclasses.replace(world, client_models=("models_of_users:dropout",))
    with pytest.raises(ExperimentError, match="with an extractor, such as resnet8"):
        ProbeSettings(**QUICK).check(world)


@pytest.mark.parametrize(
    ("name", "more", "says"),
    [
        ("fedavg", {}, "clients of FedAvg send none"),
        ("fedgkt", {"engine": "flower"}, "compares with the private images"),
        ("fedgkt", {"probe": {"inversion": True, "epochs": 0}}, "epochs is 0"),
    ],
)
def test_a_probe_that_cannot_work_is_refused(name, more, says):
    with pytest.raises(ExperimentError, match=says):
        experiment(name, **{"probe": QUICK, **more}).build_world()
