"""What the built-in names mean, read from the code: docstrings of classes, and comments beside their fields."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import textwrap
import tokenize
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from catchment import models
from catchment.codecs.rules import STAGES
from catchment.data.sources import STATISTICS, WITH_BOXES
from catchment.engines.profiles import PROFILES
from catchment.errors import ModelError, UserError
from catchment.methods import METHODS
from catchment.names import did_you_mean, resolve
from catchment.robust import ATTACKS
from catchment.robust.aggregators import AGGREGATORS


class Option(NamedTuple):
    """A field of a dataclass that an experiment file can set."""

    name: str
    kind: str
    default: str
    meaning: str


class Described(NamedTuple):
    """A name that an experiment file can use."""

    name: str
    line: str
    thing: Any  # the class behind it, if there is one


class Kind(NamedTuple):
    """The names for one key of an experiment file, and what describes one; a model is built for that."""

    key: str
    names: tuple[str, ...]
    describe: Callable[[str], Described]

    def described(self) -> list[Described]:
        """All of them."""
        return [self.describe(name) for name in self.names]


def _classes(key: str, found: Mapping[str, Any]) -> Kind:
    def describe(name: str) -> Described:
        thing = resolve("", name, found)
        return Described(name, first_sentence(thing), thing)

    return Kind(key, tuple(found), describe)


def _device(name: str) -> Described:
    profile = PROFILES[name]
    limits = [
        (profile.compute, f"{profile.compute:.0e} MACs per second"),
        (profile.up, f"{profile.up:g} Mbit/s up"),
        (profile.down, f"{profile.down:g} down"),
        (profile.memory or float("inf"), f"{profile.memory} MiB"),
    ]
    line = ", ".join(text for value, text in limits if value != float("inf")) or "no limits: no time passes"
    return Described(name, line, profile)


def _model(name: str) -> Described:
    if name in models.FORMS:
        return Described(name, models.FORMS[name], None)
    half = models.is_half(name)
    model = models.build(name, FEATURES if half else IMAGE, 10, seed=0)
    kind = "server half, takes features" if half else "extractor and classifier" if models.is_split(model) else "whole"
    size = f"{models.parameters(model):,} parameters for 3x32x32 images and 10 classes"
    return Described(name, f"{kind}; {size}", None)


def _data(name: str) -> Described:
    where = "embedded" if name == "digits" else f"folder {name} in CATCHMENT_DATA or data.root, or from the hub"
    channels = len(STATISTICS[name][0])
    kind = "images with boxes" if name in WITH_BOXES else "colour images" if channels == 3 else "grey images"
    return Described(name, f"{kind}; {where}", None)


IMAGE, FEATURES = (3, 32, 32), (16, 32, 32)  # shapes that models are described with
KINDS = {
    "methods": _classes("method.name", METHODS),
    "models": Kind("models.client, models.server", models.MODELS, _model),
    "data": Kind("data.name", tuple(STATISTICS), _data),
    "codecs": _classes("wire.codecs, as PATTERN=CHAIN", STAGES),
    "attacks": _classes("attack.name", ATTACKS),
    "aggregators": _classes("aggregation.name", AGGREGATORS),
    "devices": Kind("devices.profile", tuple(PROFILES), _device),
}
"""What can be listed."""


def find(name: str) -> dict[str, Described]:
    """What a name stands for, by kind; a name may be of several, and a model may have arguments."""
    wanted = name.lower()
    found = {title: kind.describe(wanted) for title, kind in KINDS.items() if wanted in kind.names}
    if not found and "(" in wanted:
        with suppress(ModelError):  # then it is like no model
            found["models"] = _model(wanted)
    if found:
        return found
    known = [name for kind in KINDS.values() for name in kind.names]
    raise UserError(f'there is nothing called "{name}"; {did_you_mean(wanted, known)}')


def first_sentence(thing: Any) -> str:
    """The first line of a docstring."""
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def options(kind: type) -> Iterator[Option]:
    """The fields of a dataclass, with the comments that stand beside them."""
    comments = {name: text for base in reversed(kind.__mro__) for name, text in _comments(base)}
    for field in dataclasses.fields(kind):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        shown = "needed" if default is dataclasses.MISSING else str(default)
        yield Option(field.name, str(field.type), shown, comments.get(field.name, ""))


def _comments(kind: type) -> Iterator[tuple[str, str]]:
    """Names of fields and the comments at the end of their lines."""
    if not dataclasses.is_dataclass(kind):
        return
    source = textwrap.dedent(inspect.getsource(kind))
    found = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    (definition,) = ast.parse(source).body
    for node in getattr(definition, "body", ()):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.end_lineno in found:
            yield node.target.id, found[node.end_lineno]
