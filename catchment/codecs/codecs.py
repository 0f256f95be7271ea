"""The codec rules of an experiment applied to messages: what is sent instead, and what a sender remembers for it.

A coded message has, for a tensor `features`, its parts `features:values`, `features:ranges` and so on in place of the
tensor, and one more scalar, the header, which says how to read them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeGuard

import torch
from torch import Tensor

from catchment.codecs.chain import Chain, Coded
from catchment.codecs.header import CODECS, CodedTensor, Entry, Header, assemble
from catchment.codecs.rules import STAGES, Direction, Rule, parse_rule
from catchment.codecs.stage import Form, Stage
from catchment.errors import ExperimentError, ProtocolError, WireError
from catchment.exchange.message import Message, plain

Memory = dict[str, Tensor]
"""What a client keeps for its next messages: `messages`, how many it sent, where a chain changes with their number, and
of each tensor `KEY/NAME`, for what stages remember."""

Refuses = Callable[[str, torch.dtype, torch.Size], str]  # why a coded tensor must not be decoded; "" if it may be


@dataclass(frozen=True)
class Codecs:
    """The rules of an experiment; of the rules that fit a tensor the first applies."""

    rules: tuple[Rule, ...] = ()

    @staticmethod
    def parse(rules: Sequence[str | Rule]) -> Codecs:
        """Rules from texts, or as a method makes them, if they can work together."""
        for rule in rules:
            if isinstance(rule, Rule):
                rule.check(f'codec rule "{rule}"')
        codecs = Codecs(tuple(parse_rule(rule) if isinstance(rule, str) else rule for rule in rules))
        for rule in codecs.rules:
            for stage in rule.chain.stages:
                if codecs._stages[stage.name] is not type(stage):
                    raise ExperimentError(f'two stages in wire.codecs are named "{stage.name}"; rename one')
        return codecs

    @cached_property
    def remembers(self) -> bool:
        """Whether clients remember something for their next messages."""
        return any(rule.chain.remembers for rule in self.rules)

    def chain(self, name: str, direction: Direction) -> Chain | None:
        """The chain for a tensor of this name."""
        return next((rule.chain for rule in self.rules if rule.fits(name, direction)), None)

    def encode(
        self, message: Message, direction: Direction, memory: Memory, base: Message | None = None
    ) -> tuple[Message, Memory]:
        """What is sent instead of a message, and the new memory of the sender.

        `base` is the request that is answered, as the sender decoded it.
        """
        if CODECS in message.scalars:
            raise ProtocolError(f'a scalar cannot be called "{CODECS}": that name says how a message is coded')
        if not any(rule.direction in (None, direction) for rule in self.rules):
            return message, memory
        messages = int(memory.get("messages", 0)) + 1
        coded: dict[str, Coded] = {}
        for name, tensor in message.tensors.items():
            chain = self.chain(name, direction)
            if chain is None or tensor.numel() == 0:
                continue
            tensor = plain(tensor)
            known = {key: memory[f"{key}/{name}"] for key in chain.keys if f"{key}/{name}" in memory}
            request = base.tensors.get(name) if base is not None else None
            if chain.needs_request and _alike(request, tensor):
                known["request"] = plain(request)
            form = chain.at(messages).encode(name, tensor, known)
            if form is None or not (form.wanted or _saves(name, tensor, form)):
                continue
            if twice := [f"{name}:{part}" for part in form.parts if f"{name}:{part}" in message.tensors]:
                if form.wanted:
                    raise ProtocolError(f'"{name}" has to be coded, and "{twice[0]}" is also a tensor; rename one')
                continue
            coded[name] = form
        sent = message
        if coded:
            entries = {name: (_entry(form, message.tensors[name]), form.parts) for name, form in coded.items()}
            sent = assemble(message, entries)
        if sent.size() >= message.size() and not any(form.wanted for form in coded.values()):
            sent, coded = message, {}  # small messages: the header may cost more than the parts save
        memory = dict(memory)
        if any(rule.chain.changes for rule in self.rules):
            memory["messages"] = torch.tensor(messages)
        for name, form in coded.items():
            memory |= {f"{key}/{name}": tensor for key, tensor in form.remembered.items()}
        return sent, memory

    def decode(
        self, message: Message, direction: Direction, base: Message | None = None, refuses: Refuses | None = None
    ) -> Message:
        """The message that was coded; `base` is the request that it answers.

        `refuses` is asked about the name, dtype and shape of each coded tensor before any memory is taken for it.
        """
        if CODECS not in message.scalars:
            return message
        header = Header.parse(message.scalars[CODECS], self._stages)
        scalars = {name: value for name, value in message.scalars.items() if name != CODECS}
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
                tensors[name] = coded.chain.decode(parts, coded.contexts, _known(name, coded, base))
            except WireError as error:
                raise WireError(f'coded tensor "{name}": {error}') from None
        return Message(tensors, scalars)

    @cached_property
    def _stages(self) -> dict[str, type[Stage]]:
        """The stages that a message may name."""
        return STAGES | {stage.name: type(stage) for rule in self.rules for stage in rule.chain.stages}


def _known(name: str, coded: CodedTensor, base: Message | None) -> dict[str, Tensor]:
    """The tensor of the request, where a chain needs it."""
    if not coded.chain.needs_request:
        return {}
    request = base.tensors.get(name) if base is not None else None
    if not _alike(request, coded.form):
        raise WireError("a difference from the request came, but the request has no such tensor")
    return {"request": plain(request)}


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
