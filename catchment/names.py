"""Names in experiment files: a built-in, or "package.module:attribute" of the user's own."""

from __future__ import annotations

import difflib
import importlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter, signature
from typing import Any

from catchment.errors import ExperimentError

GIVEN = "given"  # in place of a module: objects that a program passed
_given: dict[str, Any] = {}


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """The end of an error sentence: the nearest known name, or all of them."""
    known = sorted(known)
    near = difflib.get_close_matches(given, known, n=1, cutoff=0.5)
    return f'did you mean "{near[0]}"?' if near else f"known: {', '.join(known) or 'none'}"


def check_slug(name: str) -> None:
    """Refuse a name by which no file or folder should be called, such as "../../x"."""
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ExperimentError(
            f"name is {json.dumps(name, ensure_ascii=False)}; files are called by it: letters, digits, _, - and . are "
            "expected, and no dot in front, such as fedavg-digits"
        )


def resolve(kind: str, name: str, builtin: Mapping[str, Any]) -> Any:
    """The object behind a name; `builtin` maps names to objects or to "module:attribute" strings."""
    target = _given.get(name) or builtin.get(name, name)
    if not isinstance(target, str):
        return target
    module_name, colon, attribute = target.partition(":")
    if not colon:
        raise ExperimentError(f'unknown {kind} "{name}"; {did_you_mean(name, builtin)}')
    if module_name == GIVEN:
        raise ExperimentError(
            f'{kind} "{name}" was an object of the program that made this experiment; only that program has it: put it '
            'into a module of its own, which gives it a name such as "own:net"'
        )
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ExperimentError(f'{kind} "{name}": importing {module_name} failed: {error}') from error
        raise ExperimentError(
            f'{kind} "{name}": there is no module "{module_name}" beside the experiment file or on the Python path'
        ) from error
    except Exception as error:
        raise ExperimentError(
            f'{kind} "{name}": importing {module_name} failed: {type(error).__name__}: {error}'
        ) from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        public = [known for known in vars(module) if not known.startswith("_")]
        raise ExperimentError(
            f'{kind} "{name}": module {module_name} has no "{attribute}"; {did_you_mean(attribute, public)}'
        ) from None


def name_of(thing: Any, short: str = "") -> str:
    """The name of an object for an experiment: that in its module, or one for this process if it cannot be imported."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "")
    if module not in (None, "__main__") and getattr(sys.modules.get(str(module)), name, None) is thing:
        return f"{module}:{name}"
    known = next((given for given, known in _given.items() if known is thing), None)
    given = known or f"{GIVEN}:{short or name.rpartition('.')[2] or 'object'}-{len(_given) + 1}"
    _given[given] = thing
    return given


def call_with_known(function: Callable[..., Any], **arguments: Any) -> Any:
    """Call a user's function with those of our arguments that its signature names."""
    parameters = signature(function).parameters
    if not any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values()):
        arguments = {name: value for name, value in arguments.items() if name in parameters}
    return function(**arguments)
