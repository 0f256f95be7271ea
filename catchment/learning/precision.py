"""Forward and backward passes in a lower precision; weights, messages and checkpoints stay float32."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn

from catchment.errors import ExperimentError
from catchment.models import is_split

Precision = Literal["float32", "bfloat16"]


def check_precision(precision: Precision, device: torch.device) -> None:
    """Refuse a precision that a torch device cannot compute in."""
    if precision != "float32" and not torch.amp.is_autocast_available(device.type):
        raise ExperimentError(
            f'precision is "{precision}", and the PyTorch device "{device}" has no automatic mixed precision; use '
            'precision = "float32", or another device'
        )


def in_precision(module: nn.Module, precision: Precision, device: torch.device) -> nn.Module:
    """The module, computing in a precision from now on; it returns float32, as do the parts of a split model."""
    if precision != "float32":
        for part in (module, *((module.extractor, module.classifier) if is_split(module) else ())):
            part.forward = _Autocast(part, device.type, getattr(torch, precision))
    return module


class _Autocast:
    """The forward pass of a module; an object, so that a deep copy of the module has one of its own."""

    def __init__(self, module: nn.Module, device: str, dtype: torch.dtype) -> None:
        self._module = module
        self._device = device
        self._dtype = dtype

    def __call__(self, *inputs: Any) -> Any:
        with torch.autocast(self._device, dtype=self._dtype):
            return type(self._module).forward(self._module, *inputs).float()
