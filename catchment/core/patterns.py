"""Patterns of names that a user wrote down: one that is about no field that a method sends is refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from catchment.codecs import Direction, Rule, could_match, matches
from catchment.core.declarations import declarations
from catchment.core.method import Method, contract, handlers
from catchment.errors import ExperimentError
from catchment.exchange.payload import Field, Payload, fields_of

BOTH: tuple[Direction, ...] = ("up", "down")


def check_rules(rules: Iterable[Rule], method: type[Method[Any]], name: str) -> None:
    """Refuse codec rules that are about nothing that a method of this name sends."""
    for rule in rules:
        _check(rule.pattern, rule.direction, f'codec rule "{rule}"', method, name)


def is_about(rule: Rule, method: type[Method[Any]]) -> bool:
    """Whether a codec rule is about something that a method sends."""
    return _is_about(rule.pattern, rule.direction, method)


def check_fields(patterns: Iterable[str], method: type[Method[Any]], name: str, where: str) -> None:
    """Refuse patterns that are about nothing that clients send; `where` begins the sentence."""
    for pattern in patterns:
        _check(pattern, "up", f'{where} has "{pattern}", which', method, name)


def _check(pattern: str, direction: Direction | None, where: str, method: type[Method[Any]], name: str) -> None:
    if _is_about(pattern, direction, method):
        return
    known = "; ".join(f"{way} go {', '.join(_sent(method, way)) or 'no tensors'}" for way in BOTH)
    raise ExperimentError(f"{where} names nothing that {name} sends{f' {direction}' if direction else ''}: {known}")


def _is_about(pattern: str, direction: Direction | None, method: type[Method[Any]]) -> bool:
    ways = BOTH if direction is None else (direction,)
    return pattern == "*" or any(_about(pattern, field) for way in ways for field in _sent(method, way).values())


def _about(pattern: str, field: Field) -> bool:
    return matches(pattern, field.name) or (field.kind == "tensors" and could_match(pattern, field.name))


def _sent(method: type[Method[Any]], direction: Direction) -> dict[str, Field]:
    """The fields of tensors in one direction, those of evaluation aside, where nothing is coded."""
    found: dict[str, Field] = {}
    for handler in handlers(method):
        request, reply = contract(method, handler)
        if not _measures(reply):
            found |= {f.name: f for f in fields_of(reply if direction == "up" else request) if f.kind != "scalar"}
    return found


def _measures(reply: type[Payload]) -> bool:
    """Whether all tensors of a reply are measures, which are asked for in evaluations alone."""
    declared = declarations(reply)
    tensors = [declared[field.name] for field in fields_of(reply) if field.kind != "scalar"]
    return bool(tensors) and all(found is not None and found.kind == "metrics" for found in tensors)
