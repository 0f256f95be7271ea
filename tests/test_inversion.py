"""The probe: what it hears, what it rebuilds, how it scores, and that a run does not notice it."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from worlds import experiment

from catchment import Message, run
from catchment.decoders import convolutions, feature_maps, known_features, linear_map, standardised
from catchment.errors import ExperimentError
from catchment.inversion import CuriousServer, ProbeSettings
from catchment.likeness import correlation, correlations, structural_similarity
from catchment.message import Request
from catchment.pictures import GAP, LEAST
from catchment.run import resume

QUICK = {"inversion": True, "images": 100, "epochs": 1}


def images(count, *shape, seed=0):
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed))


# ---- scores -----------------------------------------------------------------------------------------------------


def test_correlation_knows_neither_scale_nor_brightness():
    image = torch.tensor([[[[1.0, 2.0], [3.0, 5.0]]]])
    assert correlation(image, 3 * image - 7).item() == pytest.approx(1)
    assert correlation(image, -image).item() == pytest.approx(-1)
    other = torch.tensor([[[[1.0, 1.0], [-1.0, -1.0]]]])  # (-1.75 - 0.75 - 0.25 - 2.25) / sqrt(8.75 * 4)
    assert correlation(image, other).item() == pytest.approx(-5 / 35**0.5)
    assert correlations(image, torch.cat([image, other]))[0].tolist() == pytest.approx([1, -5 / 35**0.5])


def test_structural_similarity_of_flat_images_is_that_of_their_brightness():
    dark, light = torch.full((1, 1, 8, 8), 0.2), torch.full((1, 1, 8, 8), 0.6)
    assert structural_similarity(dark, light).item() == pytest.approx((0.24 + 1e-4) / (0.04 + 0.36 + 1e-4), rel=1e-3)
    noise = images(1, 3, 8, 8).sigmoid()
    assert structural_similarity(noise, noise).item() == pytest.approx(1)
    assert structural_similarity(noise, 1 - noise).item() < 0


# ---- the way back -----------------------------------------------------------------------------------------------


def test_a_linear_map_takes_mixed_channels_apart_again():
    mix = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, -1.0], [1.0, 0.0, 3.0]])
    own, private = images(40, 3, 6, 6), images(5, 3, 6, 6, seed=1)
    known, heard = (torch.einsum("ij,njhw->nihw", mix, batch) for batch in (own, private))
    assert torch.allclose(linear_map(known, own)(heard), private, atol=1e-2)


def test_a_linear_map_from_smaller_maps_gives_blocks_of_pixels():
    own, private = images(40, 1, 8, 8), images(5, 1, 8, 8, seed=1)
    known, heard = (torch.pixel_unshuffle(batch, 2) for batch in (own, private))
    assert known.shape == (40, 4, 4, 4)
    assert torch.allclose(linear_map(known, own)(heard), private, atol=1e-2)


@pytest.mark.parametrize("shape", [(16,), (1, 3, 3)])
def test_vectors_and_maps_that_do_not_fit_are_taken_as_a_whole(shape):
    own = images(60, 1, 4, 4)
    maps = feature_maps(images(60, *shape), own.shape[1:])
    assert maps.shape == (60, torch.Size(shape).numel(), 1, 1)
    vectors = own.flatten(1).flip(1)
    assert torch.allclose(
        linear_map(feature_maps(vectors, own.shape[1:]), own)(vectors[..., None, None]), own, atol=1e-2
    )


def test_a_decoder_learns_and_is_the_same_for_the_same_seed():
    own, private = images(100, 1, 4, 4), images(10, 1, 4, 4, seed=1)
    taught = convolutions(own.square(), own.abs(), 30, seed=3)(private.square())
    assert correlation(taught, private.abs()).mean() > 0.9
    assert torch.equal(taught, convolutions(own.square(), own.abs(), 30, seed=3)(private.square()))
    assert not torch.equal(taught, convolutions(own.square(), own.abs(), 30, seed=4)(private.square()))


@pytest.mark.parametrize("training", [True, False])
def test_features_are_made_in_the_mode_in_which_clients_made_theirs(training):
    extractor = nn.BatchNorm2d(2)
    with torch.no_grad():
        extractor.running_mean += 5
    own, private = images(60, 2, 4, 4), images(60, 2, 4, 4, seed=1)
    heard = private if training else private - 5
    found = known_features(extractor, own, heard)
    assert found.mean().item() == pytest.approx(0 if training else -5, abs=0.2)


def test_standardised_features_do_not_tell_how_an_extractor_scales_them():
    maps = images(20, 3, 4, 4)
    moved = maps * torch.tensor([1.0, 5.0, 0.1]).view(3, 1, 1) + 2
    assert torch.allclose(standardised(maps), standardised(moved), atol=1e-3)


# ---- in a run ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "more", "attackers"),
    [
        ("fedgkt", {"models": {"client": "resnet4"}}, ["first"]),
        ("fedgkt", {"models": {"client": "resnet4"}, "wire": {"codecs": ["features=int8+sparse"]}}, ["first"]),
        ("fedgkt", {"models": {"client": "resnet4"}, "data": {"augment": ["crop", "flip"]}}, ["first"]),
        ("split learning", {}, ["first", "current"]),  # augmented, two epochs
        ("splitfed, v1", {}, ["first", "current"]),
        ("transfer", {"models": {"client": "resnet4"}}, ["first"]),  # rows are samples in order, without ids
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


def test_features_that_stay_as_they_were_before_augmentation_are_scored_so():
    method = {"name": "fedgkt", "augment_features": False}
    more = {"method": method, "models": {"client": "resnet4"}, "data": {"augment": ["crop", "flip"]}}
    found = run(experiment("fedgkt", rounds=1, probe=QUICK, **more))["probe"][0]
    assert found["attacks"]["linear map, first extractor"]["correlation"] > 0.97


def test_no_more_images_are_attacked_than_asked_for():
    found = run(experiment("split learning", rounds=1, probe={**QUICK, "attacked": 40}))["probe"][0]
    assert found["images"] == 40


def test_without_the_probe_nothing_is_overheard():
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


# ---- what is not attacked ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["ids of another client", "too few ids", "no rows"])
def test_what_does_not_fit_the_clients_samples_is_passed_over(wrong):
    world = experiment("fedgkt").build_world()
    curious = CuriousServer(ProbeSettings(**QUICK), world)
    own, other = world.data.clients[0], world.data.clients[1]
    ids = {"ids of another client": other[:3], "too few ids": own[:2], "no rows": own[:0]}[wrong]
    features = torch.zeros(0 if wrong == "no rows" else 3, 16, 4, 4)
    request = Request(0, "local_training", 1, 0, 0, Message({}))
    curious.overhear(request, Message({"features": features, "ids": ids}))
    assert curious.attack(None, None) is None


@pytest.mark.parametrize(
    ("name", "more", "says"),
    [
        ("fedavg", {}, "clients of FedAvg send none"),
        ("fedgkt", {"engine": "flower"}, "scores itself with private images"),
        ("transfer", {"models": {"client": "models_of_users:dropout", "server": "mlp"}}, "with an extractor"),
        ("fedgkt", {"probe": {"inversion": True, "epochs": 0}}, "epochs is 0"),
    ],
)
def test_a_probe_that_cannot_work_is_refused(name, more, says):
    with pytest.raises(ExperimentError, match=says):
        experiment(name, **{"probe": QUICK, **more}).build_world()
