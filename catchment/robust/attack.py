"""The threat model: some clients work together, follow the protocol, and see what the honest ones send.

An attacker computes its honest reply like everybody, and knows the honest replies to the same question. From them it
makes a lie of the same form, which the server gets in place of its reply. Bytes and time are those of the honest reply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from catchment.codecs import matches
from catchment.data import Division
from catchment.errors import ExperimentError
from catchment.exchange.message import Message
from catchment.randomness import derive, numpy_generator, torch_generator

BUFFERS = "buffers"  # the field of methods that send them apart
STATISTICS = ("running_mean", "running_var")  # of batch normalisation


@dataclass(frozen=True)
class Attack:
    """What attackers do; subclass it as a frozen dataclass, and define `lie` or `poison`."""

    clients: int | tuple[int, ...] = 1
    """How many clients lie, drawn with the seed, or a list of them."""

    needs_honest: ClassVar[bool] = False  # the lie is made from the honest replies to the same question

    def lie(self, seen: Seen, name: str) -> Tensor:
        """What an attacker sends as the tensor `name`; by default its honest one."""
        return seen.own.tensors[name]

    def numbers(self, honest: int, attackers: int) -> dict[str, float]:
        """The strength against this many honest replies, by name; empty if it does not lie about uploads."""
        return {}

    def touches(self, name: str) -> bool:
        """Whether it lies about the tensor of this name."""
        return False

    def poison(self, data: Division, attackers: Sequence[int], seed: int) -> Division:
        """The data with which the attackers work."""
        return data


@dataclass(frozen=True)
class Seen:
    """What one attacker knows when it lies."""

    own: Message  # its honest reply
    honest: Sequence[Message]  # the other replies to the same question, by client
    request: Message  # what it was asked
    place: int  # among the attackers of this question, from 0
    attackers: int  # how many these are
    seed: int

    @cached_property
    def alike(self) -> bool:
        """Whether the rows of all replies are about the same samples: their integers (ids, labels) are equal."""
        return all(_integers(message) == _integers(self.own) for message in self.honest) and all(
            torch.equal(message.tensors[name], self.own.tensors[name])
            for message in self.honest
            for name in _integers(self.own)
        )

    def statistics(self, name: str) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of a tensor over the honest replies, number by number.

        Where the rows of replies are about different samples, as with features of private data, it is over all rows,
        and each row of the attacker gets the same. An attacker that sees no honest reply takes its own rows.
        """
        own = self.own.tensors[name]
        theirs = [message.tensors[name] for message in self.honest if name in message.tensors]
        parts = [tensor.unsqueeze(0) for tensor in theirs if tensor.shape == own.shape]
        if not parts or not self.alike:
            rows = [tensor for tensor in theirs or [own] if tensor.ndim and tensor.shape[1:] == own.shape[1:]]
            parts = rows if any(map(len, rows)) else [own.unsqueeze(0)]
        count = sum(map(len, parts))  # reply by reply, as features of all at once would be large
        mean = sum((part.sum(dim=0, dtype=torch.float64) for part in parts), torch.zeros(())) / count
        square = sum(((part.double() - mean).square().sum(dim=0) for part in parts), torch.zeros(())) / count
        return mean.expand_as(own), square.sqrt().expand_as(own)

    def signs(self, name: str) -> Tensor:
        """A random direction of plus and minus ones, the same in every round and for all attackers."""
        own = self.own.tensors[name]
        generator = torch_generator(derive(self.seed, "attack", name))
        return torch.randint(2, own.shape, generator=generator).double() * 2 - 1

    def signs_of_classes(self, name: str) -> Tensor:
        """One for each column of a tensor, `[C]`; half of them are minus, as softmax cancels what all have."""
        classes = self.own.tensors[name].shape[-1]
        order = torch.randperm(classes, generator=torch_generator(derive(self.seed, "attack", name, "classes")))
        return 1 - 2 * (order < classes // 2).double()


def _integers(message: Message) -> dict[str, torch.Size]:
    """The shapes of the integer tensors that have rows."""
    return {
        name: tensor.shape
        for name, tensor in message.tensors.items()
        if tensor.ndim and not tensor.dtype.is_floating_point
    }


@dataclass(frozen=True)
class AttackPlan:
    """An attack on a run, and the clients that take part in it."""

    attack: Attack
    attackers: tuple[int, ...]  # ascending
    seed: int

    @staticmethod
    def draw(attack: Attack, clients: int, seed: int) -> AttackPlan:
        """With the attackers that the attack names, or with drawn ones."""
        given = attack.clients
        if isinstance(given, int):
            if not 1 <= given < clients:
                raise ExperimentError(
                    f"attack.clients is {given}; from 1 to {clients - 1} of {clients} clients can be attackers"
                )
            drawn = numpy_generator(seed, "attackers").choice(clients, given, replace=False)
            return AttackPlan(attack, tuple(sorted(drawn.tolist())), seed)
        if not given or len(set(given)) < len(given) or not all(0 <= client < clients for client in given):
            raise ExperimentError(
                f"attack.clients is {list(given)}; different numbers from 0 to {clients - 1} are expected"
            )
        return AttackPlan(attack, tuple(sorted(given)), seed)

    def poison(self, data: Division) -> Division:
        """The data of the experiment, where the attackers changed theirs."""
        return self.attack.poison(data, self.attackers, self.seed)

    def lie(self, own: Message, honest: Mapping[int, Message], request: Message, place: int, attackers: int) -> Message:
        """The message that the server gets in place of an attacker's own."""
        seen = Seen(own, [honest[client] for client in sorted(honest)], request, place, attackers, self.seed)
        lies = {
            name: self.attack.lie(seen, name).to(tensor.dtype)
            for name, tensor in own.tensors.items()
            if tensor.numel() and tensor.dtype.is_floating_point and self.attack.touches(name)
        }
        return Message({**own.tensors, **lies}, own.scalars) if lies else own


def fits(name: str, patterns: Sequence[str]) -> bool:
    """Whether a tensor's name fits one of the patterns, which are those of codec rules.

    Buffers fit only a pattern that names them: a variance that a lie makes negative gives NaN, and is found at once.
    """
    if name.startswith(f"{BUFFERS}/") or name.endswith(STATISTICS):
        patterns = [pattern for pattern in patterns if pattern.startswith(BUFFERS) or "running" in pattern]
    return any(matches(pattern, name) for pattern in patterns)
