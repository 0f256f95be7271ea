"""Weights from a file, which may hold only a part of a model's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from catchment.errors import ModelError

WHOLE = ("server.", "classifier.")  # what precedes the names of a half in the file of a whole model


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, such as `catchment export` writes."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"models.weights {path} cannot be read as a safetensors file: {error}") from None


def fitting(own: Mapping[str, Tensor], given: Mapping[str, Tensor], *, half: bool) -> dict[str, Tensor]:
    """The given tensors that have the name and the shape of one of a model's own.

    A half, which takes features, also finds its tensors in a whole model: under `server.`, as runs export it, or under
    `classifier.`.
    """
    found = {}
    for name, tensor in own.items():
        for candidate in (name, *(prefix + name for prefix in WHOLE if half)):
            if candidate in given and given[candidate].shape == tensor.shape:
                found[name] = given[candidate].to(tensor.dtype)
                break
    return found
