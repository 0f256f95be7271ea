"""Exported files, run: by the end of their names, in any of the formats."""

from __future__ import annotations

import json
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from catchment import models
from catchment.data import Normalisation
from catchment.errors import UserError, needs, printable

ABOUT = "about.json"  # what a file says of its model
MOST_IMAGES = 64  # per call
WHITE = 255.0  # in image files, whatever it is in the data set that a model was trained on
MOST_EXECUTORCH = 15  # per call: with more, its exporter picks other convolutions and bounds the program all the same


_NOT_IMAGES = {
    "features": "a client's features",
    "floats": "images of floating-point numbers as its data set made them",
}


class Answer(NamedTuple):
    """What a model says of an image."""

    file: Path
    name: str  # of the class
    probability: float


class Opened(NamedTuple):
    """An exported model that can be run."""

    outputs: Callable[[Tensor], Tensor]  # of at most 64 float32 images
    about: dict[str, Any]

    def predict(self, files: Sequence[Path]) -> list[Answer]:
        """The most probable class of each image file; images of another size are scaled."""
        if self.about.get("task", "classification") != "classification":
            raise UserError(f"this model is for {self.about['task']}; predict shows classes, and it has none per image")
        if (takes := self.about.get("input")) in _NOT_IMAGES:
            raise UserError(f"this model takes {_NOT_IMAGES[takes]}; predict reads image files")
        images = torch.stack([_pixels(file, self.about["shape"]) for file in files])
        if takes == "pixels":
            images = images.float() * (self.about["scale"] / WHITE)
        else:
            images = Normalisation(WHITE, tuple(self.about["mean"]), tuple(self.about["std"]))(images)
        with torch.no_grad():
            outputs = torch.cat([self.outputs(some) for some in torch.split(images, MOST_IMAGES)])
        shares, numbers = outputs.double().softmax(1).max(1)
        classes = self.about["classes"]
        return [
            Answer(file, classes[number], share)
            for file, number, share in zip(files, numbers.tolist(), shares.tolist())
        ]


def sidecar(path: Path) -> Path:
    """The file beside an ExecuTorch program that says what it is."""
    return path.with_name(f"{path.name}.json")


def open_model(path: Path) -> Opened:
    """A file that `write_model` wrote."""
    if not path.is_file():
        raise UserError(f"there is no model {path}; catchment export writes one")
    if path.suffix not in _OPENERS:
        raise UserError(f"{path} ends with none of {', '.join(_OPENERS)}, which catchment export writes")
    try:
        return _OPENERS[path.suffix](path)
    except UserError:
        raise
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} is no model that catchment export wrote ({type(error).__name__}: {error})") from None


def _pixels(file: Path, shape: Sequence[int]) -> Tensor:
    """An image file as uint8 `[C, H, W]`."""
    with needs("reading images", "research"):
        from PIL import Image
    channels, height, width = shape
    try:
        with Image.open(file) as image:
            if image.mode.startswith(("I", "F")):
                raise UserError(f"{file} has more than 8 bits per pixel ({image.mode}); only 8-bit images are read")
            fitting = image.convert("L" if channels == 1 else "RGB")
            if fitting.size != (width, height):
                fitting = fitting.resize((width, height), Image.Resampling.BILINEAR)
            array = np.array(fitting)
    except OSError as error:
        raise UserError(f"{file} cannot be read as an image: {error}") from None
    return torch.from_numpy(array).view(height, width, -1).permute(2, 0, 1)


def _open_safetensors(path: Path) -> Opened:
    with safe_open(path, "pt") as file:
        about = {name: _value(text) for name, text in (file.metadata() or {}).items()}
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if "model" not in about or ":" in about["model"]:
        raise UserError(
            f"{path} holds weights, and the code of their model is not Catchment's; export it with --format torch or "
            "onnx, which need no code"
        )
    module = _built(about["model"], tuple(about["shape"]), len(about["classes"]))
    module.load_state_dict(weights)
    return Opened(module.eval(), about)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _built(name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """A model by name; `resnet8+resnet55` is the extractor of the one and the half of the other."""
    edge, plus, half = name.partition("+")
    module = models.build(edge, shape, classes, seed=0)
    if not plus:
        return module
    server = models.build(half, models.feature_shape(module, shape), classes, seed=0)
    return nn.Sequential(OrderedDict(extractor=module.get_submodule("extractor"), server=server))


def _open_torch(path: Path) -> Opened:
    extra = {ABOUT: ""}
    with path.open("rb") as file:
        program = torch.export.load(file, extra_files=extra)
    return Opened(program.module(), json.loads(extra[ABOUT]))


def _open_onnx(path: Path) -> Opened:
    with needs("a file in the format onnx", "onnx"):
        import onnxruntime
    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except Exception as error:  # of ONNX Runtime, which has many of its own
        raise ValueError(printable(error, 200)) from None

    def outputs(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {"images": images.numpy()})[0])

    return Opened(outputs, json.loads(session.get_modelmeta().custom_metadata_map[ABOUT]))


def _open_executorch(path: Path) -> Opened:
    with needs("a file in the format executorch", "executorch"):
        from executorch.runtime import Runtime
    program = Runtime.get().load_program(path)
    method = program.load_method("forward")

    def outputs(images: Tensor) -> Tensor:
        calls = torch.split(images.contiguous(), MOST_EXECUTORCH)
        return torch.cat([method.execute([some])[0].clone() for some in calls])

    return Opened(outputs, json.loads(sidecar(path).read_text()))


_OPENERS: dict[str, Callable[[Path], Opened]] = {
    ".safetensors": _open_safetensors,
    ".pt2": _open_torch,
    ".onnx": _open_onnx,
    ".pte": _open_executorch,
}
