"""The waist: all that a method's server routine can do with the clients."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from catchment.attacks import Intrusion
from catchment.client import HOLDS
from catchment.codecs import Memory, Wire
from catchment.costs.ledger import Ledger
from catchment.errors import CatchmentError, Diverged, ExperimentError, ProtocolError, printable
from catchment.expectations import Expectations
from catchment.inspection import Inspection, Profile
from catchment.message import TRAINING, Message, Payload, Request, Response
from catchment.method import Method, contract
from catchment.randomness import numpy_generator
from catchment.spool import on_disk
from catchment.standing import Standing
from catchment.transports.base import Snapshot, Transport

Asked = TypeVar("Asked", bound=Payload)
Answered = TypeVar("Answered", bound=Payload)
FOREVER = float("inf")
LARGE = 2**20  # bytes of a tensor


class Reply(NamedTuple, Generic[Answered]):
    """One client's answer."""

    client: int
    round: int  # in which it was asked
    body: Answered
    handler: str = ""  # that gave it


@dataclass
class Counts:
    """What did not arrive as asked, over the whole run."""

    lost: int = 0  # no reply: unreachable, crashed, dropped
    failed: int = 0  # the client's handler raised
    refused: int = 0  # what came was not accepted
    late: int = 0  # came after its ask was over


@dataclass
class _Pending:
    request: Request
    awaited: bool  # by an ask that is still open, or by send; otherwise it will be late


@dataclass
class _RoundTally:
    answered: int = 0
    reasons: dict[int, str] = field(default_factory=dict)  # by client: why nothing came that could be used


class Fleet:
    """The clients, as a method sees them. Missing, late and failed replies are normal: counted, never raised."""

    def __init__(
        self,
        transport: Transport,
        method: Method[Any],
        ledger: Ledger,
        *,
        seed: int,
        wire: Wire | None = None,
        directory: Path | None = None,
        fraction: float = 1.0,
        deadline: float | None = None,
        intrusion: Intrusion | None = None,
        inspection: Inspection | None = None,
        expectations: Expectations | None = None,
    ) -> None:
        self.round = 0
        self.counts = Counts()
        self.events: list[dict[str, Any]] = []  # of the round under way
        self.watch: Callable[[list[Request]], None] | None = None  # sees what is sent
        self.overhear: Callable[[Request, Message], None] | None = None  # sees training replies as the method will
        self._expectations = expectations or Expectations.of(method, None)
        self._standing = Standing()
        self._taken: int | None = None  # whose reply the method got last in this round
        self._transport = transport
        self._method = method
        self._ledger = ledger
        self._wire = wire or Wire()
        self._directory = directory  # for what the codecs remember, if it is large
        self._memories: dict[int, Memory] = {}  # of the codecs, by client
        self._answered: dict[int, int] = {}  # by client: the last request that it has surely seen
        self._intrusion = intrusion
        self._inspection = inspection or Inspection()
        self._profiles: dict[int, Profile] = {}  # of the inspection, by client
        self._seed = seed
        self._fraction = fraction
        self._deadline = FOREVER if deadline is None else deadline
        self._purpose = TRAINING
        self._sequence = 0
        self._life = 0
        self._start: dict[int, int] = {}  # of this life, where a client had a request pending
        self._start_default = 0
        self._base: dict[int, int] = {}  # of the last checkpoint, likewise
        self._base_default = 0
        self._turns: dict[tuple[str, int], int] = {}
        self._pending: dict[int, _Pending] = {}
        self._asides: dict[int, Request] = {}
        self._arrived: list[_Arrival] = []  # pulled, not yet wanted
        self._tally = _RoundTally()

    # ---- for methods ----

    @property
    def now(self) -> float:
        """Seconds since the run began, virtual where the transport simulates."""
        return self._transport.now

    def clients(self) -> list[int]:
        """Everybody who can be reached in this round, busy or not."""
        return list(self._transport.roster(self.round))

    def idle(self) -> list[int]:
        """The reachable clients that owe no reply, and of whom none is waiting to be taken from `arrivals`."""
        busy = self._busy() | {arrival.request.client for arrival in self._arrived if not arrival.late}
        busy |= self._standing.suspended
        return [client for client in self._transport.roster(self.round) if client not in busy]

    def cohort(self) -> list[int]:
        """The clients of this round: a share drawn from (seed, round), less those that still owe a reply."""
        roster = self._transport.roster(self.round)
        if self._fraction < 1 and len(roster):
            size = max(1, round(len(roster) * self._fraction))
            picked = numpy_generator(self._seed, "cohort", self.round).choice(len(roster), size, replace=False)
            roster = sorted(roster[i] for i in picked.tolist())
        busy = self._busy() | self._standing.suspended
        return [client for client in roster if client not in busy]

    @property
    def deadline(self) -> float:
        """Seconds that replies are waited for; infinity if there is no limit."""
        return self._deadline

    def ask(
        self,
        handler: Callable[[Any, Asked], Answered],
        bodies: Mapping[int, Asked],
        *,
        deadline: float | None = None,
        in_order: bool = False,
    ) -> Iterator[Reply[Answered]]:
        """Send to these clients at once; yield replies as they arrive, until all came or `deadline` seconds passed.

        `in_order` yields them in the order of `bodies` instead, holding what comes early: for sums of floating-point
        numbers that must not depend on who is faster.
        """
        until = self._transport.now + (self._deadline if deadline is None else deadline)
        if self._purpose != TRAINING:
            until = FOREVER
        requests = self._push(handler, bodies)
        return self._collect(handler, requests, until, in_order)

    def send(self, handler: Callable[[Any, Asked], Answered], bodies: Mapping[int, Asked]) -> None:
        """The first half of `ask`: replies come through `arrivals`, in this round or a later one."""
        if self._purpose != TRAINING:
            raise ProtocolError("send inside aside: evaluation must not leave requests behind; use ask")
        if self._intrusion is not None and self._intrusion.attack.needs_honest:
            raise ExperimentError(
                f"{type(self._intrusion.attack).__name__} is made from the honest replies to the same question, and an "
                "asynchronous method asks each client its own; use sign-flip or label-flip"
            )
        self._push(handler, bodies)

    def arrivals(
        self,
        handler: Callable[[Any, Asked], Answered],
        *,
        count: int | None = None,
        until: float | None = None,
    ) -> Iterator[Reply[Answered]]:
        """Replies to `handler` as they arrive: those sent, and late ones of earlier asks.

        Stops after `count` replies, when the clock shows `until`, or when nothing is in flight any more.
        """
        name, taken = handler.__name__, 0
        while count is None or taken < count:
            ready = next((a for a in self._arrived if a.request.handler == name), None)
            if ready is not None:
                self._arrived.remove(ready)
            else:
                ready = self._receive(FOREVER if until is None else until)
                if ready is None:
                    return
                if ready.request.handler != name:
                    self._arrived.append(ready)
                    continue
            message = self._opened(ready)
            if message is not None and self._lies(ready.request):
                message = self._lie(ready, message, {})
            message = self._checked(ready.request, message)
            if self._inspection.action != "none":
                [(_, message)] = self._inspected([(ready, message)])
            reply = self._reply(handler, ready, message)
            if reply is not None:
                taken += 1
                yield self._handed(reply)

    def refuse(self, reply: Reply[Any], reason: str) -> None:
        """Note that a reply was not accepted; the method goes on without it."""
        self._tally.answered -= 1
        self._refused(reply.client, reply.handler, reason)

    def _refused(self, client: int, handler: str, reason: str) -> None:
        reason = printable(reason)
        self.counts.refused += 1
        self._tally.reasons[client] = f"refused, {reason}"
        self.events.append({"what": "refused", "client": client, "handler": handler, "why": reason})

    @contextmanager
    def aside(self, purpose: str) -> Iterator[None]:
        """Book what is asked inside under another purpose; it reads client states, changes nothing, takes no time."""
        if not re.fullmatch("[a-z][a-z0-9_]*", purpose) or purpose == TRAINING:
            raise ProtocolError(f'"{purpose}" cannot be the purpose of an aside: use a word other than "{TRAINING}"')
        before, self._purpose = self._purpose, purpose
        try:
            yield
        finally:
            self._purpose = before

    # ---- sending and receiving ----

    def _busy(self) -> set[int]:
        return {pending.request.client for pending in self._pending.values()}

    def _push(self, handler: Callable[..., Any], bodies: Mapping[int, Payload]) -> list[Request]:
        name = handler.__name__
        kinds = contract(type(self._method), name)
        aside = self._purpose != TRAINING
        busy = {pending.request.client: sequence for sequence, pending in self._pending.items()}
        if not aside and (owing := sorted(busy.keys() & bodies.keys())):
            raise ProtocolError(
                f"clients {owing} still owe a reply; a client has one request in flight (cohort() leaves them out)"
            )
        packed: dict[int, Message] = {}  # one message for all who get the same payload
        coded = not aside and self._wire.touches("down") and not self._wire.remembers("down")
        requests = []
        for client, body in bodies.items():
            if client in self._standing.suspended:
                continue
            if not isinstance(body, kinds.request):
                raise ProtocolError(
                    f"{name} takes {kinds.request.__name__}, client {client} was sent {type(body).__name__}"
                )
            message = packed.get(id(body))
            if message is None:
                message = packed[id(body)] = self._encode(body.pack()) if coded else body.pack()
            turn = self._turns[self._purpose, client] = self._turns.get((self._purpose, client), -1) + 1
            if aside:  # sees the state before what the client is working on
                sequence = busy.get(client, self._sequence)
            else:
                sequence, self._sequence = self._sequence, self._sequence + 1
                message = self._encode_for(client, sequence, message)
            request = Request(
                client, name, self.round, turn, sequence, message, self._purpose, self._life,
                self._start.get(client, self._start_default), self._base.get(client, self._base_default),
            )  # fmt: skip
            requests.append(request)
            self._ledger.book(client, "down", self._purpose, message, request.size())
            if aside:
                self._asides[client] = request
            else:
                self._pending[sequence] = _Pending(request, awaited=True)
        if self.watch is not None:
            self.watch(requests)
        self._transport.push(requests)
        return requests

    def _encode(self, message: Message) -> Message:
        """A request's body on the wire, the same for everybody."""
        return self._wire.encode(message, "down", {}, number=0)[0]

    def _encode_for(self, client: int, sequence: int, message: Message) -> Message:
        """A request's body on the wire, where it depends on what passed between server and client before."""
        memory = self._memories.get(client, {})
        if self._wire.remembers("down"):
            seen = self._answered.get(client)
            message, memory = self._wire.encode(message, "down", memory, number=sequence, peer_holds=seen)
            self._remember(client, memory)
        if self._wire.remembers("up") and "received" in memory:
            message = Message(message.tensors, {**message.scalars, HOLDS: int(memory["received"])})
        return message

    def _decode(self, request: Request, message: Message) -> Message:
        """A reply's body as the client meant it."""
        if request.aside or not self._wire.touches("up"):
            return message
        memory = self._memories.get(request.client, {})
        message, memory = self._wire.decode(
            message,
            "up",
            memory,
            number=request.sequence,
            base=self._meant(request),
            refuses=self._expectations.decodable(request),
        )
        if self._wire.remembers("up"):
            self._remember(request.client, memory)
        return message

    def _meant(self, request: Request) -> Message:
        """A request's body before it was coded, where the codec needs no memory to tell."""
        if not self._wire.touches("down") or self._wire.remembers("down"):
            return request.body
        return self._wire.decode(request.body, "down", {}, number=request.sequence)[0]

    def _remember(self, client: int, memory: Memory) -> None:
        """Keep what the codecs know of a client: large tensors on the disk, as they are as many as the clients."""
        before = self._memories.get(client, {})
        self._memories[client] = {
            name: t if t is before.get(name) or t.nbytes < LARGE else on_disk(t, self._directory)
            for name, t in memory.items()
        }

    def _collect(
        self, handler: Callable[..., Answered], requests: list[Request], until: float, in_order: bool
    ) -> Iterator[Reply[Answered]]:
        order = [request.client for request in requests]
        turn = 0
        early: dict[int, Reply[Answered] | None] = {}
        with closing(self._heard(handler, requests, until)) as heard:
            for client, reply in heard:
                if not in_order:
                    if reply is not None:
                        yield self._handed(reply)
                    continue
                early[client] = reply
                while turn < len(order) and order[turn] in early:
                    reply = early.pop(order[turn])
                    turn += 1
                    if reply is not None:
                        yield self._handed(reply)
        for client in order[turn:]:
            if (reply := early.pop(client, None)) is not None:
                yield self._handed(reply)

    def _handed(self, reply: Reply[Answered]) -> Reply[Answered]:
        """The reply that the method gets now, and is to blame if that ends in an exception."""
        self._taken = reply.client
        return reply

    def _heard(
        self, handler: Callable[..., Answered], requests: list[Request], until: float
    ) -> Generator[tuple[int, Reply[Answered] | None]]:
        """What an ask brings, by client, as it comes; all at the end if it is inspected."""
        with closing(self._told(requests, until)) as told:
            said: Iterable[tuple[_Arrival, Message | None]] = told
            if self._inspection.action != "none" and not any(request.aside for request in requests):
                said = self._inspected(list(told))
            for arrival, message in said:
                yield arrival.request.client, self._reply(handler, arrival, message)

    def _told(self, requests: list[Request], until: float) -> Generator[tuple[_Arrival, Message | None]]:
        """What clients say as it comes; attackers wait until they have seen the others."""
        honest: dict[int, Message] = {}
        waiting: dict[int, tuple[_Arrival, Message]] = {}
        with closing(self._awaited(requests, until)) as arrivals:
            for arrival in arrivals:
                client, message = arrival.request.client, self._opened(arrival)
                if message is not None and self._lies(arrival.request):
                    waiting[client] = arrival, message
                    continue
                message = self._checked(arrival.request, message)
                if message is not None and self._intrusion and self._intrusion.attack.needs_honest:
                    honest[client] = message
                yield arrival, message
        for place, (_, (arrival, message)) in enumerate(sorted(waiting.items())):
            lie = self._lie(arrival, message, honest, place, len(waiting))
            yield arrival, self._checked(arrival.request, lie)

    def _awaited(self, requests: list[Request], until: float) -> Generator[_Arrival]:
        """The responses to these requests that come in time; what comes for others is put aside."""
        wanted = {(request.aside, request.client) for request in requests}
        try:
            while wanted and (arrival := self._receive(until)) is not None:
                key = (arrival.request.aside, arrival.request.client)
                if arrival.late or key not in wanted:
                    self._arrived.append(arrival)
                    continue
                wanted.discard(key)
                yield arrival
        finally:
            for request in requests:
                if (request.aside, request.client) in wanted:
                    self._asides.pop(request.client, None)
                    if request.sequence in self._pending:
                        self._pending[request.sequence].awaited = False

    def _receive(self, until: float) -> _Arrival | None:
        """The next response, booked; its client is free again. None if there is none in time."""
        while True:
            response = self._transport.pull(until)
            if response is None:
                return None
            late = False
            if response.aside:
                request = self._asides.pop(response.client, None)
                if request is None:
                    continue  # its ask was given up
            else:
                pending = self._pending.pop(response.sequence)
                request, late = pending.request, not pending.awaited
            if response.body is not None:
                named = response.body if self._expectations.knows(request, response.body) else Message({})
                self._ledger.book(request.client, "up", request.purpose, named, response.size())
                if not request.aside:
                    self._answered[request.client] = request.sequence
            if late:
                self.counts.late += 1
                self._event("late", request, f"asked in round {request.round}")
            return _Arrival(request, response, late)

    def _opened(self, arrival: _Arrival) -> Message | None:
        """What a response says; None, counted, if there is nothing in it that can be read."""
        request, response, _ = arrival
        if response.body is None:
            self._missed(request, response.error, response.failed)
            return None
        try:
            return self._decode(request, response.body)
        except Exception as error:  # a client's bytes, whatever they do to the decoder
            self._refused(request.client, request.handler, _said(error))
            return None

    def _checked(self, request: Request, message: Message | None) -> Message | None:
        """The message, if it is as handler, architecture and request lead one to expect; None, counted, if not."""
        if message is None:
            return None
        try:
            reason = self._expectations.misfit(request, message)
        except Exception as error:
            reason = _said(error)
        if reason:
            self._refused(request.client, request.handler, reason)
            return None
        return message

    def _reply(
        self, handler: Callable[..., Answered], arrival: _Arrival, message: Message | None
    ) -> Reply[Answered] | None:
        """What the method gets; None, counted, if the message does not hold it."""
        if message is None:
            return None
        request = arrival.request
        try:
            body = contract(type(self._method), request.handler).reply.unpack(message)
        except Exception as error:
            self._refused(request.client, request.handler, _said(error))
            return None
        if self.overhear is not None and not request.aside:
            self.overhear(request, message)
        self._tally.answered += 1
        return Reply(request.client, request.round, body, request.handler)  # type: ignore[arg-type]

    def _missed(self, request: Request, why: str, failed: bool) -> None:
        """Count a reply that there is not."""
        why = printable(why)
        if failed:
            self.counts.failed += 1
            self._tally.reasons[request.client] = why
        else:
            self.counts.lost += 1
        self._event("failed" if failed else "lost", request, why)

    def _lies(self, request: Request) -> bool:
        """Whether the reply to a request is an attacker's to change."""
        return self._intrusion is not None and not request.aside and request.client in self._intrusion.attackers

    def _lie(
        self, arrival: _Arrival, own: Message, honest: Mapping[int, Message], place: int = 0, attackers: int = 1
    ) -> Message:
        """What an attacker sends in place of its own reply, noted once a round."""
        assert self._intrusion is not None
        request = arrival.request
        lie = self._intrusion.lie(own, honest, self._meant(request), place, attackers)
        if lie is not own:
            numbers = self._intrusion.attack.numbers(len(honest), attackers)
            said = ", ".join(f"{name} {number:.4g}" for name, number in numbers.items())
            why = f"{said}; saw {len(honest)} honest replies"
            event = {"what": "attacked", "client": request.client, "handler": request.handler, "why": why}
            if (event := {**event, "numbers": numbers}) not in self.events:
                self.events.append(event)
        return lie

    def _inspected(self, said: list[tuple[_Arrival, Message | None]]) -> list[tuple[_Arrival, Message | None]]:
        """The same, less what is to be dropped; who stands out is noted once a round."""
        uploads = {arrival.request.client: message for arrival, message in said if message is not None}
        reasons, self._profiles = self._inspection.judge(uploads, self._profiles)
        drop = self._inspection.action == "drop"
        for arrival, _ in said:
            request = arrival.request
            why = reasons.get(request.client)
            if why is None:
                continue
            if drop:
                self.counts.refused += 1
                self._tally.reasons[request.client] = f"dropped, {why}"
            noted = ("flagged", request.client, request.handler)
            if noted not in {(event["what"], event["client"], event["handler"]) for event in self.events}:
                self._event("flagged", request, f"{why}; {'dropped' if drop else 'kept'}")
        return [(arrival, None if drop and arrival.request.client in reasons else body) for arrival, body in said]

    def _event(self, what: str, request: Request, why: str) -> None:
        self._event_of(request.client, what, why, request.handler)

    def _event_of(self, client: int, what: str, why: str, handler: str = "") -> None:
        self.events.append({"what": what, "client": client, "handler": handler, "why": why})

    # ---- for the run ----

    def begin_round(self, round: int) -> None:
        """Count turns and events anew; late replies that nobody took in the round they came are dropped."""
        self._standing.end_round(self._tally.answered, self._tally.reasons)
        self._expectations.sizes.clear()
        self._taken = None
        self.round = round
        self.events = []
        self._turns = {}
        self._tally = _RoundTally()
        self._arrived = [arrival for arrival in self._arrived if not arrival.late]

    def check_round(self) -> None:
        """Refuse to go on when the experiment is wrong, not one client."""
        reachable = len(self._transport.roster(self.round))
        self._standing.check(self.round, self._tally.answered, self._tally.reasons, reachable)

    def undone(self, error: Exception) -> None:
        """The round failed on the server and was undone; whoever is to blame is asked no more.

        With nobody to blame, some such rounds in a row are an error of the experiment or of the method, and raised.
        """
        why = str(error) if isinstance(error, CatchmentError) else f"{type(error).__name__}: {error}"
        self.events.append({"what": "undone", "client": None, "handler": "", "why": printable(why)})
        clients = len(self._transport.roster(self.round))
        last = None if isinstance(error, Diverged) else self._taken
        culprit = self._standing.blame(self._expectations.sizes.values(), clients, last)
        if culprit is not None:
            said = "the server failed on what it sent" if last is not None else "it sent far more than the others"
            self._event_of(culprit, "suspended", f"{said}; it is not asked any more")
        if self._standing.exhausted or (last is None and not isinstance(error, Diverged)):
            raise error

    def kept(self) -> None:
        """The round was good."""
        self._standing.undone = 0

    def snapshot(self) -> FleetSnapshot:
        """What a checkpoint must hold to go on exactly, requests in flight included."""
        return FleetSnapshot(
            sequence=self._sequence,
            life=self._life,
            counts=dataclasses.asdict(self.counts),
            standing={**self._standing.to_dict(), "samples": list(self._expectations.found.items())},
            pending=[(p.request.to_bytes(), p.awaited) for p in self._pending.values()],
            arrived=[(a.request.to_bytes(), a.response.to_bytes(), a.late) for a in self._arrived],
            memories=self._memories,
            answered=self._answered,
            profiles=self._profiles,
            transport=self._transport.snapshot(self._uncovered()),
        )

    def saved(self) -> None:
        """The snapshot is safe on disk: clients may forget what only older ones needed."""
        self._base = {p.request.client: sequence for sequence, p in self._pending.items()}
        self._base_default = self._sequence

    def restore(self, snapshot: FleetSnapshot) -> None:
        """Go on from a checkpoint: what was in flight is asked again, and not booked again."""
        self.counts = Counts(**snapshot.counts)
        self._standing = Standing.from_dict(snapshot.standing)
        self._expectations.found.update((client, samples) for client, samples in snapshot.standing.get("samples", ()))
        self._sequence = snapshot.sequence
        self._life = snapshot.life + 1
        self._memories = dict(snapshot.memories)
        self._answered = dict(snapshot.answered)
        self._profiles = dict(snapshot.profiles)
        self._arrived = [
            _Arrival(Request.from_bytes(request), Response.from_bytes(response), late)
            for request, response, late in snapshot.arrived
        ]
        requests = [(Request.from_bytes(raw), awaited) for raw, awaited in snapshot.pending]
        self._start = {request.client: request.sequence for request, _ in requests}
        self._start_default = self._sequence
        self._transport.restore(snapshot.transport)
        for request, awaited in requests:
            again = request._replace(life=self._life, start=request.sequence, base=request.sequence)
            self._pending[request.sequence] = _Pending(again, awaited)
        self.saved()
        self._transport.push([pending.request for pending in self._pending.values()])

    def _uncovered(self) -> Callable[[int], int]:
        """For each client, the first request that a checkpoint made now does not cover."""
        pending = {p.request.client: sequence for sequence, p in self._pending.items()}
        return lambda client: pending.get(client, self._sequence)


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, CatchmentError) else f"it cannot be read ({type(error).__name__}: {error})"


class _Arrival(NamedTuple):
    request: Request
    response: Response
    late: bool


@dataclass(frozen=True)
class FleetSnapshot:
    """The fleet at a checkpoint."""

    sequence: int
    life: int
    counts: dict[str, int]
    pending: list[tuple[bytes, bool]]
    arrived: list[tuple[bytes, bytes, bool]]
    transport: Snapshot
    memories: dict[int, Memory] = field(default_factory=dict)  # of the codecs, by client
    answered: dict[int, int] = field(default_factory=dict)  # by client: the last request that it has surely seen
    profiles: dict[int, Profile] = field(default_factory=dict)  # of the inspection, by client
    standing: dict[str, Any] = field(default_factory=dict)  # of the clients
