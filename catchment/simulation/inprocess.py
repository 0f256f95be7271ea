"""The engine for research: clients are served by worker threads of this process, or by ranks, on a virtual clock.

Results do not depend on the number of workers: a client always computes with `threads` threads, its randomness is
derived, and replies are delivered in an order that the virtual clock decides. On ideal devices that is the order
of asking, and replies stream; otherwise an arrival is known only when the work in flight is done, and they are held
until then, large ones on the disk.
"""

from __future__ import annotations

import heapq
import threading
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import torch

from catchment.client.seats import Seat
from catchment.client.state import Versions, state_from_message, state_to_message
from catchment.core.spool import Scratch
from catchment.core.transport import Snapshot, Transport
from catchment.core.worker import WorkerCache
from catchment.core.world import World
from catchment.exchange.message import Message
from catchment.exchange.request import Request, Response
from catchment.randomness import chance, numpy_generator
from catchment.runtimes.torch import serve
from catchment.simulation.devices import DeviceProfile, Faults
from catchment.simulation.states import Changed, ClientStates
from catchment.simulation.work_queue import WorkQueue

LARGE = 2**20  # bytes; a response that is larger waits for its arrival on the disk


class InProcess(Transport):
    """Clients that are served by function calls."""

    def __init__(
        self,
        world: World,
        *,
        workers: int = 1,
        threads: int = 1,
        strict: bool = False,
        devices: Sequence[DeviceProfile] = (DeviceProfile(),),
        faults: Faults | None = None,
        directory: Path | None = None,
        seats: Sequence[Seat] = (),
    ) -> None:
        """Workers are threads, and others at `seats`.

        Large replies and states wait in `directory`, or without one in the system's folder for temporary files.
        """
        self._world = world
        self._threads = threads
        self._strict = strict
        self._devices = tuple(devices)  # dealt to the clients in turn
        self._faults = faults or Faults()
        self._availability = np.array([device.availability for device in devices])
        self._roster: tuple[int | None, Sequence[int]] = (None, range(world.clients))  # of the round that it names
        self._timed = any(d.seconds(1, 1, 1) > 0 for d in devices) or self._faults.delay > 0
        self._now = 0.0
        self._sent: dict[int, float] = {}
        self._states = ClientStates(directory)
        self._touched: set[int] = set()
        self._stop = threading.Event()
        self._local = threading.local()
        self._seats = tuple(seats)
        free = SimpleQueue[Seat | None]()  # None: a thread does the work itself
        for seat in (*seats, *[None] * workers):
            free.put(seat)
        workers += len(seats)
        self._pool = ThreadPoolExecutor(workers, "client", self._sit_down, (free,)) if workers > 1 else None
        self._arrivals = Arrivals(directory)
        self._asides = WorkQueue(self._serve, self._pool, 2 * workers)
        if self._timed:
            self._training = WorkQueue(lambda request: self._arrivals.hold(self._serve(request)), self._pool, None)
        else:
            self._training = WorkQueue(self._serve, self._pool, 2 * workers)

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return self._now

    def roster(self, round: int) -> Sequence[int]:
        """All clients, less those whose device is unavailable in this round."""
        if self._roster[0] != round and (self._availability < 1).any():
            draws = numpy_generator(self._world.seed, "availability", round).random(self._world.clients)
            shares = np.resize(self._availability, self._world.clients)
            self._roster = round, array("q", np.flatnonzero(draws < shares).tobytes())
        return self._roster[1]

    def push(self, requests: Sequence[Request]) -> None:
        """Queue requests; workers begin at once."""
        for request in requests:
            if self._strict:
                request = Request.from_bytes(request.to_bytes())
            if request.aside:
                self._asides.add(request)
            else:
                self._touched.add(request.client)
                self._sent.setdefault(request.sequence, self._now)
                self._training.add(request)

    def pull(self, until: float) -> Response | None:
        """The next response by virtual time; asides take none."""
        if self._asides:
            return self._asides.next()[1]
        if not self._timed:
            if not self._training:
                return None
            request, response = self._training.next()
            del self._sent[request.sequence]
            return response
        while self._training:
            request, response = self._training.next()
            self._arrivals.add(self._arrival(request, response), response)
        arrived = self._arrivals.next(until)
        if arrived is None:
            if until < float("inf"):
                self._now = max(self._now, until)
            return None
        self._now, response = arrived
        del self._sent[response.sequence]
        return response

    def snapshot(self, before: Callable[[int], int]) -> Snapshot:
        """Clock, send times of what is in flight, and the states of clients that changed."""
        known = sorted(client for client in self._touched if client in self._states)
        states = Changed(self._states, {client: before(client) for client in known})
        # A client that is still working is looked at again next time.
        self._touched = self._training.clients() | self._arrivals.clients()
        return Snapshot(self._now, dict(self._sent), states)

    def restore(self, snapshot: Snapshot) -> None:
        """Restore clock and states."""
        self._now = snapshot.now
        self._sent = dict(snapshot.sent)
        for client, state in snapshot.states.items():
            self._states.restore(client, state)

    def close(self) -> None:
        """Stop the workers after the batch they are in."""
        self._stop.set()
        for seat in self._seats:
            seat.close()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._arrivals.clear()
        self._states.close()

    # ---- one client's turn, in a worker thread ----

    def _serve(self, request: Request) -> Response:
        """Answer a request as its client would, with the faults that are injected."""
        if not request.aside and self._happens("crash", request):
            return Response(request.client, request.sequence, None, error="the device crashed (injected)")
        with self._states.of(request.client) if self._world.remembers else nullcontext() as versions:
            response = self._answer(request, versions)
            if self._strict and versions is not None and not request.aside:
                versions.replace(
                    lambda state: state_from_message(Message.from_bytes(state_to_message(state).to_bytes())[0])
                )
        if self._strict:
            response = Response.from_bytes(response.to_bytes())
        if not request.aside and self._happens("drop", request):
            return response._replace(body=None, error="the reply was dropped (injected)")
        return response

    def _answer(self, request: Request, versions: Versions | None) -> Response:
        """Answer it here, or at the seat of this thread."""
        if (seat := getattr(self._local, "seat", None)) is not None:
            return seat.answer(request, versions)  # type: ignore[no-any-return]
        threads = torch.get_num_threads()
        if threads != self._threads:
            torch.set_num_threads(self._threads)
        response = serve(self._world, request, versions, self._cache())
        if threads != self._threads:
            torch.set_num_threads(threads)
        return response

    def _happens(self, fault: str, request: Request) -> bool:
        """Whether a fault is injected into a request, derived from the seed."""
        likelihood: float = getattr(self._faults, fault)
        if not likelihood:
            return False
        where = (request.client, request.round, request.turn)
        return chance(self._world.seed, "fault", fault, *where) < likelihood

    def _arrival(self, request: Request, response: Response) -> float:
        """The virtual time at which a response arrives."""
        device = self._devices[request.client % len(self._devices)]
        seconds = device.seconds(request.size(), response.macs, self._arrivals.size(response))
        arrival = self._sent[request.sequence] + seconds
        return arrival + (self._faults.delay_seconds if self._happens("delay", request) else 0.0)

    def _sit_down(self, free: SimpleQueue[Seat | None]) -> None:
        """Let a new thread do its work at a seat that is free, or here."""
        self._local.seat = free.get()
        torch.set_num_threads(self._threads)

    def _cache(self) -> WorkerCache:
        """What this thread reuses from request to request."""
        if not hasattr(self._local, "cache"):
            self._local.cache = WorkerCache(self._stop)
        return self._local.cache  # type: ignore[no-any-return]


# ---- on the virtual clock ----------------------------------------------------------------------------------------


class Arrivals:
    """Responses in transit, in the order in which they arrive; `directory` is where large ones wait."""

    def __init__(self, directory: Path | None) -> None:
        self._heap: list[tuple[float, int, Response]] = []  # by (second of arrival, sequence)
        self._disk = Scratch(directory)  # by sequence: the bodies of large responses

    def hold(self, response: Response) -> Response:
        """The response without its body if that is large; the body goes to the disk. Any thread may call this."""
        if response.body is None or response.size() <= LARGE:
            return response
        self._disk.write(response.sequence, response.size(), response.body.buffers(response.envelope))
        return response._replace(body=None)

    def size(self, response: Response) -> int:
        """The bytes of a response, wherever its body is."""
        held = response.sequence in self._disk
        return self._disk.place(response.sequence)[1] if held else response.size()

    def add(self, second: float, response: Response) -> None:
        """Let a response arrive at this time, in seconds."""
        heapq.heappush(self._heap, (second, response.sequence, response))

    def next(self, until: float) -> tuple[float, Response] | None:
        """The earliest response with its time of arrival; None if that is after `until`."""
        if not self._heap or self._heap[0][0] > until:
            return None
        second, sequence, response = heapq.heappop(self._heap)
        if sequence in self._disk:
            body, _ = Message.from_bytes(self._disk.read(sequence))
            self._disk.remove(sequence)
            response = response._replace(body=body)
        return second, response

    def clients(self) -> set[int]:
        """Whose responses are on their way."""
        return {response.client for _, _, response in self._heap}

    def clear(self) -> None:
        """Forget everything and free the disk space."""
        self._disk.clear()
