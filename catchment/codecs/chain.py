"""A chain of stages: one tensor through all of them, at the sender, and back at the receiver.

A stage may be a user's own. Whatever goes wrong in it is an error that names it: a ProtocolError at the sender, which
then does not send the tensor, a WireError at the receiver, which then refuses the message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from catchment.codecs.packing import check_wire, from_wire, to_wire
from catchment.codecs.stage import CannotCarry, Context, Form, Layout, Parts, Stage, is_finite
from catchment.errors import CatchmentError, ProtocolError, WireError, printable
from catchment.exchange.message import plain


class Coded(NamedTuple):
    """A tensor after encoding."""

    chain: Chain  # of the stages that the receiver has to undo; without any, the parts are the values to send
    parts: Parts  # as they lie on the wire
    counts: tuple[int, ...]  # of values kept, for each stage that counts
    remembered: dict[str, Tensor]  # for the next message, by the keys of the stages
    wanted: bool = False  # whatever its size: a stage was there for more than bytes


@dataclass(frozen=True, init=False)
class Chain:
    """Stages in the order in which a tensor goes through them; a chain among them stands for its stages."""

    stages: tuple[Stage, ...]

    def __init__(self, *stages: Stage | Chain) -> None:
        flat = [one for stage in stages for one in (stage.stages if isinstance(stage, Chain) else (stage,))]
        object.__setattr__(self, "stages", tuple(flat))

    def __str__(self) -> str:
        return "+".join(map(str, self.stages))

    @property
    def needs_request(self) -> bool:
        """Whether it takes the tensor of the request that is answered."""
        return any(stage.needs_request for stage in self.stages)

    @property
    def keys(self) -> list[str]:
        """What the sender remembers of a tensor."""
        return [stage.key(kept) for stage in self.stages for kept in stage.remembers]

    @property
    def changes(self) -> bool:
        """Whether it differs in later messages of a sender."""
        return any(stage.changes for stage in self.stages)

    @property
    def remembers(self) -> bool:
        """Whether the sender must remember something of earlier messages."""
        return self.changes or bool(self.keys)

    def at(self, message: int) -> Chain:
        """The chain for the message of this number from one sender, the first being 1."""
        return Chain(*(stage.at(message) for stage in self.stages)) if self.changes else self

    def within(self, other: Chain) -> bool:
        """Whether every stage, with its options, is one of the other chain."""
        return all(any(own.covers(stage) for own in other.stages) for stage in self.stages)

    def applicable(self, dtype: torch.dtype) -> Chain:
        """The stages that can do something for this dtype."""
        layout, kept = {"values": Form(dtype, (1,))}, []
        for stage in self.stages:
            with _Watched(stage, "be applied", ProtocolError):
                if stage.applies(layout):
                    kept.append(stage)
                    layout = stage.layout(layout, 0)
        return Chain(*kept)

    def whole(self, dtype: torch.dtype) -> Chain:
        """The stages that remain for a tensor that cannot be sent as a difference."""
        return Chain(*(stage for stage in self.stages if not (stage.needs_request or stage.partial))).applicable(dtype)

    # ---- the sender

    def encode(self, name: str, tensor: Tensor, known: Mapping[str, Tensor]) -> Coded | None:
        """Encode a row-major tensor; None if no stage did anything.

        `known` has what is remembered of it, and its like in the request under "request".
        """
        start = {"values": tensor}, {"values": Form(tensor.dtype, tuple(tensor.shape))}
        chain = self.applicable(tensor.dtype)
        if chain.needs_request and "request" not in known:
            chain = chain.whole(tensor.dtype)
        differing, shrinking = chain._halves()
        steps = _forward(differing, name, *start, known)
        if steps and not is_finite(steps[-1].made["values"]):
            strict = [stage.name for stage in shrinking if stage.finite]
            if strict and not is_finite(tensor):
                raise ProtocolError(f"{name} holds NaN or infinity, which {strict[0]} cannot carry")
            differing, shrinking = chain.whole(tensor.dtype)._halves()
            steps = _forward(differing, name, *start, known)
        steps += _forward(shrinking, name, *((steps[-1].made, steps[-1].after) if steps else start), known)
        named = [step.stage for step in steps if not step.stage.silent]
        wanted = any(not step.stage.saves for step in steps)
        if not named and not wanted:
            return None
        remembered = _remembered(_from_first_memory(steps))
        counts = tuple(step.kept for step in steps if step.kept is not None)
        wire = to_wire(steps[-1].made, steps[-1].after) if named else steps[-1].made
        return Coded(Chain(*named), wire, counts, remembered, wanted)

    def _halves(self) -> tuple[list[Stage], list[Stage]]:
        """Stages that make differences, and those that make them smaller."""
        differing = [stage for stage in self.stages if stage.place in ("difference", "correction")]
        return differing, [stage for stage in self.stages if stage not in differing]

    # ---- the receiver

    def contexts(self, form: Form, counts: Sequence[int], parts: Parts | None = None) -> list[Context]:
        """What each stage can use to undo its work on a tensor of this form, and the layout after the last one.

        Given the parts as received, also the numbers of values that the layouts leave open.
        """
        contexts, layout, given = [], {"values": form}, iter(counts)
        for stage in self.stages:
            with _Watched(stage, "decode", WireError):
                count = next(given, 0) if stage.counts(layout) else 0
                contexts.append(Context(layout, kept=count))
                layout = _ordered(stage.layout(layout, count))
                if parts is not None and _is_open(layout):
                    layout["values"] = layout["values"]._replace(shape=(stage.measured(parts, contexts[-1].before),))
        return [*contexts, Context(layout)]

    def counting(self, contexts: list[Context]) -> list[Context]:
        """The contexts of stages that say how many values they kept."""
        return [context for stage, context in zip(self.stages, contexts) if stage.counts(context.before)]

    def decode(self, parts: Parts, contexts: list[Context], known: Mapping[str, Tensor]) -> Tensor:
        """The tensor from parts that came over the wire; every size is checked before memory is taken for it."""
        check_wire(parts, contexts[-1].before)
        if any(_is_open(context.before) for context in contexts):
            counts = [context.kept for context in self.counting(contexts)]
            contexts = self.contexts(contexts[0].form, counts, parts)
        parts = from_wire(parts, contexts[-1].before)
        for stage, context in reversed(list(zip(self.stages, contexts))):
            parts = _decoded(stage, parts, context._replace(known=_request(stage, known)), WireError)
        return parts["values"]


def _is_open(layout: Layout) -> bool:
    """Whether the number of values is not known yet."""
    return "values" in layout and layout["values"].shape is None


def _ordered(layout: Layout) -> Layout:
    """The values come last on the wire."""
    return dict(sorted(layout.items(), key=lambda item: item[0] == "values"))


def _request(stage: Stage, known: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {"request": known["request"]} if stage.needs_request and "request" in known else {}


# ---- one stage, watched -----------------------------------------------------------------------------------------


class _Step(NamedTuple):
    """What a stage did at the sender."""

    stage: Stage
    given: Parts
    context: Context
    made: Parts
    after: Layout
    kept: int | None  # how many values, if the stage counts


def _forward(stages: list[Stage], name: str, parts: Parts, before: Layout, known: Mapping[str, Tensor]) -> list[_Step]:
    """What stages do to parts of this layout, one after another; those that would not help are left out."""
    steps = []
    for stage in stages:
        own = {kept: known[stage.key(kept)] for kept in stage.remembers if stage.key(kept) in known}
        step = _encoded(stage, name, parts, Context(before, {**_request(stage, known), **own}))
        if step is not None:
            steps.append(step)
            parts, before = step.made, step.after
    return steps


def _encoded(stage: Stage, name: str, parts: Parts, context: Context) -> _Step | None:
    doing = f'encode "{name}"'
    try:
        with _Watched(stage, doing, ProtocolError, parts):
            made = stage.encode(parts, context)
    except CannotCarry as error:
        raise ProtocolError(f"{name} holds {error}, which {stage.name} cannot carry") from None
    if made is None:
        return None
    with _Watched(stage, doing, ProtocolError):
        count = stage.count(parts, made) if stage.counts(context.before) else None
        after = _ordered(stage.layout(context.before, count or 0))
        if _is_open(after):
            after["values"] = after["values"]._replace(shape=tuple(made["values"].shape))
    wrong = _misfit(made, after)
    twice = [part for part in after if part != "values" and part in parts and made[part] is not parts[part]]
    if not wrong and twice:
        wrong = f"its part {twice[0]} is also one of an earlier stage; give it another name"
    if wrong:
        raise ProtocolError(f"stage {stage.name} cannot {doing}: {wrong}")
    return _Step(stage, parts, context, {part: made[part] for part in after}, after, count)


def _from_first_memory(steps: list[_Step]) -> list[_Step]:
    """The steps from the first whose stage remembers something."""
    return steps[next((place for place, step in enumerate(steps) if step.stage.remembers), len(steps)) :]


def _remembered(steps: list[_Step]) -> dict[str, Tensor]:
    """What stages remember for the next message, from what the receiver will have of it."""
    parts, exact = steps[-1].made if steps else {}, True
    remembered: dict[str, Tensor] = {}
    for step in reversed(steps):
        stage = step.stage
        exact = exact and stage.place in ("packing", "compression") and not stage.loses
        if exact:  # what arrives is what was put in
            parts = step.given
            continue
        with _Watched(stage, "remember", ProtocolError):
            kept = stage.remember(step.given, parts, step.context) if stage.remembers else {}
            if extra := sorted(kept.keys() - set(stage.remembers)):
                raise ProtocolError(f"it gave {', '.join(extra)}, which `remembers` does not name")
            remembered |= {stage.key(name): _apart(tensor, step) for name, tensor in kept.items()}
        parts = _decoded(stage, parts, step.context, ProtocolError)
    return remembered


def _decoded(stage: Stage, parts: Parts, context: Context, kind: type[CatchmentError]) -> Parts:
    with _Watched(stage, "decode", kind, parts):
        found = stage.decode(parts, context)
        found = {name: part for name, part in found.items() if name in context.before}
    if wrong := _misfit(found, context.before):
        raise kind(f"stage {stage.name} cannot decode: {wrong}")
    return {name: found[name] for name in context.before}


def _apart(tensor: Tensor, step: _Step) -> Tensor:
    """A copy of a tensor to remember where it is shared: what a message holds may be changed in place by others."""
    others = [*step.given.values(), *step.context.known.values()]
    tensor = plain(tensor)
    storage = tensor.untyped_storage().data_ptr()
    return tensor.clone() if any(storage == other.untyped_storage().data_ptr() for other in others) else tensor


def _misfit(parts: Any, layout: Layout) -> str:
    """What is wrong with parts that should be of a layout; "" if nothing is."""
    if not isinstance(parts, dict) or parts.keys() != layout.keys():
        given = ", ".join(map(str, parts)) if isinstance(parts, dict) else f"a {type(parts).__name__}"
        return f"it gave {given or 'nothing'}; its layout has {', '.join(layout)}"
    for name, form in layout.items():
        part = parts[name]
        given = f"{part.dtype} of shape {list(part.shape)}" if isinstance(part, Tensor) else f"a {type(part).__name__}"
        if not isinstance(part, Tensor) or part.dtype != form.dtype or form.shape not in (None, tuple(part.shape)):
            shape = "any" if form.shape is None else list(form.shape)
            return f"its {name} is {given}; {form.dtype} of shape {shape} was expected"
        if form.bits and (form.bits not in (1, 2, 4) or form.dtype != torch.uint8):
            return f"its {name} has {form.bits} bits of {form.dtype}; 1, 2 or 4 bits of torch.uint8 can be packed"
        if form.bits and part.numel() and int(part.max()) >= 2**form.bits:
            return f"its {name} has a {int(part.max())}, which does not fit into {form.bits} bits"
        if not name.isidentifier():
            return f'its part "{name}" needs a name of letters, digits and underscores'
    return ""


class _Watched:
    """Around a call of a stage: whatever it raises names it, and it may not change the parts that it was given.

    Built-in stages raise errors of their own for what is wrong with a message.
    """

    def __init__(self, stage: Stage, doing: str, kind: type[CatchmentError], parts: Parts | None = None) -> None:
        self.stage, self.doing, self.kind = stage, doing, kind
        self.parts = list(parts.values()) if parts else []

    def __enter__(self) -> None:
        self.versions = [part._version for part in self.parts]

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            if self.versions != [part._version for part in self.parts]:
                raise self._blame("it changed a tensor in place; clone it first")
        elif isinstance(error, CannotCarry | CatchmentError):
            if ":" in self.stage.name and not isinstance(error, CannotCarry):
                raise self._blame(str(error)) from error
        elif isinstance(error, Exception):
            raise self._blame(f"{type(error).__name__}: {printable(error)}") from error

    def _blame(self, reason: str) -> CatchmentError:
        return self.kind(f"stage {self.stage.name} cannot {self.doing}: {reason}")
