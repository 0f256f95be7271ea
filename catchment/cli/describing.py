"""What the built-in names mean, from the code: docstrings of classes, and of their fields."""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from catchment import data, models
from catchment.codecs.rules import STAGES
from catchment.data.sources import STATISTICS, WITH_BOXES
from catchment.learning import optimizers
from catchment.methods import METHODS
from catchment.names import resolve
from catchment.privacy.disclosure import disclosed
from catchment.reading import Table, parts, range_of
from catchment.robust import ATTACKS
from catchment.robust.aggregators import AGGREGATORS
from catchment.simulation.devices import PROFILES, DeviceProfile
from catchment.tasks import TASKS

IMAGE, FEATURES = (3, 32, 32), (16, 32, 32)  # shapes that models are described with


class Option(NamedTuple):
    """A field of a dataclass that an experiment file can set."""

    name: str
    kind: str
    default: str
    meaning: str


def index() -> dict[str, Any]:
    """All names by kind and, for the commands, what is known of each; all names by key."""
    kinds = {
        "methods": ("method.name", {name: _method(name) for name in METHODS}),
        "models": ("models.client, models.server", {name: {"line": model(name)} for name in models.MODELS}),
        "data": ("data.name", {name: {"line": _data(name)} for name in STATISTICS}),
        "codecs": ("wire.codecs, as PATTERN=CHAIN", {name: _class(stage) for name, stage in STAGES.items()}),
        "attacks": ("attack.name", {name: _class(attack) for name, attack in ATTACKS.items()}),
        "aggregators": ("aggregation.name", {name: _class(kind) for name, kind in AGGREGATORS.items()}),
        "devices": ("devices.profile", {name: {"line": _device(profile)} for name, profile in PROFILES.items()}),
    }
    return {
        "kinds": {title: {"key": key, "names": names} for title, (key, names) in kinds.items()},
        "keys": {
            **{key: list(names) for key, names in kinds.values()},
            "data.partition": list(data.PARTITIONS),
            **{f"data.augment, {task.name}": list(task.augmentations) for task in TASKS.values()},
            "optimizer.*.name": list(optimizers.NAMES),
            "inspection.action": ["none", "flag", "drop"],
            "engine": ["inprocess", "flower"],
        },
    }


def _class(kind: type) -> dict[str, Any]:
    """A class, and the options that it has."""
    text = inspect.getdoc(kind) or ""
    found = list(map(list, options(kind))) if dataclasses.is_dataclass(kind) else []
    return {"line": text.partition("\n")[0], "text": text, "options": found}


def _method(name: str) -> dict[str, Any]:
    """A method, its paper, and what its clients send."""
    method = resolve("method", name, METHODS)
    return {
        **_class(method),
        "text": (sys.modules[method.__module__].__doc__ or "").strip(),
        "average": method.moving_average,
        "sends": [[row.field, row.kind, row.when, row.shows] for row in disclosed(method)],
    }


def _device(profile: DeviceProfile) -> str:
    limits = [
        (profile.compute, f"{profile.compute:.0e} MACs per second"),
        (profile.up, f"{profile.up:g} Mbit/s up"),
        (profile.down, f"{profile.down:g} down"),
        (profile.memory or float("inf"), f"{profile.memory} MiB"),
    ]
    return ", ".join(text for value, text in limits if value != float("inf")) or "no limits: no time passes"


def model(name: str) -> str:
    """A line about a model, which is built for that."""
    if name in models.FORMS:
        return models.FORMS[name]
    half = models.is_half(name)
    built = models.build(name, FEATURES if half else IMAGE, 10, seed=0)
    kind = "server half, takes features" if half else "extractor and classifier" if models.is_split(built) else "whole"
    return f"{kind}; {models.parameters(built):,} parameters for 3x32x32 images and 10 classes"


def _data(name: str) -> str:
    where = "embedded" if name == "digits" else f"folder {name} in CATCHMENT_DATA or data.root, or from the hub"
    channels = len(STATISTICS[name][0])
    kind = "images with boxes" if name in WITH_BOXES else "colour images" if channels == 3 else "grey images"
    return f"{kind}; {where}"


def options(kind: type) -> Iterator[Option]:
    """The fields of a dataclass as files have them."""
    for field in dataclasses.fields(kind):
        part = parts(kind, (field.name,))[0]
        yield Option(field.name, values(part), _default(field), part.get("description", ""))


def _default(field: dataclasses.Field[Any]) -> str:
    """The value that a file need not give."""
    default = field.default
    if field.default_factory is not dataclasses.MISSING:
        made = field.default_factory()
        items = [f"{key} = {json.dumps(value)}" for key, value in made.items()] if isinstance(made, dict) else []
        return f"{{ {', '.join(items)} }}" if items else ""
    if default is dataclasses.MISSING:
        return "needed"
    return "none" if default is None else "inf" if default == float("inf") else json.dumps(default)


_KINDS = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false"}


def values(part: Table) -> str:
    """The values that a schema allows, in words."""
    if "anyOf" in part:
        return " or ".join(map(values, part["anyOf"]))
    if "enum" in part and "title" not in part:
        return ", ".join(map(json.dumps, part["enum"]))
    if "items" in part:
        return f"list: {values(part['items'])}"
    kind, words = _KINDS.get(part.get("type", ""), "table"), range_of(part)
    if words is None:
        return kind
    return words.removeprefix("a ") if "title" in part or words.startswith("a ") else f"{kind}, {words}"
