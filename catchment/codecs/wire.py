"""The codec rules of an experiment applied to messages: what is sent instead, and what both sides remember for it.

A coded message has, for a tensor `features`, its parts `features:values`, `features:ranges` and so on in place of the
tensor, and one more scalar, the header, which says how to read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeGuard

import torch
from torch import Tensor

from catchment.codecs.chain import Chain, Coded
from catchment.codecs.header import CODECS, CodedTensor, Entry, Header, assemble
from catchment.codecs.rules import STAGES, Direction, Rule, parse_rule
from catchment.codecs.stage import FLOATS, Form, Stage
from catchment.errors import ExperimentError, ProtocolError, WireError
from catchment.exchange.message import Message, plain

Memory = dict[str, Tensor]
"""What one side keeps for one peer: `sent` and `received` (numbers of exchanges), `messages` (how many it sent, while
that matters), all 0-dimensional int64; tensors `sent/NAME`, `received/NAME`, `KEY/NAME` for what stages remember."""


@dataclass(frozen=True)
class Wire:
    """The rules of an experiment; of the rules that fit a tensor the first applies."""

    rules: tuple[Rule, ...] = ()

    @staticmethod
    def parse(rules: Sequence[str | Rule]) -> Wire:
        """Rules from texts, or as a method makes them, if they can work together."""
        for rule in rules:
            if isinstance(rule, Rule):
                rule.check(f'codec rule "{rule}"')
        wire = Wire(tuple(parse_rule(rule) if isinstance(rule, str) else rule for rule in rules))
        for rule in wire.rules:
            for stage in rule.chain.stages:
                if wire._stages[stage.name] is not type(stage):
                    raise ExperimentError(f'two stages in wire.codecs are named "{stage.name}"; rename one')
        if wire._shares("up", "request") and wire.remembers("down"):
            raise ExperimentError(
                "wire.codecs has update upwards, and delta, feedback or a warm-up downwards: update needs the request "
                "as it was decoded, which the server does not keep; use a codec without memory downwards, such as fp16"
            )
        return wire

    def touches(self, direction: Direction) -> bool:
        """Whether there is a rule for this direction."""
        return any(self._chains(direction))

    def remembers(self, direction: Direction) -> bool:
        """Whether a rule for this direction needs a memory."""
        return any(chain.keys or chain.changes or "previous" in chain.shared for chain in self._chains(direction))

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
        coded: dict[str, Coded] = {}
        for name, tensor in message.tensors.items():
            chain = self.chain(name, direction)
            if chain is None or tensor.numel() == 0:
                continue
            tensor = plain(tensor)
            known = {key: memory[f"{key}/{name}"] for key in chain.keys if f"{key}/{name}" in memory}
            references = {
                "request": base.tensors.get(name) if base is not None else None,
                "previous": memory.get(f"sent/{name}") if in_step else None,
            }
            known |= {key: plain(t) for key, t in references.items() if key in chain.shared and _alike(t, tensor)}
            form = chain.at(messages).encode(name, tensor, known, restore="previous" in chain.shared)
            if form is None or not (form.wanted or _saves(name, tensor, form)):
                continue
            if twice := [f"{name}:{part}" for part in form.parts if f"{name}:{part}" in message.tensors]:
                if form.wanted:
                    raise ProtocolError(f'"{name}" has to be coded, and "{twice[0]}" is also a tensor; rename one')
                continue
            coded[name] = form
        travelling = message
        if coded:
            entries = {name: (_entry(form, message.tensors[name]), form.parts) for name, form in coded.items()}
            travelling = assemble(message, entries, peer_holds)
        if travelling.size() >= message.size() and not any(form.wanted for form in coded.values()):
            travelling, coded = message, {}  # small messages: the header may cost more than the parts save
        memory = dict(memory)
        if any(chain.changes for chain in self._chains(direction)):
            memory["messages"] = torch.tensor(messages)
        for name, form in coded.items():
            memory |= {f"{key}/{name}": tensor for key, tensor in form.remembered.items()}
        if self._shares(direction, "previous"):
            received = {name: form.received for name, form in coded.items() if form.received is not None}
            memory = self._remember(memory, "sent", direction, number, message.tensors | received)
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
            header = Header.parse(message.scalars[CODECS], self._stages)
            scalars = {name: value for name, value in message.scalars.items() if name != CODECS}
            decoded = Message(self._tensors(message, header, direction, memory, base, refuses), scalars)
        if self._shares(direction, "previous"):
            memory = self._remember(memory, "received", direction, number, decoded.tensors)
        return decoded, memory

    @cached_property
    def _stages(self) -> dict[str, type[Stage]]:
        """The stages that a message may name."""
        return STAGES | {stage.name: type(stage) for rule in self.rules for stage in rule.chain.stages}

    def _chains(self, direction: Direction) -> Iterator[Chain]:
        return (rule.chain for rule in self.rules if rule.direction in (None, direction))

    def _shares(self, direction: Direction, what: str) -> bool:
        return any(what in chain.shared for chain in self._chains(direction))

    def _remember(
        self, memory: Memory, side: str, direction: Direction, number: int, tensors: dict[str, Tensor]
    ) -> Memory:
        """The memory with the tensors of this message, and of no earlier one, to take differences from.

        They are copies, as the receiver of a message may change it in place.
        """
        memory = {key: value for key, value in memory.items() if not key.startswith(f"{side}/")}
        memory[side] = torch.tensor(number)
        for name, tensor in tensors.items():
            chain = self.chain(name, direction)
            if chain and "previous" in chain.shared and tensor.dtype in FLOATS:
                memory[f"{side}/{name}"] = plain(tensor).clone()
        return memory

    def _tensors(
        self,
        message: Message,
        header: Header,
        direction: Direction,
        memory: Memory,
        base: Message | None,
        refuses: Callable[[str, torch.dtype, torch.Size], str] | None,
    ) -> dict[str, Tensor]:
        """The tensors of the original message, in its order."""
        tensors: dict[str, Tensor] = {}
        for name, coded, parts in header.grouped(message):
            if name in tensors:
                raise WireError(f'a coded message has two tensors "{name}"')
            if coded is None:
                tensors[name] = parts[""]
                continue
            if refuses is not None and (wrong := refuses(name, coded.form.dtype, torch.Size(coded.form.shape or ()))):
                raise WireError(wrong)
            try:
                allowed = self.chain(name, direction)
                if allowed is None or not coded.chain.within(allowed):
                    raise WireError(
                        f"it went through {coded.chain}, the rule here says {allowed or 'nothing'}; both sides need "
                        "the same [wire] codecs"
                    )
                known = _references(name, coded, header.against, memory, base)
                tensors[name] = coded.chain.decode(parts, coded.contexts, known)
            except WireError as error:
                raise WireError(f'coded tensor "{name}": {error}') from None
        return tensors


def _references(
    name: str, coded: CodedTensor, against: int | None, memory: Memory, base: Message | None
) -> dict[str, Tensor]:
    """What both sides hold of a tensor, as far as its chain needs it."""
    found: dict[str, Tensor] = {}
    if "request" in coded.chain.shared:
        request = base.tensors.get(name) if base is not None else None
        if not _alike(request, coded.form):
            raise WireError("a difference from the request came, but the request has no such tensor")
        found["request"] = plain(request)
    if "previous" in coded.chain.shared:
        holds = _number(memory, "received")
        if against is None or holds != against:
            raise WireError(
                f"a difference against message {against} came, but this side holds "
                f"{'none' if holds is None else holds}; the sender must send it whole"
            )
        previous = memory.get(f"received/{name}")
        if not _alike(previous, coded.form):
            raise WireError(f"a difference against message {holds} came, which had no such tensor")
        found["previous"] = plain(previous)
    return found


def _alike(found: Tensor | None, like: Tensor | Form) -> TypeGuard[Tensor]:
    """Whether a tensor is there and has this dtype and shape."""
    return found is not None and found.dtype == like.dtype and tuple(found.shape) == like.shape


def _entry(form: Coded, tensor: Tensor) -> Entry:
    return Entry(form.chain, tensor.dtype, tensor.shape, form.counts)


def _saves(name: str, tensor: Tensor, form: Coded) -> bool:
    """Whether the parts and the item of the header are smaller than the tensor as it is."""
    parts = {f"{name}:{part}": value for part, value in form.parts.items()}
    return _cost(parts) + _entry(form, tensor).cost < _cost({name: tensor})


def _cost(tensors: dict[str, Tensor]) -> int:
    layout = Message(tensors).layout
    return layout.nbytes + len(layout.header)


def _number(memory: Memory, side: str) -> int | None:
    return int(memory[side]) if side in memory else None
