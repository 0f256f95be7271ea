"""A model as a file, written only if it computes what the model does.

`safetensors` holds weights; the others are whole programs with any number of images per call: `torch` (torch.export),
`onnx`, and `executorch` (XNNPACK; up to 15 images per call). What a model is stands in the file as JSON, and beside an
ExecuTorch file, which has no place for it.
"""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from torch import Tensor, nn

from catchment.data import Normalisation
from catchment.errors import CatchmentError, UserError, needs, printable
from catchment.exchange.message import plain
from catchment.export.opening import ABOUT, MOST_EXECUTORCH, open_model, sidecar

TOLERANCE = 1e-4  # of the largest output, or of 1
About = Mapping[str, Any]


class Written(NamedTuple):
    """A file that was kept."""

    path: Path
    parameters: int
    images: int  # on which it was compared with the model
    error: float  # the largest difference of an output


class FromPixels(nn.Module):
    """A model that takes pixels, from 0 to the scale of its data set, and normalises them itself."""

    def __init__(self, model: nn.Module, normalise: Normalisation) -> None:
        super().__init__()
        mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (normalise.mean, normalise.std))
        self.model = model
        self.register_buffer("factor", 1 / (std * normalise.scale))
        self.register_buffer("offset", mean / std)

    def forward(self, images: Tensor) -> Tensor:
        """Outputs for float32 images `[N, C, H, W]`."""
        return self.model(images * self.factor - self.offset)  # type: ignore[operator, no-any-return]


def write_model(model: nn.Module, images: Tensor, about: About, format: str, path: Path) -> Written:
    """Write a model in evaluation mode; nothing is left behind if the file differs from it on these images.

    `images` are float32 `[N, C, H, W]`, as the model takes them.
    """
    model = model.requires_grad_(False)
    for tensor in (*model.parameters(), *model.buffers()):  # ExecuTorch does not take the memory order of training
        tensor.data = tensor.data.clone(memory_format=torch.contiguous_format)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if format == "safetensors":
        # Cloned because safetensors refuses tensors that share memory, as tied weights do.
        tensors = {name: plain(tensor).clone() for name, tensor in model.state_dict().items()}
        text = {name: value if isinstance(value, str) else json.dumps(value) for name, value in about.items()}
        with _kept(path) as part:
            part.write_bytes(safetensors.torch.save(tensors, text))
        return Written(path, parameters, 0, 0.0)
    _check_takes(model, images)
    # NNPACK is for fewer than 16 images, and programs would be too.
    with _kept(path) as part, warnings.catch_warnings(), torch.backends.nnpack.flags(enabled=False):
        warnings.simplefilter("ignore")  # of exporters, about their own deprecated names
        try:
            _WRITERS[format](model, images, about, part)
        except CatchmentError:
            raise
        except Exception as error:  # of exporters, which have many of their own
            why = printable(f"{type(error).__name__}: {error}", 200)
            raise UserError(f"this model cannot be written as {format}; another --format may do ({why})") from error
        largest = _largest_error(model, open_model(part).outputs, images, format)
        if sidecar(part).exists():
            os.replace(sidecar(part), sidecar(path))
    return Written(path, parameters, len(images), largest)


def _check_takes(model: nn.Module, images: Tensor) -> None:
    try:
        outputs = model(images[:1])
    except RuntimeError:
        outputs = None
    if not isinstance(outputs, Tensor):
        raise UserError(
            f"this model does not take images of shape {list(images.shape[1:])}: a server's half takes features; "
            "export the model of a client with --client K (client=K)"
        )


@contextmanager
def _kept(path: Path) -> Iterator[Path]:
    """A file beside `path` that takes its place if all went well."""
    part = path.with_name(f".part-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield part
            os.replace(part, path)
        finally:
            for rest in (part, sidecar(part)):
                rest.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None


def _largest_error(model: nn.Module, outputs: Callable[[Tensor], Tensor], images: Tensor, format: str) -> float:
    """On one image and on all; a difference that matters is refused."""
    largest = 0.0
    for some in (images[:1], images):
        wanted = model(some)
        error = float((outputs(some) - wanted).abs().max())
        if not error <= TOLERANCE * max(1.0, float(wanted.abs().max())):
            raise UserError(
                f"the {format} file differs from PyTorch by up to {error:.2g} on {len(some)} test images; at most "
                f"{TOLERANCE:g} of the largest output is expected, so it was not kept. Try another --format"
            )
        largest = max(largest, error)
    return largest


def _exported(model: nn.Module, images: Tensor, most: int | None = None) -> torch.export.ExportedProgram:
    """The program for any number of images, or for at most so many."""
    batch = torch.export.Dim("batch", min=1, max=most)
    return torch.export.export(model, (images[:2],), dynamic_shapes=({0: batch},))


def _write_torch(model: nn.Module, images: Tensor, about: About, path: Path) -> None:
    with path.open("wb") as file:  # torch.export wants a name of its own choice otherwise
        torch.export.save(_exported(model, images), file, extra_files={ABOUT: json.dumps(dict(about))})


def _write_onnx(model: nn.Module, images: Tensor, about: About, path: Path) -> None:
    with needs("the format onnx", "onnx"):
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    log = logging.getLogger("torch.onnx")
    before, log.level = log.level, logging.ERROR  # that torchvision is not there is no news
    try:
        program = torch.onnx.export(
            _exported(model, images), input_names=["images"], output_names=["outputs"], dynamo=True, verbose=False
        )
    finally:
        log.level = before
    assert program is not None
    program.model.metadata_props[ABOUT] = json.dumps(dict(about))
    program.save(str(path))


def _write_executorch(model: nn.Module, images: Tensor, about: About, path: Path) -> None:
    with needs("the format executorch", "executorch"):
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
        from executorch.exir import to_edge_transform_and_lower
    program = _exported(model, images, most=MOST_EXECUTORCH)
    lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()]).to_executorch()
    path.write_bytes(lowered.buffer)
    sidecar(path).write_text(json.dumps(dict(about), indent=1) + "\n")


_WRITERS: dict[str, Callable[[nn.Module, Tensor, About, Path], None]] = {
    "torch": _write_torch,
    "onnx": _write_onnx,
    "executorch": _write_executorch,
}
FORMATS = {"safetensors": ".safetensors", "torch": ".pt2", "onnx": ".onnx", "executorch": ".pte"}
"""Names of formats, and how their files end."""
