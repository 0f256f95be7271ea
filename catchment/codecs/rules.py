"""Rules of the wire: which tensors, in which direction, go through which chain of stages.

A rule reads `[up:|down:]PATTERN=CHAIN`, for example `up:weights/*=update+feedback+topk(0.01)`. Stages have one order,
because each works on what the one before it left: differences of numbers, then fewer of them, then coarser ones, then
bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple

from catchment.errors import ExperimentError
from catchment.names import did_you_mean

Direction = Literal["up", "down"]

STAGES = {
    "delta": 0, "update": 0, "feedback": 1, "topk": 2, "fp16": 3, "bf16": 3, "int8": 3, "int4": 3, "sparse": 4,
    "zstd": 5,
}  # fmt: skip  # each with its place in a chain; two of one place exclude each other
LOSSY = ("topk", "fp16", "bf16", "int8", "int4")
LOSSLESS = ("sparse", "zstd")  # of any dtype; all others are for floating-point numbers
ORDER = "a chain goes: delta or update; feedback; topk; one of fp16, bf16, int8, int4; sparse; zstd"
HIGHEST_LEVEL = 22  # of zstd


class Stage(NamedTuple):
    """One step of a chain, with its option if it has one."""

    name: str
    axis: int = 1  # of int8 and int4: what has a range of its own for each index
    level: int = 3  # of zstd
    share: float = 1.0  # of topk: what is kept

    def __str__(self) -> str:
        if self == Stage(self.name) and self.name != "topk":
            return self.name
        return f"{self.name}({self.share if self.name == 'topk' else self.level if self.name == 'zstd' else self.axis})"


@dataclass(frozen=True)
class Chain:
    """Stages in the order in which a tensor goes through them."""

    stages: tuple[Stage, ...] = ()

    def __str__(self) -> str:
        return "+".join(map(str, self.stages))

    def __contains__(self, name: str) -> bool:
        return any(stage.name == name for stage in self.stages)

    def first(self, *names: str) -> Stage | None:
        """The first stage of one of these names, if there is one."""
        return next((stage for stage in self.stages if stage.name in names), None)

    def without(self, *names: str) -> Chain:
        """The chain that is left when the stages of these names are not applied."""
        return Chain(tuple(stage for stage in self.stages if stage.name not in names))

    def within(self, other: Chain) -> bool:
        """Whether every stage, with its option, is one of the other chain."""
        return set(self.stages) <= set(other.stages)


@dataclass(frozen=True)
class Rule:
    """Tensors whose names fit the pattern go through the chain."""

    pattern: str
    chain: Chain
    direction: Direction | None = None  # None: both

    def fits(self, name: str, direction: Direction) -> bool:
        """Whether the rule is about this tensor of a message in this direction."""
        return self.direction in (None, direction) and fnmatchcase(name, self.pattern)


def parse_rule(text: str) -> Rule:
    """The rule that a text like `up:weights/*=update+topk(0.01)` writes down."""
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
    chain = parse_chain(right, where)
    direction: Direction | None = "up" if word == "up" else "down" if word == "down" else None
    if "update" in chain and direction != "up":
        raise ExperimentError(
            f"{where} uses update, which is a difference from the request being answered and so goes up only; "
            f'write "up:{pattern}={chain}", or use delta'
        )
    return Rule(pattern, chain, direction)


def parse_chain(text: str, where: str) -> Chain:
    """The stages of a chain; `where` begins the sentence when something is wrong with it."""
    chain = Chain(tuple(_stage(part.strip(), where) for part in text.split("+")))
    for before, after in zip(chain.stages, chain.stages[1:]):
        if STAGES[before.name] > STAGES[after.name]:
            raise ExperimentError(f"{where} has {after.name} after {before.name}; {ORDER}")
        if STAGES[before.name] == STAGES[after.name]:
            both = f"{before.name} twice" if before.name == after.name else f"both {before.name} and {after.name}"
            raise ExperimentError(f"{where} has {both}, of which a chain has one; {ORDER}")
    if "feedback" in chain and "delta" in chain:
        raise ExperimentError(
            f"{where} has feedback after delta, which would send twice what was left out: a difference from what the "
            "receiver has already holds it; leave feedback away"
        )
    if "feedback" in chain and not chain.first(*LOSSY):
        raise ExperimentError(f"{where} has feedback before nothing that loses anything; {ORDER}")
    if not chain.first(*LOSSY, *LOSSLESS):
        raise ExperimentError(
            f"{where} ends with {chain.stages[-1].name}, which makes nothing smaller; put one of "
            f"{', '.join((*LOSSY, *LOSSLESS))} after it"
        )
    return chain


def _stage(text: str, where: str) -> Stage:
    found = re.fullmatch(r"([^()]*)(?:\(([^()]*)\))?", text)
    if not found:
        raise ExperimentError(f'{where}: "{text}" is no stage; write a name, or a name with its option, as in zstd(9)')
    name, option = found[1].strip(), found[2]
    if name not in STAGES:
        raise ExperimentError(f'{where}: unknown stage "{name}"; {did_you_mean(name, STAGES)}')
    if name == "topk":
        share = _number(option)
        if share is None or not 0 < share <= 1:
            raise ExperimentError(f"{where}: topk needs the share to keep, above 0 and at most 1, as in topk(0.01)")
        return Stage(name, share=share)
    if option is None:
        return Stage(name)
    number = int(option) if re.fullmatch("[0-9]{1,4}", option.strip()) else None
    if name in ("int8", "int4"):
        if number is None:
            raise ExperimentError(f"{where}: {text} needs an axis that counts from 0, as in {name}(0)")
        return Stage(name, axis=number)
    if name == "zstd":
        if number is None or not 1 <= number <= HIGHEST_LEVEL:
            raise ExperimentError(f"{where}: {text} needs a level from 1 to {HIGHEST_LEVEL}, as in zstd(9)")
        return Stage(name, level=number)
    raise ExperimentError(f"{where}: {name} has no options; write {name} instead of {text}")


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None
