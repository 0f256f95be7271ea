"""Undoing a round: restoring the server's state, and whether all its numbers are finite."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

Undo = Callable[[], Any]


def restorer(value: Any) -> Undo:
    """A function that restores a state to what it is now, and returns it.

    Modules, optimisers, dicts, lists and dataclasses are restored in place. Tensors that are not floating-point numbers
    are assumed to be replaced, never changed in place. Spools keep what came in between: the rest of a method's state
    says which rows count.
    """
    if isinstance(value, nn.Module | torch.optim.Optimizer):
        return _in_place(value, deepcopy(value.state_dict()))
    if isinstance(value, Tensor):
        copy = value.clone() if value.is_floating_point() else value
        return lambda: copy
    if isinstance(value, dict):
        entries = {key: restorer(item) for key, item in value.items()}

        def refill() -> Any:
            before = {key: undo() for key, undo in entries.items()}
            value.clear()
            value.update(before)
            return value

        return refill
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        kind, undos = type(value), [restorer(item) for item in value]
        return lambda: kind(undo() for undo in undos)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: restorer(getattr(value, field.name)) for field in dataclasses.fields(value)}

        def reset() -> Any:
            for name, undo in fields.items():
                setattr(value, name, undo())
            return value

        return reset
    return lambda: value


def _in_place(value: Any, before: dict[str, Any]) -> Undo:
    def load() -> Any:
        value.load_state_dict(before)
        return value

    return load


def broken(state: Any) -> str:
    """What is not finite in a state, in words; "" if nothing is."""
    norms = [float(torch.linalg.vector_norm(tensor)) for tensor in _numbers(state)]
    return "" if all(map(math.isfinite, norms)) else "numbers of the server's state are not finite"


def _numbers(value: Any) -> Iterator[Tensor]:
    """The floating-point tensors of a state, without those of optimisers, which follow the weights."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value.detach()
    elif isinstance(value, nn.Module):
        yield from (tensor for tensor in value.state_dict().values() if tensor.is_floating_point())
    elif isinstance(value, dict):
        for item in value.values():
            yield from _numbers(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _numbers(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _numbers(getattr(value, field.name))
