"""The rules of an experiment applied to messages: what is sent instead, and what both sides remember for it.

A coded message has, for a tensor `features`, its parts `features:values`, `features:ranges` and so on in the place of
the tensor, and one scalar more, which says how to read them:

    (codecs) = {"chains":["float32=int8+zstd"],"tensors":[[0,[2000,16,32,32]],0],"against":7}

`tensors` has one item for each tensor of the original message, in order: 0 for one that was left as it is, otherwise
the number of its chain, its shape, and after sparse, or golomb of truth values, the number of values kept. `against` is
there if a tensor is a difference from an earlier message.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from catchment.codecs import stages
from catchment.codecs.rules import Chain, Direction, Rule, parse_chain, parse_rule
from catchment.errors import ExperimentError, ProtocolError, WireError
from catchment.message import Message, plain

Memory = dict[str, Tensor]
"""What one side keeps for one peer: `sent` and `received` (numbers of exchanges), `messages` (how many it sent, while
that matters), all 0-dimensional int64, and tensors `sent/NAME`, `received/NAME`, `residual/NAME`, `velocity/NAME`."""

PARTIAL = ("feedback", "momentum", "topk", "smartidx", "sign")  # stages that are for differences where there is one
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


@dataclass(frozen=True)
class Wire:
    """The rules of an experiment; of the rules that fit a tensor the first applies."""

    rules: tuple[Rule, ...] = ()

    @staticmethod
    def parse(texts: Sequence[str]) -> Wire:
        """The rules that these texts write down."""
        wire = Wire(tuple(map(parse_rule, texts)))
        if any("zstd" in rule.chain for rule in wire.rules):
            stages.arrow()  # a missing package is found before training
        if wire._has("up", "update") and wire.remembers("down"):
            raise ExperimentError(
                "wire.codecs has update upwards, and delta, feedback, momentum or a warm-up downwards: update needs "
                "the request as it was decoded, which the server does not keep; code what goes down without memory, "
                "such as fp16"
            )
        return wire

    def touches(self, direction: Direction) -> bool:
        """Whether there is a rule for this direction."""
        return any(rule.direction in (None, direction) for rule in self.rules)

    def remembers(self, direction: Direction) -> bool:
        """Whether a rule for this direction needs a memory."""
        return any(self._has(direction, stage) for stage in ("delta", "feedback", "momentum")) or self._warms_up(
            direction
        )

    def chain(self, name: str, direction: Direction) -> Chain | None:
        """The chain for a tensor of this name."""
        return next((rule.chain for rule in self.rules if rule.fits(name, direction)), None)

    def encode(
        self,
        message: Message,
        direction: Direction,
        memory: Memory,
        *,
        number: int,
        base: Message | None = None,
        peer_holds: int | None = None,
    ) -> tuple[Message, Memory]:
        """What travels instead of a message, and the new memory of the sender.

        `number` is the exchange's, `base` the request that is being answered as this side decoded it, and `peer_holds`
        the number of the last message that the receiver is known to have decoded.
        """
        if CODECS in message.scalars:
            raise ProtocolError(f'a scalar cannot be called "{CODECS}": that name says how a message is coded')
        in_step = peer_holds is not None and _number(memory, "sent") == peer_holds
        messages = (_number(memory, "messages") or 0) + 1
        coded: dict[str, _Coded] = {}
        for name, tensor in message.tensors.items():
            chain = self.chain(name, direction)
            if chain is None or tensor.numel() == 0:
                continue
            reference = None
            if "update" in chain and base is not None:
                reference = base.tensors.get(name)
            elif "delta" in chain and in_step:
                reference = memory.get(f"sent/{name}")
            tensor = plain(tensor)
            left = _Waiting(memory.get(f"residual/{name}"), memory.get(f"velocity/{name}"))
            form = _encode(name, tensor, chain.at(messages), _fitting(reference, tensor), left)
            if (
                form
                and form.saves(name, tensor)
                and not any(f"{name}:{part}" in message.tensors for part in form.parts)
            ):
                coded[name] = form
        travelling = _assemble(message, coded, peer_holds) if coded else message
        if travelling.size() >= message.size():  # small messages: the header may cost more than the parts save
            travelling, coded = message, {}
        memory = dict(memory)
        if self._warms_up(direction):
            memory["messages"] = torch.tensor(messages)
        for name, form in coded.items():
            kept = form.waiting._asdict().items()
            memory |= {f"{kind}/{name}": waiting for kind, waiting in kept if waiting is not None}
        if self._has(direction, "delta"):
            restored = {name: form.restored for name, form in coded.items() if form.restored is not None}
            memory = self._remember(memory, "sent", direction, number, message.tensors | restored)
        return travelling, memory

    def decode(
        self,
        message: Message,
        direction: Direction,
        memory: Memory,
        *,
        number: int,
        base: Message | None = None,
        refuses: Callable[[str, torch.dtype, torch.Size], str] | None = None,
    ) -> tuple[Message, Memory]:
        """The message that was coded, and the new memory of the receiver; `base` is the request that it answers.

        `refuses` is asked about the name, dtype and shape of each coded tensor before any memory is taken for it.
        """
        decoded = message
        if CODECS in message.scalars:
            header = _Header.parse(message.scalars[CODECS])
            scalars = {name: value for name, value in message.scalars.items() if name != CODECS}
            decoded = Message(self._tensors(message, header, direction, memory, base, refuses), scalars)
        if self._has(direction, "delta"):
            memory = self._remember(memory, "received", direction, number, decoded.tensors)
        return decoded, memory

    def _has(self, direction: Direction, stage: str) -> bool:
        return any(rule.direction in (None, direction) and stage in rule.chain for rule in self.rules)

    def _warms_up(self, direction: Direction) -> bool:
        rules = [rule for rule in self.rules if rule.direction in (None, direction)]
        return any(stage.warmup for rule in rules for stage in rule.chain.stages)

    def _remember(
        self, memory: Memory, side: str, direction: Direction, number: int, tensors: dict[str, Tensor]
    ) -> Memory:
        """The memory with the tensors of this message, and of no earlier one, to take differences from.

        They are copies: what a message holds is handed to others, who may change it in place.
        """
        memory = {key: value for key, value in memory.items() if not key.startswith(f"{side}/")}
        memory[side] = torch.tensor(number)
        for name, tensor in tensors.items():
            chain = self.chain(name, direction)
            if chain and "delta" in chain and tensor.dtype in stages.FLOATS:
                memory[f"{side}/{name}"] = plain(tensor).clone()
        return memory

    def _tensors(
        self,
        message: Message,
        header: _Header,
        direction: Direction,
        memory: Memory,
        base: Message | None,
        refuses: Callable[[str, torch.dtype, torch.Size], str] | None,
    ) -> dict[str, Tensor]:
        """The tensors of the original message, in its order."""
        tensors: dict[str, Tensor] = {}
        for name, entry, parts in _grouped(message, header):
            if name in tensors:
                raise WireError(f'a coded message has two tensors "{name}"')
            if entry is None:
                tensors[name] = parts[""]
                continue
            if refuses is not None and (wrong := refuses(name, entry.dtype, entry.shape)):
                raise WireError(wrong)
            try:
                reference = self._reference(name, entry, header, direction, memory, base)
                coarse = stages.unpack(parts, entry.chain, entry.dtype, entry.shape, entry.nonzero)
                tensor = stages.restore(coarse, entry.chain, entry.dtype, entry.shape)
            except WireError as error:
                raise WireError(f'coded tensor "{name}": {error}') from None
            tensors[name] = tensor if reference is None else reference + tensor
        return tensors

    def _reference(
        self, name: str, entry: _Entry, header: _Header, direction: Direction, memory: Memory, base: Message | None
    ) -> Tensor | None:
        """What a coded tensor is a difference from, if it is one."""
        allowed = self.chain(name, direction)
        if allowed is None or not entry.chain.within(allowed):
            raise WireError(
                f"it went through {entry.chain}, the rule here says {allowed or 'nothing'}; both sides need the same "
                "[wire] codecs"
            )
        if "update" in entry.chain:
            found = _fitting(base.tensors.get(name) if base is not None else None, entry)
            if found is None:
                raise WireError("a difference from the request came, but the request has no such tensor")
            return found
        if "delta" in entry.chain:
            holds = _number(memory, "received")
            if header.against is None or holds != header.against:
                raise WireError(
                    f"a difference against message {header.against} came, but this side holds "
                    f"{'none' if holds is None else holds}; the sender must send it whole"
                )
            found = _fitting(memory.get(f"received/{name}"), entry)
            if found is None:
                raise WireError(f"a difference against message {holds} came, which had no such tensor")
            return found
        return None


# ---- one tensor -------------------------------------------------------------------------------------------------


class _Entry(NamedTuple):
    """How one tensor is coded."""

    chain: Chain
    dtype: torch.dtype
    shape: torch.Size
    nonzero: int | None

    def item(self, number: int) -> list[Any]:
        """Its form in the header; `number` is that of its chain there."""
        return [number, list(self.shape), *([] if self.nonzero is None else [self.nonzero])]


class _Waiting(NamedTuple):
    """What a sender keeps of a tensor for later messages; None where its chain keeps nothing."""

    residual: Tensor | None = None  # what the receiver lacks
    velocity: Tensor | None = None  # the running sum of differences where none was sent yet


class _Coded(NamedTuple):
    """A tensor on its way out."""

    entry: _Entry
    parts: dict[str, Tensor]
    restored: Tensor | None  # what the receiver will have, if the sender must know
    waiting: _Waiting

    def saves(self, name: str, tensor: Tensor) -> bool:
        """Whether the parts and the item of the header are smaller than the tensor as it is."""
        item = len(json.dumps(self.entry.item(0), separators=(",", ":"))) + 1
        return _cost({f"{name}:{part}": value for part, value in self.parts.items()}) + item < _cost({name: tensor})


def _cost(tensors: dict[str, Tensor]) -> int:
    layout = Message(tensors).layout
    return layout.nbytes + len(layout.header)


def _encode(name: str, tensor: Tensor, chain: Chain, reference: Tensor | None, waiting: _Waiting) -> _Coded | None:
    """One tensor through its chain; None if no stage did anything."""
    chain = stages.applicable(chain, tensor.dtype)
    differs = chain.first("delta", "update")
    values = tensor
    if differs and reference is None:  # the largest few of a whole tensor are not the tensor, nor are its signs
        chain = stages.applicable(chain.without(differs.name, *PARTIAL), tensor.dtype)
    if differs and reference is not None:
        values = values - reference
    velocity = None
    if momentum := chain.first("momentum"):
        before = _fitting(waiting.velocity, tensor)
        values = velocity = values if before is None else momentum.decay * before + values
    if chain.first("feedback", "momentum") and (residual := _fitting(waiting.residual, tensor)) is not None:
        values = values + residual
    if chain.first("delta", "update", "feedback", "momentum") and not stages.is_finite(values):
        strict = chain.first("topk", "smartidx", "sign", *stages.BITS)
        if strict and not stages.is_finite(tensor):
            raise stages.not_carried(name, strict.name)
        whole = chain.without("delta", "update", *PARTIAL)
        chain, values, reference = stages.applicable(whole, tensor.dtype), tensor, None
    coarse = stages.coarsen(values, chain, name)
    packed = stages.pack(coarse, chain.without("feedback", "momentum"), tensor.shape)
    if not packed.chain.stages:
        return None
    restored, kept = None, _Waiting()
    feeds = chain.first("feedback", "momentum")
    if feeds or (differs and differs.name == "delta"):
        restored = stages.restore(coarse, chain, tensor.dtype, tensor.shape)
        if feeds:
            kept = _Waiting(values - restored, _unsent(velocity, coarse))
        restored = restored if reference is None else reference + restored
    return _Coded(_Entry(packed.chain, tensor.dtype, tensor.shape, packed.nonzero), packed.parts, restored, kept)


def _unsent(velocity: Tensor | None, coarse: stages.Coarse) -> Tensor | None:
    """The velocity, stopped where something was sent."""
    if velocity is None or coarse.positions is None:
        return None
    return velocity.reshape(-1).index_fill(0, coarse.positions.long(), 0).view(velocity.shape)


def _fitting(found: Tensor | None, like: Tensor | _Entry) -> Tensor | None:
    """The tensor, if it is there and has this dtype and shape."""
    return plain(found) if found is not None and (found.dtype, found.shape) == (like.dtype, like.shape) else None


def _number(memory: Memory, side: str) -> int | None:
    return int(memory[side]) if side in memory else None


# ---- the header -------------------------------------------------------------------------------------------------


def _assemble(message: Message, coded: dict[str, _Coded], peer_holds: int | None) -> Message:
    """The message with the parts of coded tensors in their place."""
    tensors: dict[str, Tensor] = {}
    chains: dict[str, int] = {}
    items: list[Any] = []
    for name, tensor in message.tensors.items():
        form = coded.get(name)
        if form is None:
            tensors[name] = tensor
            items.append(0)
            continue
        tensors |= {f"{name}:{part}": value for part, value in form.parts.items()}
        text = f"{str(form.entry.dtype).removeprefix('torch.')}={form.entry.chain}"
        items.append(form.entry.item(chains.setdefault(text, len(chains))))
    header: dict[str, Any] = {"chains": list(chains), "tensors": items}
    if any("delta" in form.entry.chain for form in coded.values()):
        header["against"] = peer_holds
    return Message(tensors, {**message.scalars, CODECS: json.dumps(header, separators=(",", ":"))})


class _Header(NamedTuple):
    """How a message is coded, read and checked."""

    entries: list[_Entry | None]  # one for each tensor of the original message; None: left as it is
    against: int | None

    @staticmethod
    def parse(text: Any) -> _Header:
        try:
            found = json.loads(text)
            chains, items, against = found["chains"], found["tensors"], found.get("against")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise WireError(f"the scalar {CODECS} of a message cannot be read ({type(error).__name__})") from None
        if not isinstance(chains, list) or not isinstance(items, list):
            raise WireError(f"the scalar {CODECS} of a message must list chains and tensors")
        if against is not None and type(against) is not int:
            raise WireError(
                f"a coded message is against a {type(against).__name__}; the number of a message was expected"
            )
        known = list(map(_parse_form, chains))
        entries = [
            None if type(item) is int and item == 0 else _parse_item(item, known, f"item {index} of a coded message")
            for index, item in enumerate(items)
        ]
        size = sum(entry.shape.numel() * entry.dtype.itemsize for entry in entries if entry)
        if size > LARGEST_MESSAGE:
            raise WireError(
                f"a coded message says that it has {size:,} bytes after decoding; at most {LARGEST_MESSAGE:,} are taken"
            )
        return _Header(entries, against)


def _parse_form(text: Any) -> tuple[Chain, torch.dtype]:
    """Chain and dtype from a text like `float32=int8+zstd`."""
    if not isinstance(text, str):
        raise WireError(f"a chain of a coded message is a {type(text).__name__}; a text was expected")
    name, _, stages_text = text.partition("=")
    where = f'chain "{text[:80]}" of a coded message'
    if name not in _DTYPES:
        raise WireError(f"{where} has no known dtype; known: {', '.join(_DTYPES)}")
    try:
        chain = parse_chain(stages_text, where)
    except ExperimentError as error:
        raise WireError(str(error)) from None
    if stages.applicable(chain, _DTYPES[name]) != chain:
        raise WireError(f"{where} has a stage that does nothing for {name}")
    return chain, _DTYPES[name]


def _parse_item(item: Any, known: list[tuple[Chain, torch.dtype]], where: str) -> _Entry:
    if not isinstance(item, list) or not 2 <= len(item) <= 3 or not isinstance(item[1], list):
        raise WireError(f"{where} is not a chain, a shape and perhaps a count")
    number, shape, nonzero = item[0], item[1], item[2] if len(item) == 3 else None
    if type(number) is not int or not 0 <= number < len(known):
        raise WireError(f"{where} names a chain that is not there; there are {len(known)}")
    chain, dtype = known[number]
    if len(shape) > 64 or not all(type(length) is int and 0 < length <= LARGEST_MESSAGE for length in shape):
        raise WireError(f"{where} has an impossible shape")
    if math.prod(shape) > LARGEST_MESSAGE:  # checked before PyTorch, which counts in 64 bits, sees it
        raise WireError(f"{where} has {math.prod(shape):,} elements; at most {LARGEST_MESSAGE:,} are taken")
    counted = "sparse" in chain or (dtype == torch.bool and "golomb" in chain)
    if (nonzero is not None) != counted:
        raise WireError(
            f"{where} must have a third number if, and only if, its chain is sparse or golomb of truth values: the "
            "values kept"
        )
    count = stages.values_shape(chain, torch.Size(shape)).numel()
    if nonzero is not None and (type(nonzero) is not int or not 0 <= nonzero <= count):
        raise WireError(f"{where} does not say how many of {count:,} values it keeps")
    return _Entry(chain, dtype, torch.Size(shape), nonzero)


def _grouped(message: Message, header: _Header) -> Iterator[tuple[str, _Entry | None, dict[str, Tensor]]]:
    """Name, entry and parts of each tensor of the original message; one left as it is has the part ""."""
    rest = list(message.tensors.items())[::-1]
    for entry in header.entries:
        if not rest:
            raise WireError(f"a coded message speaks of {len(header.entries)} tensors, and ends before them")
        if entry is None:
            name, tensor = rest.pop()
            yield name, None, {"": tensor}
            continue
        names = ["zstd"] if "zstd" in entry.chain else list(stages.layout(*entry))
        name, parts = rest[-1][0].rpartition(":")[0], {}
        for part in names:
            if not rest or rest[-1][0] != f"{name}:{part}":
                given = f'"{rest[-1][0]}"' if rest else "nothing"
                raise WireError(f'a coded message has {given} where part "{name}:{part}" was expected')
            parts[part] = plain(rest.pop()[1])
        yield name, entry, parts
    if rest:
        raise WireError(f'a coded message has tensors left over, from "{rest[-1][0]}" on')
