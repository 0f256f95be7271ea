"""Objects in place of names: methods, models and data sets that a program passes to an experiment directly."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import nn

from catchment.config.toml import plain
from catchment.core.method import Method
from catchment.data import Dataset
from catchment.data.splits import is_given
from catchment.errors import ExperimentError
from catchment.methods import METHODS
from catchment.names import name_of
from catchment.robust import ATTACKS, Attack
from catchment.robust.aggregators import AGGREGATORS, Aggregator


def named(value: Any) -> Any:
    """A setting as a file would have it.

    A method, an attack or an aggregator becomes the table of its name and its options; a class or a function its name.
    A module stands for copies of itself, first weights included, and a data set for itself, also one of PyTorch or of
    Hugging Face.
    """
    if isinstance(value, Method | Attack | Aggregator):
        return {"name": _short(type(value)), **named(_fields(value))}
    if isinstance(value, nn.Module):
        return name_of(_made(value, partial(copy.deepcopy, value)), type(value).__name__)
    if isinstance(value, Dataset) or is_given(value):
        return name_of(_made(value, lambda: value), "data")
    if isinstance(value, type) and issubclass(value, Method):
        return {"name": _short(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return named(_fields(value))
    if isinstance(value, Mapping):
        return {key: named(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [named(item) for item in value]
    return name_of(value) if callable(value) else plain(value)


def check_data(table: Any) -> None:
    """Refuse a data set that is no name after `named`: with a sentence that says what can be given."""
    name = table.get("name", "") if isinstance(table, Mapping) else ""
    if not isinstance(name, str):
        raise ExperimentError(
            f"data.name is of type {type(name).__name__}; a name is expected, a catchment.Dataset (Dataset.of makes "
            "one from arrays), or a data set of PyTorch or Hugging Face, alone or as {'train': ..., 'test': ...}"
        )


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _short(kind: type) -> str:
    """The built-in name of a class, or that of its module."""
    builtin = {**METHODS, **ATTACKS, **AGGREGATORS}
    own = f"{kind.__module__}:{kind.__qualname__}"
    return next((name for name, known in builtin.items() if known in (kind, own)), None) or name_of(kind)


_makers: dict[int, tuple[Any, Callable[[], Any]]] = {}  # by id of an object, which is kept: one name each


def _made(value: Any, maker: Callable[[], Any]) -> Callable[[], Any]:
    return _makers.setdefault(id(value), (value, maker))[1]
