"""Replies that one client spoils, and what they do to a run.

A sweep lets runs go on for many rounds, in each of which one reply of one client is spoiled in one way. Harm is a run
that ends or hangs, a number that is absurd, an honest client whose reply is not used, or memory beyond twice the honest
peak; the next spoiled reply then meets a fresh run.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import signal
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from worlds import METHODS, experiment

from catchment import Experiment
from catchment.codecs.codecs import CODECS
from catchment.core.transport import Transport
from catchment.core.world import World
from catchment.errors import WireError
from catchment.exchange.payload import EMPTY, Message
from catchment.exchange.request import Request, Response
from catchment.runs.directory import begin
from catchment.runs.loop import run_rounds
from catchment.simulation.inprocess import InProcess

CLIENTS = 4
LIARS = (0, 2)  # in turn; they have the same model, where there are two
ROUNDS = 40  # of one run at most
PATIENCE = 60  # seconds of a round
OWN = Path(__file__).parents[2] / "examples" / "own"


def small_experiment(name: str) -> Experiment:
    """A world in which a round takes some hundredths of a second and everybody takes part."""
    data = {"clients": CLIENTS, "train": 80, "test": 40}
    common: dict[str, Any] = {
        "rounds": ROUNDS, "checkpoint": {"every": ROUNDS}, "participation": {"fraction": 1.0},
    }  # fmt: skip
    if name == "own":
        table = {"method": {"name": "own:HalfSteps"}, "models": {"client": "own:net"}, "path": str(OWN)}
        return Experiment.from_dict({**table, **common, "data": {"name": "own:blobs", "clients": CLIENTS}})
    if "attack" in METHODS[name]:
        common["attack"] = {**METHODS[name]["attack"], "clients": [1, 3]}
    return experiment(name, data={**METHODS[name].get("data", {}), **data}, **common)


WORLDS = (*METHODS, "own")


# ---- what can be done to a reply --------------------------------------------------------------------------------


def _filled(value: float, number: int) -> Callable[[Tensor], Tensor]:
    """All elements alike: `value` in tensors of floats, `number` in others."""
    return lambda t: torch.full_like(t, value if t.is_floating_point() else number)


def _first(value: float, number: int) -> Callable[[Tensor], Tensor]:
    def change(t: Tensor) -> Tensor:
        t = t.clone()
        t.view(-1)[:1] = value if t.is_floating_point() else number
        return t

    return change


TENSOR: dict[str, Callable[[Tensor], Tensor]] = {
    "no dimension": lambda t: t.reshape(-1)[0],
    "empty": lambda t: t.reshape(-1)[:0],
    "no rows": lambda t: t[:0],
    "no columns": lambda t: t[..., :0],
    "one row": lambda t: t[:1],
    "a row less": lambda t: t[:-1],
    "a row more": lambda t: torch.cat([t, t[-1:]]),
    "rows twice": lambda t: torch.cat([t, t]),
    "fifty times the rows": lambda t: torch.cat([t] * 50),
    "a column less": lambda t: t[..., :-1],
    "flat": lambda t: t.reshape(-1),
    "a dimension more": lambda t: t.unsqueeze(0),
    "a dimension more at the end": lambda t: t.unsqueeze(-1),
    "transposed": lambda t: t.transpose(0, -1),
    "an impossible shape of no elements": lambda t: t.new_zeros(0, 2**30, 2**30),
    "float64": lambda t: t.double(),
    "float32": lambda t: t.float(),
    "float16": lambda t: t.half(),
    "bfloat16": lambda t: t.bfloat16(),
    "float8": lambda t: t.float().to(torch.float8_e4m3fn),
    "int64": lambda t: t.long(),
    "int32": lambda t: t.int(),
    "int8": lambda t: t.to(torch.int8),
    "uint8": lambda t: t.to(torch.uint8),
    "uint16": lambda t: t.to(torch.uint16),
    "bool": lambda t: t.bool(),
    "NaN or -1": _filled(math.nan, -1),
    "one NaN or -1": _first(math.nan, -1),
    "infinite or 2**62": _filled(math.inf, 2**62),
    "one infinite or 2**62": _first(-math.inf, 2**62),
    "3e38 or -2**63": _filled(3e38, -(2**63)),
    "one 3e38 or -2**63": _first(-3e38, -(2**63)),
    "65504 or 2**31": _filled(65504.0, 2**31),
    "1e10 or 1000": _filled(1e10, 1000),
    "-1e10 or 10": _filled(-1e10, 10),
    "one 1e10 or 10": _first(1e10, 10),
    "denormal or 1": _filled(1e-42, 1),
    "zero": _filled(0.0, 0),
    "negative": lambda t: -t.abs() - 1,
    "backwards": lambda t: t.flip(0),
    "all as the first": lambda t: t[:1].expand_as(t).clone(),
    "a million times": lambda t: t * 1_000_000,
}

SCALAR: dict[str, Any] = {
    "10**400": 10**400, "10**38": 10**38, "2**62": 2**62, "2**31": 2**31, "10**9": 10**9, "-1": -1, "0": 0,
    "NaN": math.nan, "inf": math.inf, "-inf": -math.inf, "1e308": 1e308, "1e-320": 1e-320, "250000.0": 250000.0,
    "1.0001": 1.0001, "-0.5": -0.5, "true": True, "false": False, "no text": "", "text": "nonsense", "{}": EMPTY,
    "long text": "x" * 100_000, "escapes": "\x1b[31m[bold]<b>\n\u202e\0",
}  # fmt: skip


def _without(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key != name}


def _renamed(table: Mapping[str, Any], name: str, other: str) -> dict[str, Any]:
    return {other if key == name else key: value for key, value in table.items()}


ENTRY: dict[str, Callable[[Message, str], Message]] = {
    "left out": lambda m, n: Message(_without(m.tensors, n), m.scalars),
    "renamed": lambda m, n: Message(_renamed(m.tensors, n, n + "x"), m.scalars),
    "below another name": lambda m, n: Message(_renamed(m.tensors, n, n + "/x"), m.scalars),
    "without a name": lambda m, n: Message(_renamed(m.tensors, n, ""), m.scalars),
    "coded in name": lambda m, n: Message(_renamed(m.tensors, n, n + ":zstd"), m.scalars),
    "of a long name": lambda m, n: Message(_renamed(m.tensors, n, n + "x" * 100_000), m.scalars),
    "another beside it": lambda m, n: Message({**m.tensors, n + "2": m.tensors[n]}, m.scalars),
    "a scalar instead": lambda m, n: Message(_without(m.tensors, n), {**m.scalars, n: 1}),
    "a scalar beside it": lambda m, n: Message(m.tensors, {**m.scalars, n: EMPTY}),
    "an empty dict instead": lambda m, n: Message(_without(m.tensors, n), {**m.scalars, n.split("/")[0]: EMPTY}),
    "the next one instead": lambda m, n: Message({**m.tensors, n: _after(m.tensors, n)}, m.scalars),
    "the last": lambda m, n: Message({**_without(m.tensors, n), n: m.tensors[n]}, m.scalars),
}


def _all(change: Callable[[Tensor], Tensor]) -> Callable[[Message], Message]:
    """The same change to every tensor of a message."""
    return lambda m: Message({name: change(t) for name, t in m.tensors.items()}, m.scalars)


WHOLE: dict[str, Callable[[Message], Message]] = {
    "nothing": lambda m: Message({}),
    "no tensors": lambda m: Message({}, m.scalars),
    "no scalars": lambda m: Message(m.tensors),
    "a scalar more": lambda m: Message(m.tensors, {**m.scalars, "more": 1}),
    "a tensor more": lambda m: Message({**m.tensors, "more": torch.zeros(3)}, m.scalars),
    "5,000 tensors more": lambda m: Message({**m.tensors, **dict.fromkeys(map(str, range(5000)), torch.zeros(0))}),
    "20,000 scalars more": lambda m: Message(m.tensors, {**m.scalars, **dict.fromkeys(map(str, range(20_000)), 1)}),
    "4 MB more": lambda m: Message({**m.tensors, "more": torch.zeros(1_000_000)}, m.scalars),
    "backwards": lambda m: Message(dict(reversed(m.tensors.items())), m.scalars),
    "all NaN": _all(TENSOR["NaN or -1"]),
    "all 3e38": _all(TENSOR["3e38 or -2**63"]),
    "all 1e10": _all(TENSOR["1e10 or 1000"]),
    "all 65504": _all(TENSOR["65504 or 2**31"]),
    "all a million times": _all(TENSOR["a million times"]),
    "all zero": _all(TENSOR["zero"]),
    "all without rows": _all(lambda t: t[:0] if t.ndim else t),
    "all one row": _all(lambda t: t[:1] if t.ndim else t),
    "all rows twice": _all(lambda t: torch.cat([t, t]) if t.ndim else t),
}

CODED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no object": lambda h: [1],
    "no chains": lambda h: _without(h, "chains"),
    "no tensors": lambda h: {**h, "tensors": []},
    "all tensors as they are": lambda h: {**h, "tensors": [0] * len(h["tensors"])},
    "a tensor more": lambda h: {**h, "tensors": [*h["tensors"], 0]},
    "ten times as long": lambda h: {**h, "tensors": [_scaled(item, 10) for item in h["tensors"]]},
    "a hundred thousand times as long": lambda h: {**h, "tensors": [_scaled(item, 100_000) for item in h["tensors"]]},
    "of length 2**62": lambda h: {**h, "tensors": [_scaled(item, 2**62) for item in h["tensors"]]},
    "of a negative length": lambda h: {**h, "tensors": [_scaled(item, -1) for item in h["tensors"]]},
    "of a dimension more": lambda h: {**h, "tensors": [[i[0], [*i[1], 1], *i[2:]] if i else 0 for i in h["tensors"]]},
    "keeps more": lambda h: {**h, "tensors": [[*i[:2], 10**9] if i else 0 for i in h["tensors"]]},
    "another chain": lambda h: {**h, "tensors": [[i[0] + 1, *i[1:]] if i else 0 for i in h["tensors"]]},
    "float64": lambda h: {**h, "chains": [f"float64={c.partition('=')[2]}" for c in h["chains"]]},
    "int64": lambda h: {**h, "chains": [f"int64={c.partition('=')[2]}" for c in h["chains"]]},
    "zstd alone": lambda h: {**h, "chains": [f"{c.partition('=')[0]}=zstd" for c in h["chains"]]},
    "unknown stages": lambda h: {**h, "chains": [f"{c}+gzip" for c in h["chains"]]},
    "a long chain": lambda h: {**h, "chains": [c + "+zstd" * 10_000 for c in h["chains"]]},
    "against another": lambda h: {**h, "against": 10**9},
    "against a text": lambda h: {**h, "against": "x"},
}

TEXT = {"no JSON": "{", "deep": "[" * 100_000, "a number": 1, "empty": '{"chains":[],"tensors":[]}'}  # as (codecs)

ENVELOPE: dict[str, Callable[[Response], Response]] = {
    "no body": lambda r: r._replace(body=None),
    "failed": lambda r: r._replace(body=None, failed=True, error="no"),
    "failed at length": lambda r: r._replace(body=None, failed=True, error="\x1b[31m[bold]<b>" * 100_000),
    "a year of work": lambda r: r._replace(seconds=3e7),
    "2**63 operations": lambda r: r._replace(macs=2**63),
}


def _after(tensors: dict[str, Tensor], name: str) -> Tensor:
    names = list(tensors)
    return tensors[names[(names.index(name) + 1) % len(names)]]


def _scaled(item: Any, factor: int) -> Any:
    return [item[0], [item[1][0] * factor, *item[1][1:]], *item[2:]] if item and item[1] else item


@dataclass(frozen=True)
class Spoil:
    """One way to spoil a reply to one handler."""

    handler: str
    kind: str  # "tensor", "entry", "scalar", "whole", "coded", "text", "envelope", "foreign", or "field" of a transport
    what: str
    name: str = ""  # of the tensor, of the scalar, or of the other handler

    def __str__(self) -> str:
        return f"{self.handler}: {self.kind} {self.name} {self.what}".replace("  ", " ")

    def apply(self, response: Response, others: Mapping[str, Message]) -> bytes:
        """What is sent in place of an honest response."""
        assert response.body is not None
        if self.kind == "envelope":
            return ENVELOPE[self.what](response).to_bytes()
        return response._replace(body=self._body(response.body, others)).to_bytes()

    def _body(self, body: Message, others: Mapping[str, Message]) -> Message:
        tensors, scalars = body.tensors, body.scalars
        if self.kind == "tensor":
            return Message({**tensors, self.name: TENSOR[self.what](tensors[self.name])}, scalars)
        if self.kind == "entry":
            return ENTRY[self.what](body, self.name)
        if self.kind == "scalar":
            return Message(tensors, {**scalars, self.name: SCALAR[self.what]})
        if self.kind == "whole":
            return WHOLE[self.what](body)
        if self.kind == "coded":
            header = json.loads(str(scalars[CODECS]))
            return Message(tensors, {**scalars, CODECS: json.dumps(CODED[self.what](header))})
        if self.kind == "text":
            return Message(tensors, {**scalars, CODECS: TEXT[self.what]})
        return others[self.name]


def ways(handler: str, honest: Message, others: Mapping[str, Message]) -> list[Spoil]:
    """All ways to spoil a reply that looks like this one."""
    found = [Spoil(handler, "whole", what) for what in WHOLE]
    found += [Spoil(handler, "envelope", what) for what in ENVELOPE]
    found += [Spoil(handler, "text", what) for what in TEXT]
    found += [Spoil(handler, "foreign", "reply", other) for other in others if other != handler]
    for name in _some(list(honest.tensors)):
        found += [Spoil(handler, "tensor", what, name) for what in TENSOR]
        found += [Spoil(handler, "entry", what, name) for what in ENTRY]
    found += [Spoil(handler, "scalar", what, name) for name in honest.scalars for what in SCALAR]
    if CODECS in honest.scalars:
        found += [Spoil(handler, "coded", what) for what in CODED]
    return [spoil for spoil in found if _changes(spoil, honest, others)]


def _some(names: list[str]) -> list[str]:
    """All of a few, and of many the first, the last, one in the middle, and those that BatchNorm keeps."""
    if len(names) <= 5:
        return names
    kept = [next((n for n in names if n.endswith(end)), names[0]) for end in ("running_var", "num_batches_tracked")]
    return list(dict.fromkeys([names[0], names[len(names) // 2], names[-1], *kept]))


NO_SUCH_THING = (
    RuntimeError,
    IndexError,
    TypeError,
    OverflowError,
    ValueError,
)  # such as the last row of a single number


def _changes(spoil: Spoil, honest: Message, others: Mapping[str, Message]) -> bool:
    response = Response(0, 0, honest)
    try:
        return spoil.apply(response, others) != response.to_bytes()
    except NO_SUCH_THING:
        return False


# ---- runs -------------------------------------------------------------------------------------------------------


class Stop(BaseException):
    """A run has shown what it was to show; not an error, and none of those that the run may catch."""


class Hang(BaseException):
    """A round took longer than any should."""


def _hangs(number: int, frame: object) -> None:
    raise Hang(f"a round takes more than {PATIENCE} s")


@dataclass
class Liar:
    """The client that spoils a reply."""

    client: int
    wanted: Spoil | None = None  # in this round
    spoiled: bool = False
    seen: dict[str, Message] = field(default_factory=dict)  # its last honest reply to each handler

    def answer(self, request: Request, response: Response) -> bytes | None:
        """What is sent instead: to the first request of the round that can be answered as wanted."""
        if request.client != self.client or response.body is None:
            return None
        self.seen[request.handler] = response.body
        wanted = self.wanted
        if self.spoiled or wanted is None or wanted.handler != request.handler or wanted.kind == "field":
            return None
        try:
            raw = wanted.apply(response, self.seen)
        except (KeyError, *NO_SUCH_THING):
            return None
        self.spoiled = True
        return raw


class Spoiling(InProcess):
    """The in-process engine with a liar in it."""

    def __init__(self, world: World, liar: Liar, directory: Path | None) -> None:
        self._liar = liar
        super().__init__(world, directory=directory)

    def _serve(self, request: Request) -> Response:
        response = super()._serve(request)
        raw = self._liar.answer(request, response)
        if raw is None:
            return response
        try:
            return Response.from_bytes(raw)
        except WireError as error:
            return response._replace(body=None, failed=True, error=str(error))


Carrier = Callable[[World, Liar, Path | None], Transport]


def go(trial: Experiment, liar: Liar, carrier: Carrier, observe: Callable[[dict[str, Any]], None]) -> None:
    """A run with a liar in it, from its start to its end."""
    with tempfile.TemporaryDirectory() as folder:
        world = trial.build_world()
        directory = begin(trial, Path(folder))
        run_rounds(trial, world, carrier(world, liar, directory), directory, observe)


def honest_run(trial: Experiment, carrier: Carrier | None = None) -> tuple[dict[str, Message], int]:
    """A reply of client 0 to each handler, and the peak of memory, of a short run without a liar."""
    liar = Liar(0)

    def observe(record: dict[str, Any]) -> None:
        harm = absurd(record) or slighted(record, liars(trial))
        assert not harm, f"{trial.name} shows harm without a liar: {harm}"

    reset_peak()
    go(dataclasses.replace(trial, rounds=4), liar, carrier or Spoiling, observe)
    return liar.seen, peak_memory()


UNUSED = ("failed", "refused", "lost")  # events of replies that a method does not see, or does not take
MEASURED = ("accuracy", "mean", "min", "max")  # accuracies, in the record of a round


def absurd(record: Any, name: str = "") -> str:
    """What no record of a round may say; nothing if it is sound."""
    if isinstance(record, dict):
        return next((harm for key, value in record.items() if (harm := absurd(value, key or name))), "")
    if isinstance(record, list):
        return next((harm for value in record if (harm := absurd(value, name))), "")
    if not isinstance(record, float):
        return ""
    if (
        not math.isfinite(record)
        or ("loss" in name and abs(record) >= 1e6)
        or (name in MEASURED and not 0 <= record <= 1)
    ):
        return f"absurd: {name} {record:g}"
    return ""


def liars(trial: Experiment) -> set[int]:
    """The attackers of an experiment: what they make of a spoiled reply that they see may well be refused."""
    return set(trial.attack.get("clients", ()))


def slighted(record: dict[str, Any], liars: Set[int]) -> str:
    """An honest client whose reply did not reach the method; nothing if all did."""
    for event in record["events"]:
        if event["client"] not in liars and event["handler"] and event["what"] in UNUSED:
            return f"slights an honest client: {event['what']}, {event['why']}"
    return ""


def peak_memory() -> int:
    """The most bytes that this process had in memory since `reset_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


@dataclass
class Found:
    """What a sweep has found so far."""

    spoiled: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)  # what became of spoiled replies
    harm: list[tuple[Spoil | None, str]] = field(default_factory=list)
    unreached: list[Spoil] = field(default_factory=list)
    memory: float = 0.0  # the highest peak, as a share of the honest one
    grown: int = 0  # the most bytes that a round with a spoiled reply took beyond what was in use before it


def sweep(
    trial: Experiment, spoils: Iterable[Spoil], memory: int, found: Found, carrier: Carrier = Spoiling
) -> Iterator[None]:
    """Spoil replies in these ways, where an honest run needs `memory` bytes; pauses after each run."""
    queue, missed = deque(spoils), list[Spoil]()
    for number in itertools.count():
        if not queue:
            break
        missed += _Trial(trial, queue, found, LIARS[number % 2], memory, honest=number // 2 % 2).go(carrier)
        yield
    for number, spoil in enumerate(missed):  # of handlers that are not asked in every round
        one = deque([spoil])
        found.unreached += _Trial(trial, one, found, LIARS[number % 2], memory, patience=4).go(carrier)
        yield


class _Trial:
    """One run with a spoiled reply in each round, until one does harm or there are none left."""

    def __init__(
        self, trial: Experiment, queue: deque[Spoil], found: Found, client: int, memory: int,
        honest: int = 0, patience: int = 1,
    ) -> None:  # fmt: skip
        self.trial, self.queue, self.found, self.memory = trial, queue, found, memory
        self.honest = honest  # rounds at the start without a spoiled reply
        self.patience = self.left = patience  # rounds in which a reply that can be spoiled may come
        self.liar = Liar(client)
        self.last: Spoil | None = None
        self.start = 0  # bytes in memory when the round began
        self.missed: list[Spoil] = []

    def go(self, carrier: Carrier) -> list[Spoil]:
        """Those for which no reply came that could be spoiled so."""
        self._next()
        signal.signal(signal.SIGALRM, _hangs)
        try:
            go(self.trial, self.liar, carrier, self._observe)
        except Stop:
            pass
        except (Exception, Hang) as error:
            self._settle(f"ends the run: {type(error).__name__}: {error}", [])
        finally:
            signal.alarm(0)
        if self.liar.wanted:  # the run was over before its turn
            self.queue.appendleft(self.liar.wanted)
        return self.missed

    def _observe(self, record: dict[str, Any]) -> None:
        if self.liar.spoiled:
            self.found.grown = max(self.found.grown, peak_memory() - self.start)
        peak = peak_memory() / self.memory
        self.found.memory = max(self.found.memory, peak)
        harm = absurd(record) or slighted(record, {self.liar.client, *liars(self.trial)})
        if not harm and peak > 2:
            harm = f"memory: {peak:.1f} times the honest peak"
        events = [event["what"] for event in record["events"] if event["client"] == self.liar.client]
        self._settle(harm, [what for what in events if what in UNUSED])
        if harm:
            raise Stop
        self._next()

    def _settle(self, harm: str, events: list[str]) -> None:
        """Note what became of this round's reply."""
        liar = self.liar
        if liar.wanted and liar.spoiled:
            self.found.spoiled += 1
            self.found.outcomes["harm" if harm else events[0] if events else "taken"] += 1
            self.last, liar.wanted = liar.wanted, None
        if harm:
            self.found.harm.append((self.last, harm))

    def _next(self) -> None:
        """Choose what is to be spoiled in the next round."""
        liar = self.liar
        if self.honest:
            self.honest -= 1
        else:
            self.left -= 1
            if liar.wanted and not self.left:
                self.missed.append(liar.wanted)
                liar.wanted = None
            if liar.wanted is None:
                if not self.queue:
                    raise Stop
                liar.wanted, liar.spoiled, self.left = self.queue.popleft(), False, self.patience
        reset_peak()
        self.start = peak_memory()
        signal.alarm(PATIENCE)
