"""Which code of its own an experiment names: modules that are imported, and run, once it is read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from catchment.codecs.rules import own_stages
from catchment.names import GIVEN

FREE_TEXT = (
    "name", "path", "device", "data.classes", "data.root", "models.weights", "flower.host", "flower.keys",
)  # fmt: skip  # may have a colon that names no module


def own_code(table: Any) -> Iterator[tuple[str, str]]:
    """Every name like "module:attribute" in the table of an experiment, after the place where it stands."""
    for place, text in _texts(table):
        if place not in FREE_TEXT:
            for name in own_stages(text) if place == "wire.codecs" else [text]:
                if ":" in name and set(re.findall(r"([\w.]*):", name)) != {GIVEN}:
                    yield place, name


def _texts(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(item, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, place)
