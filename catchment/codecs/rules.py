"""Codec rules: which tensors, in which direction, go through which chain of stages.

A rule reads `[up:|down:]PATTERN=CHAIN`, for example `up:weights/*=update+feedback+topk(0.01)`. A stage is one of
`STAGES` or, as "module:Class", one of the user's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Any, Literal, get_type_hints

from catchment.codecs.chain import Chain
from catchment.codecs.lossless import Golomb, Sparse, Zstd
from catchment.codecs.momentum import MomentumCorrection
from catchment.codecs.quantization import BFloat16, Float16, Int4, Int8, Sign
from catchment.codecs.smartidx import Packages
from catchment.codecs.sparsification import Feedback, TopK, Update
from catchment.codecs.stage import PLACES, Stage
from catchment.errors import ExperimentError
from catchment.names import did_you_mean, resolve

Direction = Literal["up", "down"]

STAGES: dict[str, type[Stage]] = {
    stage.name: stage
    for stage in (
        Update, Feedback, MomentumCorrection, TopK, Packages, Float16, BFloat16, Int8, Int4, Sign, Sparse, Golomb, Zstd
    )
}  # fmt: skip
"""The stages that rules and messages can name."""

ORDER = "a chain goes: " + "; ".join(
    f"{place} ({', '.join(name for name, stage in STAGES.items() if stage.place == place)})" for place in PLACES
)


@dataclass(frozen=True)
class Rule:
    """Tensors whose names fit the pattern go through the chain."""

    pattern: str
    chain: Chain
    direction: Direction | None = None  # None: both

    def __str__(self) -> str:
        return f"{f'{self.direction}:' if self.direction else ''}{self.pattern}={self.chain}"

    def fits(self, name: str, direction: Direction) -> bool:
        """Whether the rule is about this tensor of a message in this direction."""
        return self.direction in (None, direction) and matches(self.pattern, name)

    def check(self, where: str) -> None:
        """Refuse a rule that cannot work; `where` begins the sentence."""
        check_chain(self.chain, where)
        stages = self.chain.stages
        smaller = [name for name, stage in STAGES.items() if stage.place not in ("difference", "correction")]
        if all(stage.saves and stage.place in ("difference", "correction") for stage in stages):
            raise ExperimentError(
                f"{where} ends with {stages[-1].name}, which makes nothing smaller; put one of "
                f"{', '.join(smaller)} after it"
            )
        if self.direction != "up" and (self.chain.needs_request or self.chain.remembers):
            reason = (
                "needs the request that is answered" if self.chain.needs_request else
                "remembers earlier messages of the sender, as clients do and the server does not"
            )  # fmt: skip
            raise ExperimentError(f'{where} {reason}, so it goes up only; write "up:{self.pattern}={self.chain}"')


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern is about the tensor of this name: it names the tensor, or the field that the tensor is of."""
    return fnmatchcase(name, pattern) or fnmatchcase(name.partition("/")[0], pattern)


def could_match(pattern: str, field: str) -> bool:
    """Whether there could be a tensor in a field of many that the pattern is about."""
    return any(fnmatchcase(f"{field}/", pattern[:end]) for end in range(len(pattern) + 1))


def parse_rule(text: str) -> Rule:
    """The rule that a text like `up:weights/*=update+topk(0.01)` writes down; a stage of the user's is imported."""
    where = f'codec rule "{text}"'
    left, equals, right = text.rpartition("=")
    if not equals:
        raise ExperimentError(f'{where} has no "="; write PATTERN=CHAIN, as in "features=int8+zstd"')
    word, colon, pattern = left.strip().rpartition(":")
    if colon and word not in ("up", "down"):
        known = did_you_mean(word, ("up", "down"))
        raise ExperimentError(f'{where} has "{word}:" in front; {known} (in a pattern, "?" stands for a colon)')
    if not pattern:
        raise ExperimentError(f'{where} names no tensors; write "*" before the "=" for all of them')
    found = {name: _resolved(name, where) for name in own_stages(text)}
    direction: Direction | None = "up" if word == "up" else "down" if word == "down" else None
    rule = Rule(pattern, parse_chain(right, where, {**STAGES, **found}), direction)
    rule.check(where)
    return rule


def own_stages(text: str) -> list[str]:
    """The names in a rule that lead to code of the user's, such as "mine:Stage"."""
    names = [part.partition("(")[0].strip() for part in text.rpartition("=")[2].split("+")]
    return [name for name in names if ":" in name]


def parse_chain(text: str, where: str, known: Mapping[str, type[Stage] | Chain]) -> Chain:
    """The stages of a chain, each one of those that are known; nothing is imported."""
    return Chain(*(_stage(part.strip(), where, known) for part in text.split("+")))


def check_chain(chain: Chain, where: str) -> None:
    """Refuse a chain whose stages do not go together."""
    for before, after in zip(chain.stages, chain.stages[1:]):
        if PLACES.index(before.place) > PLACES.index(after.place):
            raise ExperimentError(f"{where} has {after.name} after {before.name}; {ORDER}{_places(before, after)}")
        if before.place == after.place:
            both = f"{before.name} twice" if before.name == after.name else f"both {before.name} and {after.name}"
            raise ExperimentError(f"{where} has {both}, of which a chain has one; {ORDER}{_places(before, after)}")
    for stage in chain.stages:
        if conflict := stage.conflict(chain.stages):
            raise ExperimentError(f"{where} {conflict}")


def _places(*stages: Stage) -> str:
    """The places of stages that `ORDER` does not list."""
    return "".join(f"; {stage.name} is for {stage.place}" for stage in stages if stage.name not in STAGES)


def _resolved(name: str, where: str) -> type[Stage] | Chain:
    try:
        found = resolve("stage", name, {})
    except ExperimentError as error:
        raise ExperimentError(f"{where}: {error}") from error
    if isinstance(found, Chain) or (isinstance(found, type) and issubclass(found, Stage)):
        return found
    kind = found.__name__ if isinstance(found, type) else type(found).__name__
    raise ExperimentError(f"{where}: {name} is a {kind}; a subclass of catchment.Stage, or a Chain, is expected")


def _stage(text: str, where: str, known: Mapping[str, type[Stage] | Chain]) -> Stage | Chain:
    found = re.fullmatch(r"([^()]*)(?:\(([^()]*)\))?", text)
    if not found:
        raise ExperimentError(f'{where}: "{text}" is not a stage; write a name, or a name with options, as in zstd(9)')
    name, given = found[1].strip(), found[2]
    if name not in known:
        raise ExperimentError(f'{where}: unknown stage "{name}"; {did_you_mean(name, known)}')
    kind = known[name]
    options = fields(kind) if isinstance(kind, type) else ()
    if given is not None and not options:
        raise ExperimentError(f"{where}: {name} has no options; write {name} instead of {text}")
    if isinstance(kind, Chain):
        return kind
    texts = [] if given is None else given.split(",")
    try:
        if len(texts) > len(options):
            raise ValueError(f"{len(texts)} options were given")
        hints = get_type_hints(kind)
        return kind(*(_option(text.strip(), hints[field.name]) for text, field in zip(texts, options)))
    except Exception as error:  # whatever a user's class raises
        names = ", ".join(field.name for field in options)
        usage = kind.usage or f"cannot be used: {error}; its options are {names}"
        raise ExperimentError(f"{where}: {text} {usage}") from error


def _option(text: str, kind: Any) -> Any:
    """An option of a stage from its text."""
    if kind is bool and text in ("true", "false"):
        return text == "true"
    if kind is int and not re.fullmatch("-?[0-9]{1,9}", text):
        raise ValueError(f'"{text}" is not a whole number')
    if kind not in (int, float, str):
        raise ValueError(f'"{text}" was given where {getattr(kind, "__name__", kind)} is expected')
    return kind(text)
