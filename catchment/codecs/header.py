"""How a message is coded: a scalar that lists the chains and, for each tensor of the original message, its form.

    (codecs) = {"chains":["float32=int8+zstd"],"tensors":[[0,[2000,16,32,32]],0]}

`tensors` has one item for each tensor of the original message, in order: 0 for one that was left as it is, otherwise
the number of its chain, its shape, and a count for each stage that keeps only some values (sparse, and golomb of truth
values).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from catchment.codecs.chain import Chain
from catchment.codecs.rules import check_chain, parse_chain
from catchment.codecs.stage import Context, Form, Parts, Stage
from catchment.errors import CatchmentError, WireError
from catchment.exchange.message import Message, plain

CODECS = "(codecs)"  # the scalar that says how a message is coded
LARGEST_MESSAGE = 64 * 2**30  # bytes that a message may have after decoding

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
        torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
        torch.bool,
    )
}  # fmt: skip


class Entry(NamedTuple):
    """How the sender coded one tensor."""

    chain: Chain
    dtype: torch.dtype
    shape: torch.Size
    counts: tuple[int, ...]

    def item(self, number: int) -> list[Any]:
        """Its form in the header; `number` is that of its chain there."""
        return [number, list(self.shape), *self.counts]

    @property
    def cost(self) -> int:
        """The bytes that it adds to the header, about."""
        return len(json.dumps(self.item(0), separators=(",", ":"))) + 1


def write(entries: list[Entry | None]) -> str:
    """The header of a message; None for a tensor that was left as it is."""
    chains: dict[str, int] = {}
    items: list[Any] = []
    for entry in entries:
        if entry is None:
            items.append(0)
        else:
            text = f"{str(entry.dtype).removeprefix('torch.')}={entry.chain}"
            items.append(entry.item(chains.setdefault(text, len(chains))))
    return json.dumps({"chains": list(chains), "tensors": items}, separators=(",", ":"))


class CodedTensor(NamedTuple):
    """A coded tensor as the header of a received message describes it."""

    chain: Chain
    contexts: list[Context]  # of its stages, and the layout of its parts

    @property
    def form(self) -> Form:
        """The form of the tensor after decoding."""
        return self.contexts[0].form


class Header(NamedTuple):
    """How a message is coded, read and checked."""

    tensors: list[CodedTensor | None]  # one for each tensor of the original message; None: left as it is

    @staticmethod
    def parse(text: Any, known: Mapping[str, type[Stage]]) -> Header:
        """The header of a message; its stages must be among the known ones, none is imported."""
        try:
            found = json.loads(text)
            chains, items = found["chains"], found["tensors"]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise WireError(f"the scalar {CODECS} of a message cannot be read ({type(error).__name__})") from None
        if not isinstance(chains, list) or not isinstance(items, list):
            raise WireError(f"the scalar {CODECS} of a message must list chains and tensors")
        forms = [_parse_form(chain, known) for chain in chains]
        tensors = [
            None if type(item) is int and item == 0 else _parse_item(item, forms, f"item {index} of a coded message")
            for index, item in enumerate(items)
        ]
        size = sum(coded.form.numel * coded.form.dtype.itemsize for coded in tensors if coded)
        if size > LARGEST_MESSAGE:
            raise WireError(
                f"a coded message has {size:,} bytes after decoding; at most {LARGEST_MESSAGE:,} are accepted"
            )
        return Header(tensors)

    def grouped(self, message: Message) -> Iterator[tuple[str, CodedTensor | None, Parts]]:
        """Name, description and parts of each tensor of the original message; one left as it is has the part ""."""
        rest = list(message.tensors.items())[::-1]
        for coded in self.tensors:
            if not rest:
                raise WireError(f"a coded message lists {len(self.tensors)} tensors, and has fewer")
            if coded is None:
                name, tensor = rest.pop()
                yield name, None, {"": tensor}
                continue
            name, parts = rest[-1][0].rpartition(":")[0], {}
            for part in coded.contexts[-1].before:
                if not rest or rest[-1][0] != f"{name}:{part}":
                    given = f'"{rest[-1][0]}"' if rest else "nothing"
                    raise WireError(f'a coded message has {given} where part "{name}:{part}" was expected')
                parts[part] = plain(rest.pop()[1])
            yield name, coded, parts
        if rest:
            raise WireError(f'a coded message has tensors left over, from "{rest[-1][0]}" on')


def _parse_form(text: Any, known: Mapping[str, type[Stage]]) -> tuple[Chain, torch.dtype]:
    """Chain and dtype from a text like `float32=int8+zstd`."""
    if not isinstance(text, str):
        raise WireError(f"a chain of a coded message is a {type(text).__name__}; a text was expected")
    name, _, stages = text.partition("=")
    where = f'chain "{text[:80]}" of a coded message'
    if name not in _DTYPES:
        raise WireError(f"{where} has no known dtype; known: {', '.join(_DTYPES)}")
    try:
        chain = parse_chain(stages, where, known)
        check_chain(chain, where)
        applicable = chain.applicable(_DTYPES[name])
    except CatchmentError as error:
        raise WireError(str(error)) from None
    if applicable != chain:
        raise WireError(f"{where} has a stage that does nothing for {name}")
    return chain, _DTYPES[name]


def _parse_item(item: Any, forms: list[tuple[Chain, torch.dtype]], where: str) -> CodedTensor:
    if not isinstance(item, list) or len(item) < 2 or not isinstance(item[1], list):
        raise WireError(f"{where} is not a chain, a shape and perhaps a count")
    number, shape, *counts = item
    if type(number) is not int or not 0 <= number < len(forms):
        raise WireError(f"{where} names a chain that is not there; there are {len(forms)}")
    chain, dtype = forms[number]
    if len(shape) > 64 or not all(type(length) is int and 0 < length <= LARGEST_MESSAGE for length in shape):
        raise WireError(f"{where} has an impossible shape")
    if math.prod(shape) > LARGEST_MESSAGE:  # checked before PyTorch, which counts in 64 bits, sees it
        raise WireError(f"{where} has {math.prod(shape):,} elements; at most {LARGEST_MESSAGE:,} are accepted")
    if not all(type(count) is int and 0 <= count <= LARGEST_MESSAGE for count in counts):
        raise WireError(f"{where} has an impossible count")
    contexts = chain.contexts(Form(dtype, tuple(shape)), counts)
    counting = chain.counting(contexts)
    if len(counting) != len(counts):
        raise WireError(
            f"{where} has {len(counts)} counts where its chain needs {len(counting)}: one, of the values kept, for "
            "sparse and for golomb of truth values"
        )
    for context in counting:
        if context.kept > context.form.numel:
            raise WireError(f"{where} says that it keeps {context.kept:,} of {context.form.numel:,} values")
    return CodedTensor(chain, contexts)


def assemble(message: Message, coded: Mapping[str, tuple[Entry, Parts]]) -> Message:
    """The message with the parts of coded tensors in their place, and the header if there is anything to undo."""
    tensors: dict[str, Tensor] = {}
    entries: list[Entry | None] = []
    for name, tensor in message.tensors.items():
        entry, parts = coded.get(name, (None, {"values": tensor}))
        undone = entry is not None and bool(entry.chain.stages)
        entries.append(entry if undone else None)
        tensors |= {f"{name}:{part}": value for part, value in parts.items()} if undone else {name: parts["values"]}
    header = {CODECS: write(entries)} if any(entries) else {}
    return Message(tensors, {**message.scalars, **header})
