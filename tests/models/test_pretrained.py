"""Weights from a file: what fits takes the place of first weights, and the rest stays."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file
from worlds import experiment

from catchment.core.server import Server
from catchment.errors import ExperimentError, ModelError
from catchment.models import build, fitting, read_weights


def test_names_and_shapes_must_fit():
    own = {"a": torch.zeros(2), "b": torch.zeros(3), "c": torch.zeros(1)}
    given = {"a": torch.ones(2), "b": torch.ones(2), "d": torch.ones(1)}
    assert {name: tensor.tolist() for name, tensor in fitting(own, given, half=False).items()} == {"a": [1, 1]}


def test_a_half_finds_its_tensors_in_a_whole_model():
    own = {"0.weight": torch.zeros(1)}
    for name in ("0.weight", "server.0.weight", "classifier.0.weight"):
        assert fitting(own, {name: torch.ones(1)}, half=True)["0.weight"].item() == 1
    assert not fitting(own, {"classifier.0.weight": torch.ones(1)}, half=False)


def test_a_whole_resnet_gives_both_halves_their_weights():
    shape, features = (3, 8, 8), (16, 8, 8)
    whole = build("resnet11", shape, 10, seed=3).state_dict()
    half = build("resnet10", features, 10, seed=4)
    assert fitting(half.state_dict(), whole, half=True).keys() == half.state_dict().keys()
    edge = build("resnet8", shape, 10, seed=5).state_dict()
    assert {n for n in edge if n.startswith("extractor.")} <= fitting(edge, whole, half=False).keys()


def test_every_model_of_a_run_begins_with_what_fits(tmp_path):
    given = {"classifier.2.bias": torch.full((10,), 7.0)}
    names = experiment("fedavg", models={"client": "cnn"}).build_world().client_architecture(0).facts.initial
    (bias,) = [name for name in names if name.endswith("bias") and names[name].shape == (10,)]
    save_file({bias: given["classifier.2.bias"]}, tmp_path / "bias.safetensors")
    weights = {"client": "cnn", "weights": str(tmp_path / "bias.safetensors")}
    world = experiment("fedavg", models=weights).build_world()
    first = Server(world).first_weights()
    assert first[bias].tolist() == [7.0] * 10
    assert all(torch.equal(first[name], names[name]) for name in names if name != bias)
    assert world.client_architecture(0).build().state_dict()[bias].tolist() == [7.0] * 10
    assert world.first_weights(3)[bias].tolist() == [7.0] * 10


def test_a_file_that_fits_nothing_is_refused_with_both_names(tmp_path):
    save_file({"other": torch.zeros(2)}, tmp_path / "other.safetensors")
    models = {"client": "mlp", "weights": str(tmp_path / "other.safetensors")}
    with pytest.raises(
        ModelError, match=r"models\.weights has no tensor that fits mlp: it has other \[2\], and mlp has"
    ):
        experiment("fedavg", models=models).build_world()
    (tmp_path / "text").write_text("no tensors")
    for path in ("nowhere.safetensors", "text"):
        with pytest.raises(ModelError, match=r"models\.weights .* cannot be read as a safetensors file"):
            read_weights(tmp_path / path)


def test_devices_do_not_read_files_that_a_server_names(tmp_path):
    """Where clients make their first weights themselves, they would begin with others than the server thinks."""
    bias = experiment("fedmd", models={"client": "mlp"}).build_world().client_architecture(0).facts.initial
    save_file(dict(list(bias.items())[:1]), tmp_path / "one.safetensors")
    models = {"client": "mlp", "weights": str(tmp_path / "one.safetensors")}
    with pytest.raises(ExperimentError, match="clients of fedmd make their own first weights"):
        experiment("fedmd", models=models, engine="flower").build_world()
    experiment("fedmd", models=models).build_world()
