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
    "delta": 0, "update": 0, "feedback": 1, "momentum": 1, "topk": 2, "smartidx": 2, "fp16": 3, "bf16": 3, "int8": 3,
    "int4": 3, "sign": 3, "sparse": 4, "golomb": 4, "zstd": 5,
}  # fmt: skip  # each with its place in a chain; two of one place exclude each other
PICKING = ("topk", "smartidx")  # numbers that travel, by their positions
LOSSY = (*PICKING, "fp16", "bf16", "int8", "int4", "sign")
LOSSLESS = ("sparse", "golomb", "zstd")  # not for floating-point numbers alone
ORDER = (
    "a chain goes: delta or update; feedback or momentum; topk or smartidx; one of fp16, bf16, int8, int4, sign; "
    "sparse or golomb; zstd"
)
HIGHEST_LEVEL = 22  # of zstd


class Stage(NamedTuple):
    """One step of a chain, with its option if it has one."""

    name: str
    axis: int = 1  # of int8 and int4: what has a range of its own for each index
    level: int = 3  # of zstd
    share: float = 1.0  # of topk and smartidx: what is kept
    warmup: int = 0  # of topk: messages of a sender before its share is that small
    decay: float = 0.9  # of momentum

    def __str__(self) -> str:
        if self.name in PICKING:
            return f"{self.name}({self.share}{f',{self.warmup}' if self.warmup else ''})"
        if self == Stage(self.name):
            return self.name
        option = {"zstd": self.level, "momentum": self.decay}.get(self.name, self.axis)
        return f"{self.name}({option})"

    def at(self, number: int) -> Stage:
        """The stage for the message of this number from one sender, the first being 1: a warm-up ends here."""
        if not self.warmup:
            return self
        return Stage(self.name, share=self.share ** min(number / (self.warmup + 1), 1.0))

    def covers(self, other: Stage) -> bool:
        """Whether the other one is this stage at some message."""
        return other == self or (self.warmup > 0 and other == Stage(self.name, share=max(other.share, self.share)))


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

    def at(self, number: int) -> Chain:
        """The chain for the message of this number from one sender, the first being 1."""
        return Chain(tuple(stage.at(number) for stage in self.stages))

    def within(self, other: Chain) -> bool:
        """Whether every stage, with its option, is one of the other chain."""
        return all(any(own.covers(stage) for own in other.stages) for stage in self.stages)


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
    if "delta" in chain and (memory := chain.first("feedback", "momentum")):
        raise ExperimentError(
            f"{where} has {memory.name} after delta, which would send twice what was left out: a difference from what "
            f"the receiver has already holds it; leave {memory.name} away"
        )
    if "momentum" in chain and not chain.first(*PICKING):
        raise ExperimentError(
            f"{where} has momentum without topk or smartidx; momentum is for what waits until it is picked"
        )
    if (picking := chain.first(*PICKING)) and "sign" in chain:
        raise ExperimentError(f"{where} has sign after {picking.name}, whose values would all be one; leave one away")
    if "smartidx" in chain and (packing := chain.first(*LOSSLESS)):
        raise ExperimentError(
            f"{where} has {packing.name} after smartidx, which codes its positions itself; leave {packing.name} away"
        )
    if "golomb" in chain and "zstd" in chain:
        raise ExperimentError(f"{where} has zstd after golomb, which leaves it nothing to squeeze; leave one away")
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
    if name in PICKING:
        first, comma, second = (option or "").partition(",")
        share, warmup = _number(first), _whole(second) if comma else 0
        if share is None or not 0 < share <= 1:
            raise ExperimentError(f"{where}: {name} needs the share to keep, above 0 and at most 1, as in {name}(0.01)")
        if warmup is None or (comma and name != "topk"):
            raise ExperimentError(
                f"{where}: {text} has more than the share to keep; topk alone also takes a number of messages to warm "
                "up, as in topk(0.01,4)"
            )
        return Stage(name, share=share, warmup=warmup)
    if option is None:
        return Stage(name)
    if name == "momentum":
        decay = _number(option)
        if decay is None or not 0 <= decay < 1:
            raise ExperimentError(f"{where}: {text} needs a decay from 0 to below 1, as in momentum(0.9)")
        return Stage(name, decay=decay)
    number = _whole(option)
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


def _whole(text: str) -> int | None:
    return int(text) if re.fullmatch("[0-9]{1,4}", text.strip()) else None
