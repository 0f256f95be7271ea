"""What a reply must look like before a method sees it, resolved from the declarations of its payload class.

What is declared is resolved once per payload class and architecture, and checked in one place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from catchment.core.declarations import LARGEST_NUMBER, LARGEST_WHOLE, Like, Number, Values, declarations
from catchment.core.method import Method, contract
from catchment.core.world import World
from catchment.exchange.message import Message
from catchment.exchange.payload import EMPTY, Payload, fields_of
from catchment.exchange.request import Request

LONGEST_TEXT = 1000
GROWTH = 10.0  # times their first norm (and 1 per weight) that weights may have
STATISTICS = ("running_mean", "running_var")  # of batch normalisation, which follow the data and have no such norm
UNDECLARED_BYTES = 2**31  # of a field of which nothing is known


class Known(NamedTuple):
    """How many samples a client has, as far as the server knows."""

    samples: int
    exact: bool  # otherwise at most that many


class Size(NamedTuple):
    """One size of a tensor: a number, or a name with the most that it may stand for."""

    name: str  # "" for a number
    most: int | None  # None: the client's samples
    equal: bool = False  # to `most`

    def wrong(self, given: int, known: Known, bound: dict[str, int]) -> str:
        """What is expected instead of this number, if it is wrong."""
        most, equal = (known.samples, self.equal and known.exact) if self.most is None else (self.most, self.equal)
        if equal and given != most:
            return str(most)
        if given > most:
            return f"at most {most:,}" + (" (data.most_samples)" if self.most is None and not known.exact else "")
        if self.name and bound.setdefault(self.name, given) != given:
            return f"{bound[self.name]} as in the other fields"
        return ""


class Array(NamedTuple):
    """What is expected of one tensor."""

    dtype: torch.dtype
    sizes: tuple[Size, ...]
    low: float | None  # None: the range is not looked at
    high: float
    least: int  # rows
    shape: torch.Size | None = None  # if it is always the same

    def misshapen(self, name: str, dtype: torch.dtype, shape: torch.Size, known: Known, bound: dict[str, int]) -> str:
        """What is wrong with dtype and shape; "" if nothing is."""
        if dtype == self.dtype and shape == self.shape:
            return ""
        if dtype != self.dtype or len(shape) != len(self.sizes):
            return (
                f"{name} is {_name(dtype)} of {len(shape)} dimensions; "
                f"{_name(self.dtype)} of {len(self.sizes)} is expected"
            )
        for place, (size, given) in enumerate(zip(self.sizes, shape)):
            if wrong := size.wrong(given, known, bound):
                return f"{name} is of shape {list(shape)}; size {place} should be {wrong}"
        if self.least and shape[0] < self.least:
            return f"{name} is of shape {list(shape)}; at least {self.least} row is expected"
        return ""

    def out_of_range(self, name: str, tensor: Tensor, sizes: dict[str, float]) -> str:
        """What is wrong with its numbers, "" if nothing is; the largest floating-point number goes to `sizes`."""
        if self.low is None or not tensor.numel():
            return ""
        low, high = (number.item() for number in (tensor.aminmax() if tensor.ndim else (tensor, tensor)))
        if self.low <= low <= high <= self.high:
            if tensor.is_floating_point():
                sizes[name] = max(-low, high)
            return ""
        return f"{name} has numbers from {low:g} to {high:g}; {self.low:g} to {self.high:g} is expected"

    def bytes(self, known: Known) -> int:
        """The largest size that it may have."""
        sizes = (known.samples if size.most is None else size.most for size in self.sizes)
        return math.prod(sizes) * self.dtype.itemsize


@dataclass(frozen=True)
class Group:
    """What is expected of a field of tensors by name."""

    names: frozenset[str]  # in the message, the field's name included
    measured: tuple[str, ...]  # those that count for the norm
    part: bool
    largest: float  # norm over all floating-point numbers


@dataclass(frozen=True)
class Expectation:
    """What is expected of the replies of one handler by clients of one architecture."""

    arrays: Mapping[str, Array]  # by the name in the message
    groups: Mapping[str, Group]  # by field
    numbers: Mapping[str, tuple[Number | None, tuple[type, ...]]]
    undeclared: frozenset[str]  # fields of tensors
    optional: frozenset[str]

    def knows(self, name: str) -> bool:
        """Whether a tensor of this name, or a coded part of it, may be in a reply."""
        if name in self.arrays or name.rpartition(":")[0] in self.arrays:
            return True
        return name.partition("/")[0].partition(":")[0] in self.undeclared

    def refuses(self, name: str, dtype: torch.dtype, shape: torch.Size, known: Known) -> str:
        """Why a tensor of this form cannot be in a reply; asked before it is decoded."""
        array = self.arrays.get(name)
        if array is not None:
            return array.misshapen(name, dtype, shape, known, {})
        return "" if self.knows(name) else f"no tensor {name!r:.80} is expected"

    def misfit(self, message: Message, known: Known, sizes: dict[str, float]) -> str:
        """What is wrong with a reply, "" if nothing is; how large its fields are goes to `sizes`."""
        bound: dict[str, int] = {}
        for name, tensor in message.tensors.items():
            array = self.arrays.get(name)
            if array is not None:
                wrong = array.misshapen(name, tensor.dtype, tensor.shape, known, bound)
                if wrong := wrong or array.out_of_range(name, tensor, sizes):
                    return wrong
            elif name.partition("/")[0] not in self.undeclared:
                return f"no tensor {name!r:.80} is expected"
            elif tensor.is_floating_point() and tensor.dtype.itemsize == 1:
                return f"{name} is {_name(tensor.dtype)}, whose numbers cannot be checked; send float16 or wider"
            elif tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                return f"{name} holds NaN or infinity"
        for field, group in self.groups.items():
            given = group.names & message.tensors.keys()
            if (given or field not in self.optional) and (
                wrong := _misfit_of_group(field, group, given, message, sizes)
            ):
                return wrong
        return self._misfit_of_numbers(message, known)

    def _misfit_of_numbers(self, message: Message, known: Known) -> str:
        for name, (number, kinds) in self.numbers.items():
            value = message.scalars.get(name)
            if value is None:
                continue
            if isinstance(value, str):
                if len(value) > LONGEST_TEXT:
                    return f"{name} is a text of {len(value):,} characters; at most {LONGEST_TEXT:,} are expected"
                continue
            if isinstance(value, bool) is not (kinds == (bool,)):
                return f"{name} is {value}; {kinds[0].__name__} is expected"
            low: float = -LARGEST_WHOLE if number is None else number.low
            high = LARGEST_WHOLE if number is None else number.high
            if isinstance(high, str):
                high = known.samples
                low = high if known.exact else low
            if not low <= value <= high:
                limit = " (data.most_samples)" if number and number.high == "N_k" and not known.exact else ""
                return f"{name} is {_short(value)}; {low:g} to {high:g}{limit} is expected"
        return ""

    def bytes(self, known: Known) -> int:
        """The most that a reply may have on the wire."""
        names = sum(len(name) + 200 for name in self.arrays)
        declared = sum(array.bytes(known) for array in self.arrays.values())
        return 65_536 + names + declared + UNDECLARED_BYTES * len(self.undeclared)


def _misfit_of_group(field: str, group: Group, given: Set[str], message: Message, sizes: dict[str, float]) -> str:
    if not group.part and len(given) != len(group.names):
        missing = min(group.names - given)
        return f"{field} has {len(given)} tensors, {len(group.names)} are expected; {missing} is missing"
    if not given and message.scalars.get(field) != EMPTY:
        return f"{field} has no tensors"
    norm = sizes[field] = _norm([message.tensors[name] for name in group.measured if name in given])
    if not norm <= group.largest:
        return (
            f"{field} has the norm {norm:g}; at most {group.largest:g} is expected (a lower optimizer.client.lr helps "
            "where training diverged)"
        )
    return ""


@dataclass(frozen=True)
class Expectations:
    """The expectations of a method in a world, and how many samples clients with data of their own have reported."""

    method: type[Method[Any]]
    world: World | None  # None: only what payload classes say by themselves
    found: dict[int, int]  # by client: samples, fixed by the first accepted reply
    sizes: dict[tuple[str, str], dict[int, float]]  # by handler and field, then by client: of this round's replies
    _made: dict[tuple[str, object], Expectation]

    @staticmethod
    def of(method: Method[Any], world: World | None) -> Expectations:
        """The expectations before any reply."""
        return Expectations(type(method), world, {}, {}, {})

    def expectation(self, handler: str, client: int) -> Expectation:
        """Of one handler's replies by one client; made once per architecture."""
        key = (handler, self.world and self.world.client_architecture(client))
        if key not in self._made:
            self._made[key] = _resolve(contract(self.method, handler).reply, self.world, client)
        return self._made[key]

    def known(self, client: int) -> Known:
        """How many samples a client has."""
        if client in self.found:
            return Known(self.found[client], True)
        if self.world is None:
            return Known(LARGEST_WHOLE, False)
        if self.world.data.own:
            return Known(self.world.most_samples, False)
        return Known(int(self.world.data.clients.sizes[client]), True)

    def largest(self, request: Request) -> int:
        """The most bytes that the reply to a request may have."""
        return self.expectation(request.handler, request.client).bytes(self.known(request.client))

    def knows(self, request: Request, message: Message) -> bool:
        """Whether every tensor of a reply, coded or not, has a name that is expected."""
        expectation = self.expectation(request.handler, request.client)
        return message.tensors.keys() <= expectation.arrays.keys() or all(map(expectation.knows, message.tensors))

    def refuses(self, request: Request, name: str, dtype: torch.dtype, shape: torch.Size) -> str:
        """Why a coded tensor of a reply to this request must not be decoded; "" if it may be."""
        expectation, known = self.expectation(request.handler, request.client), self.known(request.client)
        return expectation.refuses(name, dtype, shape, known)

    def misfit(self, request: Request, message: Message) -> str:
        """Why a decoded reply to this request cannot be accepted; "" if it can."""
        known = self.known(request.client)
        expectation = self.expectation(request.handler, request.client)
        sizes: dict[str, float] = {}
        wrong = expectation.misfit(message, known, sizes)
        if wrong:
            return wrong
        for field, size in sizes.items():
            by_client = self.sizes.setdefault((request.handler, field), {})
            by_client[request.client] = max(size, by_client.get(request.client, 0.0))
        if not known.exact and self.world is not None:
            for name, (number, _) in expectation.numbers.items():
                if number is not None and number.high == "N_k" and name in message.scalars:
                    self.found[request.client] = int(message.scalars[name])
        return ""


# ---- from declarations to expectations --------------------------------------------------------------------------


def _resolve(reply: type[Payload], world: World | None, client: int) -> Expectation:
    arrays: dict[str, Array] = {}
    groups: dict[str, Group] = {}
    numbers: dict[str, tuple[Number | None, tuple[type, ...]]] = {}
    undeclared = []
    declared = declarations(reply)
    for field in fields_of(reply):
        declaration = declared[field.name]
        if field.kind == "scalar":
            numbers[field.name] = (declaration if isinstance(declaration, Number) else None, field.types)
        elif isinstance(declaration, Values) and world is not None:
            arrays[field.name] = _array(declaration, world, client)
        elif isinstance(declaration, Like) and world is not None:
            reference = {f"{field.name}/{name}": t.detach() for name, t in declaration.reference(world, client).items()}
            arrays |= {name: _array_like(name, tensor) for name, tensor in reference.items()}
            measured = [n for n, t in reference.items() if t.is_floating_point() and not n.endswith(STATISTICS)]
            size = sum(tensor.numel() for tensor in reference.values())
            largest = GROWTH * (_norm([reference[name] for name in measured]) + math.sqrt(size))
            groups[field.name] = Group(frozenset(reference), tuple(measured), declaration.part, largest)
        else:
            undeclared.append(field.name)
    optional = frozenset(field.name for field in fields_of(reply) if field.optional)
    return Expectation(arrays, groups, numbers, frozenset(undeclared), optional)


def _array(declared: Values, world: World, client: int) -> Array:
    facts = world.client_architecture(client).facts
    label = world.task.label(world.classes)
    shapes = {"*features": facts.features or (), "*image": world.data.dataset.shape, "*label": label.shape}
    numbers = {
        "C": world.classes,
        "N_0": 0 if world.data.public is None else len(world.data.public),
        "B": world.client_optimizer.batch_size + 1,  # a single last sample joins the batch before it
        "N_k": None,
    }
    sizes: list[Size] = []
    for text in declared.sizes:
        if text in shapes:
            sizes += [Size("", length, equal=True) for length in shapes[text]]
            continue
        if text.isdecimal():
            sizes.append(Size("", int(text), equal=True))
            continue
        name, _, most = text.partition(" <= ")
        sizes.append(Size(name, numbers[most]) if most else Size(name, numbers[name], equal=True))
    if declared.dtype is None:
        return Array(label.dtype, tuple(sizes), label.low, label.high, declared.least)
    high = declared.high
    if isinstance(high, str):
        high = (numbers[high] or 1) - 1
    return Array(declared.dtype, tuple(sizes), declared.low, high, declared.least)


def _array_like(name: str, tensor: Tensor) -> Array:
    """What is expected of a tensor with this reference."""
    low: float | None = None
    high: float = LARGEST_WHOLE
    if name.endswith(STATISTICS):
        low, high = (0.0 if name.endswith("var") else -LARGEST_NUMBER), LARGEST_NUMBER
    elif not tensor.is_floating_point() and tensor.dtype != torch.bool:
        low = 0.0
    sizes = tuple(Size("", length, equal=True) for length in tensor.shape)
    return Array(tensor.dtype, sizes, low, high, 0, tensor.shape)


def _norm(tensors: list[Tensor]) -> float:
    """The norm over all tensors; NaN or infinity if one has such a number."""
    return math.hypot(*map(float, torch._foreach_norm(tensors))) if tensors else 0.0


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _short(value: float) -> str:
    try:
        return f"{value:g}"
    except OverflowError:
        return "a number of more than 300 digits"
