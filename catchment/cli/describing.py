"""What the built-in names mean, read from the code: docstrings of classes, and comments beside their fields."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import textwrap
import tokenize
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from catchment import models
from catchment.codecs.rules import STAGES
from catchment.data.sources import STATISTICS
from catchment.engines.profiles import PROFILES, DeviceProfile
from catchment.errors import UserError
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


def _classes(found: dict[str, Any]) -> list[Described]:
    return [Described(name, first_sentence(resolve("", name, found)), resolve("", name, found)) for name in found]


def _devices() -> list[Described]:
    return [Described(name, _profile(profile), profile) for name, profile in PROFILES.items()]


def _profile(profile: DeviceProfile) -> str:
    limits = [
        (profile.compute, f"{profile.compute:.0e} MACs per second"),
        (profile.up, f"{profile.up:g} Mbit/s up"),
        (profile.down, f"{profile.down:g} down"),
        (profile.memory or float("inf"), f"{profile.memory} MiB"),
    ]
    return ", ".join(text for value, text in limits if value != float("inf")) or "no limits: no time passes"


def _models() -> list[Described]:
    return [Described(name, _model(name), None) for name in models.MODELS]


def _model(name: str) -> str:
    if name.startswith("kgf("):
        return "any model, its convolutions made from few base kernels"
    if "(" in name:
        return "a family: numbers stand in place of the letters"
    half = models.is_half(name)
    model = models.build(name, FEATURES if half else IMAGE, 10, seed=0)
    kind = "server half, takes features" if half else "extractor and classifier" if models.is_split(model) else "whole"
    return f"{kind}; {models.parameters(model):,} parameters for 3x32x32 images and 10 classes"


def _data() -> list[Described]:
    found = []
    for name, (mean, _) in STATISTICS.items():
        where = "embedded" if name == "digits" else f"folder {name} in CATCHMENT_DATA or data.root, or from the hub"
        found.append(Described(name, f"{'colour' if len(mean) == 3 else 'grey'} images; {where}", None))
    return found


IMAGE, FEATURES = (3, 32, 32), (16, 32, 32)  # shapes that models are described with
KINDS: dict[str, tuple[str, Callable[[], list[Described]]]] = {
    "methods": ("method.name", lambda: _classes(METHODS)),
    "models": ("models.client, models.server", _models),
    "data": ("data.name", _data),
    "codecs": ("wire.codecs, as PATTERN=CHAIN", lambda: _classes(dict(STAGES))),
    "attacks": ("attack.name", lambda: _classes(dict(ATTACKS))),
    "aggregators": ("aggregation.name", lambda: _classes(dict(AGGREGATORS))),
    "devices": ("devices.profile", _devices),
}
"""What can be listed: the key of an experiment file, and its names."""


def find(name: str) -> tuple[str, Described]:
    """What a name stands for, and of which kind it is."""
    known: dict[str, tuple[str, Described]] = {}
    for kind, (_, names) in KINDS.items():
        for one in names():
            known.setdefault(one.name, (kind, one))
    if name not in known:
        raise UserError(f'there is nothing called "{name}"; {did_you_mean(name, known)}')
    return known[name]


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
