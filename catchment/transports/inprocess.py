"""The engine for research: clients are served by worker threads of this process, on a virtual clock.

Results do not depend on the number of workers: a client always computes with `threads` threads, its randomness is
derived, and replies are handed over in an order that the virtual clock decides. On ideal devices that is the order
of asking, and replies stream; otherwise an arrival is known only when the work in flight is done, and they are held
until then, large ones on the disk.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from catchment.client import Versions, Workbench, serve, state_from_message, state_to_message
from catchment.message import Message, Request, Response
from catchment.randomness import chance, numpy_generator
from catchment.spool import Scratch
from catchment.transports.base import Snapshot, Transport
from catchment.transports.devices import Device, Faults
from catchment.world import World

LARGE = 2**20  # bytes; a larger reply waits on the disk


class InProcess(Transport):
    """Clients as function calls."""

    def __init__(
        self,
        world: World,
        *,
        workers: int = 1,
        threads: int = 1,
        strict: bool = False,
        devices: Sequence[Device] = (Device(),),
        faults: Faults | None = None,
        directory: Path | None = None,
    ) -> None:
        """`directory` is where large replies wait for their time; None is the system's for temporary files."""
        self._world = world
        self._threads = threads
        self._strict = strict
        self._devices = tuple(devices)  # dealt to the clients in turn
        self._faults = faults or Faults()
        self._availability = np.array([device.availability for device in devices])
        self._timed = any(d.seconds(1, 1, 1) > 0 for d in devices) or self._faults.delay > 0
        self._now = 0.0
        self._sent: dict[int, float] = {}
        self._versions: dict[int, Versions] = {}
        self._touched: set[int] = set()
        self._stop = threading.Event()
        self._local = threading.local()
        self._pool = (
            ThreadPoolExecutor(workers, "client", initializer=torch.set_num_threads, initargs=(threads,))
            if workers > 1
            else None
        )
        self._asides = _Lane(self._serve, self._pool, 2 * workers)
        if self._timed:
            self._training = _Lane(self._serve_and_hold, self._pool, None)
        else:
            self._training = _Lane(self._serve, self._pool, 2 * workers)
        self._arriving: list[tuple[float, int, Response]] = []  # a heap by (arrival, sequence)
        self._held = Scratch(directory)  # by sequence: the bodies of large responses on their way

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return self._now

    def roster(self, round: int) -> Sequence[int]:
        """All clients, less those whose device is unavailable in this round."""
        if (self._availability == 1).all():
            return range(self._world.clients)
        draws = numpy_generator(self._world.seed, "availability", round).random(self._world.clients)
        shares = np.resize(self._availability, self._world.clients)
        return np.flatnonzero(draws < shares).tolist()

    def push(self, requests: Sequence[Request]) -> None:
        """Queue requests; workers begin at once."""
        persistent = self._world.remembers
        for request in requests:
            if self._strict:
                request = Request.from_bytes(request.to_bytes())
            if persistent and request.client not in self._versions:
                self._versions[request.client] = Versions()
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
            heapq.heappush(self._arriving, (self._arrival(request, response), request.sequence, response))
        if self._arriving and self._arriving[0][0] <= until:
            self._now, sequence, response = heapq.heappop(self._arriving)
            del self._sent[sequence]
            return self._whole(response)
        if until < float("inf"):
            self._now = max(self._now, until)
        return None

    def snapshot(self, before: Callable[[int], int]) -> Snapshot:
        """Clock, send times of what is in flight, and the states of clients that changed."""
        known = sorted(self._touched & self._versions.keys())
        states = {client: self._versions[client].newest(before(client)) for client in known}
        # A client that is still working is looked at again next time.
        self._touched = self._training.clients() | {response.client for _, _, response in self._arriving}
        return Snapshot(self._now, dict(self._sent), states)

    def restore(self, snapshot: Snapshot) -> None:
        """Take up clock and states."""
        self._now = snapshot.now
        self._sent = dict(snapshot.sent)
        for client, state in snapshot.states.items():
            self._versions[client] = Versions()
            self._versions[client].restore(state)

    def close(self) -> None:
        """Stop the workers after the batch they are in."""
        self._stop.set()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._held.clear()

    # ---- one client's turn, in a worker thread ----

    def _serve(self, request: Request) -> Response:
        if not request.aside and self._happens("crash", request):
            return Response(request.client, request.sequence, None, error="the device crashed (injected)")
        threads = torch.get_num_threads()
        if threads != self._threads:
            torch.set_num_threads(self._threads)
        response = serve(self._world, request, self._versions.get(request.client), self._workbench())
        if threads != self._threads:
            torch.set_num_threads(threads)
        if self._strict:
            response = Response.from_bytes(response.to_bytes())
            if (versions := self._versions.get(request.client)) is not None and not request.aside:
                versions.replace(
                    lambda state: state_from_message(Message.from_bytes(state_to_message(state).to_bytes())[0])
                )
        if not request.aside and self._happens("drop", request):
            return response._replace(body=None, error="the reply was dropped (injected)")
        return response

    def _serve_and_hold(self, request: Request) -> Response:
        """A large body goes to the disk, where it waits for its time."""
        response = self._serve(request)
        if response.body is None or response.size() <= LARGE:
            return response
        self._held.write(response.sequence, response.size(), response.body.buffers(response.envelope))
        return response._replace(body=None)

    def _whole(self, response: Response) -> Response:
        """The response with its body, if that is on the disk."""
        if response.sequence not in self._held:
            return response
        body, _ = Message.from_bytes(self._held.read(response.sequence))
        self._held.remove(response.sequence)
        return response._replace(body=body)

    def _happens(self, fault: str, request: Request) -> bool:
        likelihood: float = getattr(self._faults, fault)
        if not likelihood:
            return False
        where = (request.client, request.round, request.turn)
        return chance(self._world.seed, "fault", fault, *where) < likelihood

    def _arrival(self, request: Request, response: Response) -> float:
        device = self._devices[request.client % len(self._devices)]
        size = self._held.place(request.sequence)[1] if request.sequence in self._held else response.size()
        arrival = self._sent[request.sequence] + device.seconds(request.size(), response.macs, size)
        return arrival + (self._faults.delay_seconds if self._happens("delay", request) else 0.0)

    def _workbench(self) -> Workbench:
        if not hasattr(self._local, "workbench"):
            self._local.workbench = Workbench(self._stop)
        return self._local.workbench  # type: ignore[no-any-return]


SHORT = 0.003  # seconds; for shorter work, threads cost more than they bring, as they pass one interpreter around


class _Lane:
    """Requests served in order, at most `ahead` of them before they are wanted; short ones by the caller itself."""

    def __init__(
        self, serve: Callable[[Request], Response], pool: ThreadPoolExecutor | None, ahead: int | None
    ) -> None:
        self._serve = serve
        self._pool = pool
        self._ahead = ahead
        self._waiting: deque[Request] = deque()
        self._begun: deque[tuple[Request, Future[Response]]] = deque()
        self._recent: deque[float] = deque([SHORT], maxlen=8)  # seconds of work

    def __len__(self) -> int:
        return len(self._waiting) + len(self._begun)

    def clients(self) -> set[int]:
        """Whose requests are here."""
        return {request.client for request in self._waiting} | {request.client for request, _ in self._begun}

    def add(self, request: Request) -> None:
        """Queue a request; a worker takes it as soon as it may."""
        self._waiting.append(request)
        self._feed()

    def next(self) -> tuple[Request, Response]:
        """The oldest request with its response; waits for it."""
        if self._begun:
            request, future = self._begun[0]
            response = future.result()
            self._begun.popleft()
        else:
            request = self._waiting.popleft()
            response = self._serve(request)
        self._recent.append(response.seconds)
        self._feed()
        return request, response

    def _feed(self) -> None:
        if self._pool is None or min(self._recent) < SHORT:
            return
        while self._waiting and (self._ahead is None or len(self._begun) < self._ahead):
            request = self._waiting.popleft()
            self._begun.append((request, self._pool.submit(self._serve, request)))
