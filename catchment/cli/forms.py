"""The forms of experiment, study and policy files as JSON schemas, by which editors complete and check them.

They are the types that the reader checks. `[method]` and other tables whose `name` says what their options are have one
form for each name.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, make_dataclass
from typing import Any

from catchment import data, models
from catchment.config.experiment import Experiment
from catchment.data.sources import STATISTICS
from catchment.device.policy import Policy
from catchment.methods import METHODS
from catchment.names import resolve
from catchment.reading import Table, schema
from catchment.robust import ATTACKS
from catchment.robust.aggregators import AGGREGATORS
from catchment.simulation.devices import PROFILES
from catchment.studies.form import Form

DRAFT = "http://json-schema.org/draft-07/schema#"
OWN = {"type": "string", "pattern": ":", "description": "Your own: `module:Class`."}
EXTENDS = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    "description": "A file that this one starts from, or a list of files; the file itself wins.",
}


def forms() -> dict[str, Table]:
    """The schemas by the kind of file."""
    experiment, study, policy = (_apart(kind) for kind in (Experiment, Form, Policy))
    parts = experiment["$defs"]
    settings = {key: parts[name]["properties"] for key, name in _TABLES.items()}
    tables: dict[str, Mapping[str, Table]] = {
        "method": {name: _fields(resolve("method", name, METHODS)) for name in METHODS},
        "aggregation": {name: _fields(kind) for name, kind in AGGREGATORS.items()},
        "attack": {"none": {}, **{name: _fields(kind) for name, kind in ATTACKS.items()}},
        "partition": {name: _arguments(function) for name, function in data.PARTITIONS.items()},
    }
    for key, options in tables.items():
        parts |= {f"{key}-{name}": _table(name, fields) for name, fields in options.items()}
        place = settings["data"] if key == "partition" else experiment["properties"]
        place[key] = {"description": place[key]["description"], **_by_name(key, options)}
    for table, key, names in (
        ("data", "name", STATISTICS), ("data.public", "name", STATISTICS), ("models", "client", models.MODELS),
        ("models", "server", models.MODELS), ("devices", "profile", PROFILES),
    ):  # fmt: skip
        settings[table][key] = _completed(settings[table][key], names)
    experiment["properties"]["extends"] = study["properties"]["extends"] = EXTENDS
    for part in (study, *study["$defs"].values()):
        if "experiment" in part.get("properties", {}):
            part["properties"]["experiment"] = {"$ref": "#/$defs/Experiment"}
    del parts["PublicSettings"]["required"]  # it may stand in another file
    whole = {key: value for key, value in experiment.items() if key not in ("$schema", "$defs")}
    study["$defs"] |= {**parts, "Experiment": whole}
    allow = policy["$defs"]["Allow"]["properties"]["methods"]
    allow["items"] = _completed(allow["items"], METHODS)
    return {"experiment": experiment, "study": study, "policy": policy}


_TABLES = {
    "data": "DataSettings", "data.public": "PublicSettings", "models": "ModelSettings", "devices": "DeviceSettings",
}  # fmt: skip


def _apart(kind: type) -> Table:
    """The schema of a kind of file, to be changed."""
    whole = copy.deepcopy(schema(kind))
    if "$ref" in whole:
        whole |= whole["$defs"].pop(whole.pop("$ref").rpartition("/")[2])
    whole.pop("title")
    for part in whole["$defs"].values():
        part.pop("title", None)
    return {"$schema": DRAFT, **whole}


def _fields(kind: type) -> Table:
    """The options of a method, a rule or an attack."""
    return dict(schema(kind)["properties"])


def _arguments(function: Callable[..., Any]) -> Table:
    """The options of a way to deal samples: what its function takes by name alone."""
    known = inspect.signature(function, eval_str=True).parameters.values()
    options = [option for option in known if option.kind is option.KEYWORD_ONLY]
    return _fields(
        make_dataclass(function.__name__, [(one.name, one.annotation, field(default=one.default)) for one in options])
    )


def _table(name: str, fields: Table) -> Table:
    return {"type": "object", "properties": {"name": {"const": name}, **fields}, "additionalProperties": False}


def _by_name(key: str, names: Iterable[str]) -> Table:
    """A table whose `name` says what its other keys are.

    Editors complete from `anyOf`, which forbids nothing, and check by `allOf`, whose mistakes they show at their place.
    Without a name anything goes: it may stand in another file.
    """
    parts = {name: {"$ref": f"#/$defs/{key}-{name}"} for name in names}
    return {
        "type": "object",
        "properties": {"name": {"anyOf": [{"enum": [*parts]}, OWN]}},
        "anyOf": [*parts.values(), {}],
        "allOf": [
            {"if": {"properties": {"name": {"const": name}}, "required": ["name"]}, "then": part}
            for name, part in parts.items()
        ],
    }


def _completed(part: Table, names: Iterable[str]) -> Table:
    """A text for which an editor proposes names."""
    return {key: part[key] for key in part.keys() & {"description", "default"}} | {"anyOf": [{"enum": [*names]}, part]}
