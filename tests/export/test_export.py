"""Exported files compute what the model does, and say what it is."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from worlds import experiment

import catchment
from catchment.errors import UserError
from catchment.export import FORMATS, formats, open_model

PACKAGES = {"safetensors": "safetensors", "torch": "torch", "onnx": "onnxruntime", "executorch": "executorch"}
Image = pytest.importorskip("PIL.Image")


@pytest.fixture(scope="module")
def averaged(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "averaged"
    catchment.run(experiment("fedavg", rounds=1, evaluation={"average": 0.9}), out=directory)
    return catchment.Run(directory)


@pytest.mark.parametrize("pixels", [False, True])
@pytest.mark.parametrize("format", FORMATS)
def test_a_file_gives_the_models_outputs_for_any_number_of_images(averaged, tmp_path, format, pixels):
    pytest.importorskip(PACKAGES[format])
    if pixels and format == "safetensors":
        pytest.skip("weights cannot normalise")
    path = tmp_path / f"model{FORMATS[format]}"
    written = averaged.export(path, format=format, pixels=pixels)
    opened = open_model(path)
    images = averaged.world.data.test.images[:40]
    with torch.no_grad():
        wanted = averaged.model()(averaged.world.normalise(images))  # moving averages
        given = images.float() if pixels else averaged.world.normalise(images)
        for some in (slice(1), slice(3), slice(40)):
            assert torch.allclose(opened.outputs(given[some]), wanted[some], atol=1e-5)
    assert written.error < 1e-5
    assert opened.about["input"] == ("pixels" if pixels else "normalised")
    assert not list(tmp_path.glob(".part*"))


def test_predictions_are_those_of_the_model(averaged, tmp_path):
    averaged.export(tmp_path / "model.pt2", format="torch", pixels=True)
    averaged.export(tmp_path / "model.safetensors")
    grey = (averaged.world.data.test.images[:3].float() * (255 / 16)).round().byte()  # as a camera has them: 0 to 255
    files = [tmp_path / f"{number}.png" for number in range(3)]
    for file, image in zip(files, grey):
        Image.fromarray(image[0].numpy()).save(file)
    normalise = dataclasses.replace(averaged.world.normalise, scale=255)
    with torch.no_grad():
        shares, numbers = averaged.model()(normalise(grey)).softmax(1).max(1)
    for name in ("model.pt2", "model.safetensors"):
        answers = open_model(tmp_path / name).predict(files)
        assert [answer.name for answer in answers] == [str(number) for number in numbers.tolist()]
        assert [answer.probability for answer in answers] == pytest.approx(shares.tolist(), abs=1e-5)
    Image.new("RGB", (20, 30)).save(tmp_path / "large.png")
    (answer,) = open_model(tmp_path / "model.pt2").predict([tmp_path / "large.png"])
    assert 0.1 <= answer.probability <= 1


def test_a_file_that_differs_is_not_kept(averaged, tmp_path, monkeypatch):
    write = formats._WRITERS["torch"]

    def spoiled(model, images, about, path):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 1
        write(model, images, about, path)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 1

    monkeypatch.setitem(formats._WRITERS, "torch", spoiled)
    with pytest.raises(UserError, match=r"the torch file differs from PyTorch by up to .* it was not kept"):
        averaged.export(tmp_path / "model.pt2", format="torch")
    assert list(tmp_path.iterdir()) == []


def test_an_extractor_with_the_servers_half_is_one_model(tmp_path):
    catchment.run(experiment("fedgkt", rounds=1), out=tmp_path / "run")
    run = catchment.Run(tmp_path / "run")
    run.export(tmp_path / "client.safetensors", client=1)
    opened = open_model(tmp_path / "client.safetensors")
    images = run.world.normalise(run.world.data.test.images[:4])
    with torch.no_grad():
        assert torch.allclose(opened.outputs(images), run.client_model(1)(images), atol=1e-6)
    run.export(tmp_path / "half.safetensors")
    assert load_file(tmp_path / "half.safetensors").keys() == run.model().state_dict().keys()
    card = (tmp_path / "half.safetensors.md").read_text()
    assert "takes features that a client's extractor makes of images" in card
    assert "measured with the extractors of clients" in card
    with pytest.raises(UserError, match="a server's half takes features; export the model of a client"):
        run.export(tmp_path / "half.pt2", format="torch")


def test_float_images_are_not_normalised_by_anybody(tmp_path):
    (tmp_path / "floats.py").write_text(
        "import torch\n"
        "from catchment import Dataset\n\n\n"
        "def data():\n"
        "    images, labels = torch.rand(40, 1, 8, 8), torch.arange(40) % 2\n"
        "    return Dataset.of(images, labels, images, labels)\n"
    )
    table = {"rounds": 1, "path": str(tmp_path), "data": {"name": "floats:data", "clients": 2}}
    catchment.run(catchment.Experiment.from_dict({**table, "models": {"client": "mlp"}}), out=tmp_path / "run")
    run = catchment.Run(tmp_path / "run", trust=True)
    with pytest.raises(UserError, match="images are floating-point numbers, which nothing normalises"):
        run.export(tmp_path / "model.pt2", format="torch", pixels=True)
    run.export(tmp_path / "model.pt2", format="torch")
    assert "as the data set has them" in (tmp_path / "model.pt2.md").read_text()
    with pytest.raises(UserError, match="takes images of floating-point numbers as its data set made them"):
        open_model(tmp_path / "model.pt2").predict([tmp_path / "any.png"])


def test_images_of_more_than_8_bits_are_refused(averaged, tmp_path):
    averaged.export(tmp_path / "model.safetensors")
    Image.fromarray(np.full((8, 8), 40_000, np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(UserError, match=r"deep\.png has more than 8 bits per pixel"):
        open_model(tmp_path / "model.safetensors").predict([tmp_path / "deep.png"])


def test_a_card_says_what_the_model_is(averaged, tmp_path):
    averaged.export(tmp_path / "model.pt2", format="torch", pixels=True)
    card = (tmp_path / "model.pt2.md").read_text()
    assert "trained by fedavg" in card
    assert "pixels from 0 to 16;" in card  # as digits have them
    assert f"| accuracy | {averaged.result['accuracy']:.4f} |" in card
    assert f"{averaged.result['bytes']['up']:,} bytes up" in card
    assert "## Licence\n\nTo be filled in" in card


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("model.onx", b"", r"ends with none of \.safetensors, \.pt2, \.onnx, \.pte"),
        ("model.safetensors", b"nonsense", "is no model that catchment export wrote"),
        ("model.pt2", b"nonsense", "is no model that catchment export wrote"),
        ("model.onnx", b"nonsense", "is no model that catchment export wrote"),
        ("none.pt2", None, "there is no model"),
    ],
)
def test_what_is_no_model_is_one_sentence(tmp_path, name, content, why):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=why):
        open_model(tmp_path / name)


def test_what_cannot_be_asked_for_is_refused(averaged, tmp_path):
    with pytest.raises(UserError, match='unknown format "onxx"; did you mean "onnx"'):
        averaged.export(tmp_path / "model", format="onxx")
    with pytest.raises(UserError, match="safetensors holds weights, which cannot normalise"):
        averaged.export(tmp_path / "model.safetensors", pixels=True)
    with pytest.raises(UserError, match=r"model\.torch must end with \.pt2, by which predict knows the format torch"):
        averaged.export(tmp_path / "model.torch", format="torch")
    with pytest.raises(UserError, match=r"model must end with \.safetensors"):
        averaged.export(tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_weights_of_own_code_need_it(tmp_path):
    tied = {"client": "models_of_users:tied"}
    catchment.run(experiment("fedavg", rounds=1, models=tied), out=tmp_path / "run")
    run = catchment.Run(tmp_path / "run", trust=True)
    run.export(tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="the code of their model is not Catchment's"):
        open_model(tmp_path / "model.safetensors")
    run.export(tmp_path / "model.pt2", format="torch")
    assert json.loads(json.dumps(open_model(tmp_path / "model.pt2").about))["model"] == "models_of_users:tied"
