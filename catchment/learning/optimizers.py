"""Optimisers by name, and their state as plain tensors that can be kept, sent and checkpointed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Annotated, Any, Literal, get_args

import torch
from pydantic import Field
from torch import Tensor, nn

from catchment.errors import ExperimentError
from catchment.learning.schedules import Schedule
from catchment.reading import Count

Name = Literal["adam", "adamw", "sgd"]
NAMES = get_args(Name)
Group = dict[str, Any]  # "params" and the "share" of the learning rate that they have
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
FUSED = ("cpu", "cuda")  # torch devices whose optimisers take one call per step


@dataclass(frozen=True)
class OptimizerSettings:
    """One `[optimizer.*]` table of an experiment."""

    name: Name = "adam"
    """The optimiser of PyTorch."""
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-3
    """The learning rate."""
    weight_decay: NotNegative = 0.0
    """The weight decay."""
    momentum: NotNegative = 0.0
    """For `sgd`: the momentum."""
    nesterov: bool = False
    """For `sgd`: Nesterov's momentum."""
    amsgrad: bool = False
    """For `adam` and `adamw`: the AMSGrad variant."""
    batch_size: Count = 32
    """Samples per step."""
    schedule: Schedule = field(default_factory=Schedule)
    """How the learning rate changes over the rounds."""

    def __post_init__(self) -> None:
        if self.name == "sgd" and self.nesterov and not self.momentum:
            raise ExperimentError("optimizer nesterov needs momentum; set it, such as momentum = 0.9")
        if self.name != "sgd" and (self.momentum or self.nesterov):
            raise ExperimentError(f'optimizer "{self.name}" has no momentum setting; use name = "sgd" or remove it')
        if self.name == "sgd" and self.amsgrad:
            raise ExperimentError('optimizer "sgd" has no amsgrad; use name = "adam" or remove it')

    def rate(self, round: int, rounds: int, drops: int = 0) -> float:
        """The learning rate in a round of a run of `rounds`; `drops` are those of a plateau so far."""
        return self.lr * self.schedule.share(round, rounds, drops)

    def build(self, parameters: Iterable[Tensor] | Iterable[Group]) -> torch.optim.Optimizer:
        """A fresh optimiser of parameters or groups of them, whose rate is `lr`."""
        given: list[Any] = list(parameters)
        tensors = [w for part in given for w in (part["params"] if isinstance(part, dict) else [part])]
        # One fused call per step where the torch device has it; a loop over parameters costs more than a small model.
        fused = all(tensor.device.type in FUSED for tensor in tensors)
        shared = {"lr": self.lr, "weight_decay": self.weight_decay, "fused": fused or None}
        if self.name == "sgd":
            return torch.optim.SGD(given, momentum=self.momentum, nesterov=self.nesterov, **shared)  # type: ignore[arg-type]
        kind = torch.optim.Adam if self.name == "adam" else torch.optim.AdamW
        return kind(given, amsgrad=self.amsgrad, **shared)  # type: ignore[arg-type]


def in_groups(model: nn.Module, shares: Mapping[str, float]) -> list[Group]:
    """A model's parameters in their order, in groups that have one share of the learning rate; by submodule, or 1."""
    parts = {f"{name}.": share for name, share in shares.items()}

    def share(named: tuple[str, nn.Parameter]) -> float:
        return next((share for part, share in parts.items() if named[0].startswith(part)), 1.0)

    grouped = groupby(model.named_parameters(), share)
    return [{"params": [parameter for _, parameter in named], "share": share} for share, named in grouped]


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give an optimiser another learning rate; a group with a share gets that share of it."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("share", 1.0)


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state of an optimiser as named tensors, `parameter number.name`."""
    return {
        f"{number}.{name}": value
        for number, slots in optimizer.state_dict()["state"].items()
        for name, value in slots.items()
        if isinstance(value, Tensor)
    }


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put back what `optimizer_tensors` gave; the tensors given stay untouched."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = value.clone()
    load_optimizer_state(optimizer, {"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """`load_state_dict` that gives every slot the memory order of its parameter.

    Fused kernels walk parameter and slots side by side in memory: a row-major slot beside a channels-last parameter
    would silently meet the wrong elements.
    """
    optimizer.load_state_dict(state)
    for parameter, slots in optimizer.state.items():
        for name, value in slots.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                slots[name] = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)
