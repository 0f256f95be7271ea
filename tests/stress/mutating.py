"""Messages that were changed on their way, and what reads them: a refusal or a sound message, and nothing else.

What is read is what an honest run sends: a reply and a request of every handler of every method, and a message that
went through every stage of the codecs. A mutation changes its bytes, its header, its scalars, what it says of its
codecs, or its tensors.
"""

from __future__ import annotations

import dataclasses
import json
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from spoiled_nodes import FIELD_VALUES, Post
from spoiling import CODECS, small_experiment, ways
from torch import Tensor

from catchment.codecs import Codecs
from catchment.codecs.lossless import zstd
from catchment.core.expectations import Expectations
from catchment.core.method import contract
from catchment.core.world import World
from catchment.errors import ProtocolError, WireError
from catchment.exchange.message import Message
from catchment.exchange.request import Request, Response
from catchment.runs.directory import begin
from catchment.runs.loop import run_rounds
from catchment.simulation.inprocess import InProcess

Raw = bytes
TAKEN, REFUSED = "taken", "refused"


@dataclass(frozen=True)
class Target:
    """A sound message and the function that reads what became of it."""

    name: str
    raw: Raw
    read: Callable[[Raw], str]  # "taken" or "refused"; whatever it raises has escaped
    spoils: tuple[Callable[[], Raw], ...] = ()  # messages that are sound in form and wrong in content


# ---- targets ----------------------------------------------------------------------------------------------------


class _Recording(InProcess):
    """Keeps the first exchange of client 0 for each handler, which builds on no other."""

    def __init__(self, world: World, directory: Path | None) -> None:
        super().__init__(world, directory=directory)
        self.world = world
        self.exchanges: dict[str, tuple[Request, Response]] = {}

    def _serve(self, request: Request) -> Response:
        response = super()._serve(request)
        if request.client == 0 and response.body is not None:
            self.exchanges.setdefault(request.handler, (request, response))
        return response


def targets_of(name: str) -> list[Target]:
    """A request and a reply of every handler of a world."""
    trial = dataclasses.replace(small_experiment(name), rounds=2)
    world = trial.build_world()
    with tempfile.TemporaryDirectory() as folder:
        recording = _Recording(world, Path(folder))
        run_rounds(trial, world, recording, begin(trial, Path(folder)))
    exchanges = recording.exchanges
    expectations = Expectations.of(world.method, world)
    bodies = {handler: response.body for handler, (_, response) in exchanges.items() if response.body}
    targets = []
    for handler, (request, response) in exchanges.items():
        spoils = [_spoiled(way, response, bodies) for way in ways(handler, bodies[handler], bodies)]
        replies = _reply_reader(world, expectations, request)
        targets.append(Target(f"{name}: reply of {handler}", response.to_bytes(), replies, tuple(spoils)))
        targets.append(Target(f"{name}: request of {handler}", request.to_bytes(), _request_reader(world)))
    return targets


def _spoiled(way: Any, response: Response, bodies: dict[str, Message]) -> Callable[[], Raw]:
    return lambda: way.apply(response, bodies)


def _reply_reader(world: World, expectations: Expectations, request: Request) -> Callable[[Raw], str]:
    """What the server does with the bytes of a reply before the method sees it."""
    reply = contract(type(world.method), request.handler).reply
    base = _decoded(world, request)

    def read(raw: Raw) -> str:
        try:
            body = Response.from_bytes(raw).body
            if body is None:
                return REFUSED
            expectations.knows(request, body)
            if not request.aside:
                body = world.codecs.decode(body, "up", base, partial(expectations.refuses, request))
            if expectations.misfit(request, body):
                return REFUSED
            reply.unpack(body)
        except WireError:
            return REFUSED
        return TAKEN

    return read


def _request_reader(world: World) -> Callable[[Raw], str]:
    """What a client does with the bytes of a request before its handler sees it."""

    def read(raw: Raw) -> str:
        try:
            request = Request.from_bytes(raw)
            contract(type(world.method), request.handler).request.unpack(_decoded(world, request))
        except (WireError, ProtocolError):
            return REFUSED
        return TAKEN

    return read


def _decoded(world: World, request: Request) -> Message:
    return request.body if request.aside else world.codecs.decode(request.body, "down")


RULES = Codecs.parse(
    [
        "quantised=int8", "nibbles=int4+sparse", "squeezed=int8+zstd", "thin=int4+sparse+zstd", "few=topk(0.05)+fp16",
        "fewer=topk(0.01)+zstd", "flags=sparse", "up:weights/*=update+topk(0.1)+int8+zstd", "change=bf16",
        "up:gaps=topk(0.1,2)+golomb", "mask=golomb", "up:kernels=update+smartidx(0.1)+int8",
        "signs=sign",
    ]
)  # fmt: skip


def coded_target() -> Target:
    """A reply that went through every stage of the codecs."""
    draw = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw)

    base = Message({"weights/a": noise(30, 40), "weights/b": noise(300), "kernels": noise(12, 10, 3, 3)})
    whole = Message(
        {
            "quantised": noise(20, 3, 15), "nibbles": noise(999).relu(), "plain": torch.arange(5),
            "squeezed": noise(20, 8, 33), "thin": (noise(10, 5, 33) - 1).relu(), "few": noise(50, 50),
            "fewer": noise(90, 90), "flags": noise(2001) > 2, "weights/a": noise(30, 40), "weights/b": noise(300),
            "change": noise(400), "gaps": noise(30, 30), "mask": noise(900) > 1, "kernels": noise(12, 10, 3, 3),
            "signs": noise(500),
        },
        {"loss": 1.5},
    )  # fmt: skip
    coded, _ = RULES.encode(whole, "up", {"messages": torch.tensor(1)}, base)
    forms = {name: (tensor.dtype, tensor.shape) for name, tensor in whole.tensors.items()}

    def refuses(name: str, dtype: torch.dtype, shape: torch.Size) -> str:
        return "" if forms.get(name) == (dtype, shape) else f"{name} is not of that form"

    def read(raw: Raw) -> str:
        try:
            body = Response.from_bytes(raw).body
            if body is None:
                return REFUSED
            decoded = RULES.decode(body, "up", base, refuses)
        except WireError:
            return REFUSED
        return TAKEN if {n: (t.dtype, t.shape) for n, t in decoded.tensors.items()} == forms else REFUSED

    response = Response(0, 2, coded)
    bodies = {"coded": coded}
    spoils = [_spoiled(way, response, bodies) for way in ways("coded", coded, bodies)]
    return Target("all codecs", response.to_bytes(), read, (*spoils, *bombs(coded)))


def flower_target() -> Target:
    """A reply as it comes over Flower, with fields around it that are changed too."""
    post = Post()
    request = Request(0, "train", 1, 0, 0, Message({}))
    sound = Response(0, 0, Message({"weights": torch.ones(30)}, {"samples": 3})).to_bytes()
    names = ("parts", "error", "client", "raw", "more")

    def read(raw: Raw) -> str:
        draw = Draw(raw)
        changed = 0 if raw == sound else draw.randrange(3)
        response = post.read(request, raw, {draw.choice(names): draw.choice(FIELD_VALUES) for _ in range(changed)})
        return REFUSED if response is None or response.body is None else TAKEN

    return Target("over Flower", sound, read)


def bombs(coded: Message) -> list[Callable[[], Raw]]:
    """Few bytes that become many: as many as the header says, or more than it says."""
    header = json.loads(str(coded.scalars[CODECS]))
    names = [name.rpartition(":")[0] or name for name in coded.tensors]
    places = {name: place for place, name in enumerate(dict.fromkeys(names))}
    zeros = {size: zstd.compress(bytes(size), level=19) for size in BOMB_SIZES}
    made = []
    for name, part in (tuple(key.rsplit(":", 1)) for key in coded.tensors if key.endswith(":zstd")):
        for size, content in zeros.items():
            packed = torch.from_numpy(np.frombuffer(content, dtype=np.uint8).copy())
            tensors = {**coded.tensors, f"{name}:{part}": packed}
            for length in (None, size, size // 4, 100 * size):
                items = list(header["tensors"])
                if length is not None:
                    items[places[name]] = [items[places[name]][0], [length], *items[places[name]][2:]]
                scalars = {**coded.scalars, CODECS: json.dumps({**header, "tensors": items})}
                made.append(Response(0, 2, Message(tensors, scalars)).to_bytes)
    return made


BOMB_SIZES = (1000, 10**6, 2**28)


# ---- mutations --------------------------------------------------------------------------------------------------

Draw = random.Random
VALUES: list[Any] = [
    None, True, 0, 1, -1, 2**31, 2**63, 2**64, 10**30, 1.5, -0.0, "x", "", [], {}, [0], [0, 0], [1, -1],
    [2**62, 2**62, 4], [10**9] * 4, {"dtype": "F32"}, "\ud800", "F4", "F64", "BOOL", "U8", "I64", "__metadata__", "{}",
    "[]", '{"a":NaN}', '{"a":1e999}', '{"a":[1]}', "1" * 5000, '{"a":' + "1" * 5000 + "}", "[" * 2000,
]  # fmt: skip


def _edited(draw: Draw, tree: Any) -> Any:
    """A copy of a JSON tree with one place of it changed, left out, doubled or moved."""
    tree = json.loads(json.dumps(tree))
    place = tree
    while isinstance(place, dict | list) and place:
        key = draw.choice(list(place) if isinstance(place, dict) else range(len(place)))
        if isinstance(place[key], dict | list) and place[key] and draw.random() < 0.7:
            place = place[key]
            continue
        action = draw.random()
        if action < 0.7:
            place[key] = draw.choice(VALUES)
        elif action < 0.8:
            del place[key]
        elif isinstance(place, dict):
            place[draw.choice(["", "x", key + "x", key + ":zstd", key * 100])] = place[key]
        else:
            place.insert(0, place[key])
        break
    return tree


def _parted(raw: Raw) -> tuple[Any, Raw]:
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def _joined(header: Any, data: Raw) -> Raw:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def flipped(draw: Draw, target: Target, other: Target) -> Raw:
    raw = bytearray(target.raw)
    most = int.from_bytes(raw[:8], "little") + 8 if draw.random() < 0.7 else len(raw)
    for _ in range(draw.randint(1, 6)):
        raw[draw.randrange(most)] = draw.randrange(256)
    return bytes(raw)


def cut(draw: Draw, target: Target, other: Target) -> Raw:
    return target.raw[: draw.randrange(len(target.raw))]


def spliced(draw: Draw, target: Target, other: Target) -> Raw:
    return target.raw[: draw.randrange(len(target.raw))] + other.raw[draw.randrange(len(other.raw)) :]


def grown(draw: Draw, target: Target, other: Target) -> Raw:
    """A piece of it is there twice, or not at all."""
    start, end = sorted(draw.randrange(len(target.raw)) for _ in range(2))
    before, after = (start, end) if draw.random() < 0.5 else (end, start)
    return target.raw[:before] + target.raw[after:]


def other_length(draw: Draw, target: Target, other: Target) -> Raw:
    length = draw.choice([0, 1, 8, 2**20, 2**32, 2**63, 2**64 - 1, len(target.raw), draw.randrange(len(target.raw))])
    return length.to_bytes(8, "little") + target.raw[8:]


def header_edited(draw: Draw, target: Target, other: Target) -> Raw:
    header, data = _parted(target.raw)
    for _ in range(draw.randint(1, 3)):
        header = _edited(draw, header)
    return _joined(header, data)


def scalars_edited(draw: Draw, target: Target, other: Target) -> Raw:
    header, data = _parted(target.raw)
    scalars = json.loads(header["__metadata__"]["scalars"])
    edited = _edited(draw, scalars) if scalars else draw.choice(VALUES)
    header["__metadata__"]["scalars"] = json.dumps(edited)
    return _joined(header, data)


def envelope_edited(draw: Draw, target: Target, other: Target) -> Raw:
    header, data = _parted(target.raw)
    text = header["__metadata__"]["envelope"]
    place = draw.randrange(len(text))
    header["__metadata__"]["envelope"] = (
        text[:place] + draw.choice(["", "0", "f", "-", ":", "\n", "x" * 99]) + text[place + 1 :]
    )
    return _joined(header, data)


def codecs_edited(draw: Draw, target: Target, other: Target) -> Raw:
    """What it says of its codecs is changed; of a message without codecs, it says something."""
    header, data = _parted(target.raw)
    scalars = json.loads(header["__metadata__"]["scalars"])
    said = json.loads(scalars.get(CODECS, '{"chains":["float32=int8+zstd"],"tensors":[[0,[100,10]],0]}'))
    scalars[CODECS] = json.dumps(_edited(draw, said))
    header["__metadata__"]["scalars"] = json.dumps(scalars)
    return _joined(header, data)


def spoiled(draw: Draw, target: Target, other: Target) -> Raw:
    """Sound in form, wrong in content; a bomb is one of them."""
    return draw.choice(target.spoils)() if target.spoils else flipped(draw, target, other)


def many_tensors(draw: Draw, target: Target, other: Target) -> Raw:
    """A header of so many empty tensors that reading it takes long."""
    return _MANY


def _header_of(count: int) -> Raw:
    metadata = {"catchment": "1", "envelope": "0" * 45, "scalars": "{}"}
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    return _joined({"__metadata__": metadata, **{str(number): entry for number in range(count)}}, b"")


_MANY = _header_of(300_000)
MUTATIONS = {
    flipped: 20, cut: 5, spliced: 10, grown: 10, other_length: 3, header_edited: 20, scalars_edited: 8,
    envelope_edited: 4, codecs_edited: 10, spoiled: 10, many_tensors: 0.05,
}  # fmt: skip


@dataclass
class Outcome:
    """What became of some mutated messages."""

    read: dict[str, dict[str, int]]  # by mutation: how many were taken, how many refused
    escaped: list[str]  # what else came out


def mutate(targets: list[Target], count: int, seed: str) -> Outcome:
    """Read so many mutated messages."""
    draw = Draw(seed)
    kinds = draw.choices(list(MUTATIONS), list(MUTATIONS.values()), k=count)
    outcome = Outcome({}, [])
    for kind in kinds:
        target, other = draw.choice(targets), draw.choice(targets)
        raw = kind(draw, target, other)
        try:
            said = target.read(raw)
        except Exception as error:
            said = "escaped"
            outcome.escaped.append(f"{target.name}, {kind.__name__}: {type(error).__name__}: {error}"[:300])
        counts = outcome.read.setdefault(kind.__name__, {})
        counts[said] = counts.get(said, 0) + 1
    return outcome
