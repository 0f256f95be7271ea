"""Relative paths of an experiment file, made absolute, so that a run can be resumed from another directory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from catchment.config.settings import DataSettings, ModelSettings, PublicSettings
from catchment.data import SOURCES


def absolute(data: DataSettings, models: ModelSettings) -> dict[str, Any]:
    """`[data]` and `[models]` with absolute paths."""
    partition, public = dict(data.partition), data.public
    if "/" in str(partition.get("file", "")):
        partition["file"] = _absolute(partition["file"])
    if isinstance(public, PublicSettings):
        public = replace(public, name=_source(public.name))
    root = None if data.root is None else _absolute(data.root)
    weights = None if models.weights is None else _absolute(models.weights)
    return {
        "data": replace(data, name=_source(data.name), public=public, root=root, partition=partition),
        "models": replace(models, weights=weights),
    }


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def _source(name: str) -> str:
    """A data set by its name, or by the path of a folder or a file."""
    return _absolute(name) if name not in SOURCES and Path(name).expanduser().exists() else name
