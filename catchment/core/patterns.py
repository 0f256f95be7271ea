"""Patterns of names that a user wrote down: one that is about no field that a method sends is refused."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any

from catchment.codecs import Direction, Rule, could_match, matches
from catchment.core.declarations import Like, client_weights, declarations
from catchment.core.method import Method, contract, handlers
from catchment.core.world import World
from catchment.errors import ExperimentError
from catchment.exchange.payload import Payload, fields_of
from catchment.names import did_you_mean

BOTH: tuple[Direction, ...] = ("up", "down")


def check_rules(rules: Iterable[Rule], method: type[Method[Any]], name: str, world: World | None = None) -> None:
    """Refuse codec rules that are about nothing that a method of this name sends, in a world about no tensor of it."""
    for rule in rules:
        _check(rule.pattern, rule.direction, f'codec rule "{rule}"', method, name, world)


def is_about(rule: Rule, method: type[Method[Any]]) -> bool:
    """Whether a codec rule is about something that a method sends."""
    return _is_about(rule.pattern, rule.direction, method)


def check_fields(patterns: Iterable[str], method: type[Method[Any]], name: str, where: str, world: World) -> None:
    """Refuse patterns that are about nothing that clients send; `where` begins the sentence."""
    for pattern in patterns:
        _check(pattern, "up", f'{where} has "{pattern}", which', method, name, world)


def _check(
    pattern: str, direction: Direction | None, where: str, method: type[Method[Any]], name: str, world: World | None
) -> None:
    if _is_about(pattern, direction, method, world):
        return
    known = "; ".join(f"{way} go {', '.join(_sent(method, way)) or 'no tensors'}" for way in BOTH)
    ways = BOTH if direction is None else (direction,)
    tensors = [one for way in ways for names in _sent(method, way, world).values() for one in names or ()]
    hint = f"; {did_you_mean(pattern, tensors)}" if tensors and "/" in pattern else ""
    raise ExperimentError(
        f"{where} names nothing that {name} sends{f' {direction}' if direction else ''}: {known}{hint}"
    )


def _is_about(pattern: str, direction: Direction | None, method: type[Method[Any]], world: World | None = None) -> bool:
    ways = BOTH if direction is None else (direction,)
    sent = [item for way in ways for item in _sent(method, way, world).items()]
    return pattern == "*" or any(_fits(pattern, field, tensors) for field, tensors in sent)


def _fits(pattern: str, field: str, tensors: Set[str] | None) -> bool:
    if matches(pattern, field):
        return True
    return could_match(pattern, field) if tensors is None else any(matches(pattern, one) for one in tensors)


def _sent(method: type[Method[Any]], direction: Direction, world: World | None = None) -> dict[str, Set[str] | None]:
    """The fields in one direction, those of evaluation aside, where nothing is coded, and the tensors of each.

    None stands for tensors that are not known before a run.
    """
    found: dict[str, Set[str] | None] = {}
    tensors = {} if world is None else _declared(method, direction, world)
    for handler in handlers(method):
        request, reply = contract(method, handler)
        if not _measures(reply):
            for field in fields_of(reply if direction == "up" else request):
                if field.kind != "scalar":
                    found[field.name] = set() if field.kind == "tensor" else tensors.get(field.name) or None
    return found


def _declared(method: type[Method[Any]], direction: Direction, world: World) -> dict[str, set[str]]:
    """By field: the tensors that replies declare; a request may have a client's whole model in a field of this name."""
    found: dict[str, set[str]] = {}
    for handler in handlers(method):
        for field, declared in declarations(contract(method, handler).reply).items():
            if isinstance(declared, Like):
                for client in range(len(world.client_architectures)):
                    own = set(declared.reference(world, client))
                    own |= client_weights(world, client).keys() if direction == "down" else set()
                    found.setdefault(field, set()).update(f"{field}/{one}" for one in own)
    return found


def _measures(reply: type[Payload]) -> bool:
    """Whether all tensors of a reply are measures, which are asked for in evaluations alone."""
    declared = declarations(reply)
    tensors = [declared[field.name] for field in fields_of(reply) if field.kind != "scalar"]
    return bool(tensors) and all(found is not None and found.kind == "metrics" for found in tensors)
