"""Ranks: the processes of one job of `torchrun`. Rank 0 runs the experiment; all serve clients and train with it.

Ranks find each other by `torch.distributed`. What they say then goes over connections of their own: a rank may wait
for its next client as long as it takes, where an operation of a process group has a time limit, and the kernel notices
a machine that vanishes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from multiprocessing import Pipe
from multiprocessing.connection import Client, Connection, wait
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn

from catchment.client.seats import GONE, Seat, work
from catchment.core.architecture import Architecture
from catchment.core.worker import WorkerCache
from catchment.core.world import World
from catchment.errors import CatchmentError, RunError, UserError, printable
from catchment.learning.parallel import Assistant, Together, sharing
from catchment.process import this_rank
from catchment.runtimes.torch import TorchRuntime
from catchment.simulation.listening import Listener

STEP = timedelta(minutes=2)  # for the part of a rank in one step of training
SILENCE = 15  # seconds after which the kernel gives up a machine that does not answer
LOCAL = "127.0.0.1"


# ---- rank 0 ------------------------------------------------------------------------------------------------------


class Ranks:
    """The other ranks, as rank 0 sees them; a run that loses one ends."""

    def __init__(self) -> None:
        """Wait until all are connected."""
        if this_rank() != 0:
            raise UserError("only the command is for torchrun: torchrun ... -m catchment run FILE")
        dist.init_process_group(timeout=STEP)
        self._on_machine = int(os.environ["LOCAL_WORLD_SIZE"])
        key = os.urandom(32)
        self._listener = Listener("0.0.0.0" if _on_several_machines() else LOCAL, key)
        _agree(self._listener.port, key)
        _tune_group()
        self._ranks: dict[Connection, str] = {}
        for _ in range(1, dist.get_world_size()):
            control, said = self._accept()
            self._ranks[control] = said["name"]

    def share(self, workers: int) -> int:
        """How many of the workers of a machine each of its ranks has."""
        return -(-workers // self._on_machine)

    @contextlib.contextmanager
    def serving(self, experiment: str, workers: int, threads: int, data_parallel: bool) -> Iterator[None]:
        """Around a run: every rank builds the world of an experiment, serves its clients, and may train with rank 0.

        If a rank is gone, one sentence says so, even where `torchrun` ends this process for it too.
        """

        def interrupt(number: int, frame: Any) -> None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGTERM, interrupt)
        over, end = Pipe(duplex=False)
        threading.Thread(target=self._watch, args=(over,), name="ranks", daemon=True).start()
        try:
            self.order({"experiment": experiment, "seats": self.share(workers), "threads": threads})
            with sharing(Together(self.order)) if data_parallel else contextlib.nullcontext():
                yield
            signal.signal(signal.SIGTERM, before)
        except BaseException as error:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # there is a sentence to say
            lost = isinstance(error, KeyboardInterrupt | RunError)  # or what a step says that one of them left
            if lost and (gone := wait(list(self._ranks), timeout=1)):
                raise RunError(f"{self._ranks[cast(Connection, gone[0])]} is gone") from None
            raise
        finally:
            end.close()

    def _watch(self, over: Connection) -> None:
        """Interrupt the run when a rank is gone: on these connections the other ranks say nothing."""
        if over not in wait([over, *self._ranks]):
            signal.pthread_kill(cast(int, threading.main_thread().ident), signal.SIGTERM)

    def order(self, said: Mapping[str, Any]) -> None:
        """Tell all other ranks what to do next."""
        for control in self._ranks:
            with contextlib.suppress(*GONE):  # which the watch sees
                _send(control, said)

    def seats(self, workers: int) -> list[Seat]:
        """The workers of the other ranks, as soon as they have built the world."""
        seats = []
        for _ in range(self.share(workers) * len(self._ranks)):
            connection, said = self._accept()
            if said["error"]:
                raise UserError(f"{said['name']} cannot take part: {printable(said['error'])}")
            seats.append(Seat(connection, said["name"]))
        return seats

    def _accept(self) -> tuple[Connection, dict[str, Any]]:
        while True:
            with contextlib.suppress(*GONE):  # it left at once
                connection = _tuned(self._listener.accept())
                return connection, _receive(connection)

    def close(self) -> None:
        """Send the other ranks home."""
        self.order({})
        self._listener.close()
        dist.destroy_process_group()


# ---- the other ranks ---------------------------------------------------------------------------------------------


def own_device(name: str) -> torch.device:
    """The torch device of this rank: of several of one kind on a machine, the one of its number there."""
    device = torch.device(name)
    if device.index is None and device.type == getattr(torch.accelerator.current_accelerator(), "type", None):
        return torch.device(device.type, int(os.environ["LOCAL_RANK"]) % torch.accelerator.device_count())
    return device


def follow(build: Callable[[str], World | None]) -> None:
    """Be one of the other ranks until rank 0 has ended; `build` makes a world, if there are clients to serve."""
    dist.init_process_group(timeout=STEP)
    port, key = _agree(0, bytes(32))
    _tune_group()
    host = os.environ["MASTER_ADDR"] if _on_several_machines() else LOCAL
    name = f"rank {dist.get_rank()} on {socket.gethostname()}"

    def connect(error: str = "") -> Connection:
        connection = _tuned(Client((host, port), authkey=key))
        _send(connection, {"name": name, "error": error})
        return connection

    stop, workers = threading.Event(), list[threading.Thread]()

    def take(seat: Connection, world: World, threads: int) -> None:
        torch.set_num_threads(threads)
        work(seat, TorchRuntime(world, WorkerCache(stop)), world.codecs, world.remembers)

    def begin(experiment: str, seats: int, threads: int) -> None:
        try:
            world = build(experiment)
        except (CatchmentError, OSError) as error:
            connect(str(error))
            return
        for _ in range(seats if world is not None else 0):
            workers.append(threading.Thread(target=take, args=(connect(), world, threads)))
            workers[-1].start()

    def model(described: Mapping[str, Any]) -> nn.Module:
        return Architecture.described(described, own_device(described["device"])).build()

    control = connect()
    assistant = Assistant(model, lambda: _receive(control))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # rank 0 decides when to end
    try:
        while order := _receive(control):
            if "fit" in order:
                assistant.fit(**order["fit"])
            else:
                begin(**order)
    except GONE:
        raise RunError("rank 0 is gone") from None
    except (RuntimeError, RunError) as error:  # also if a rank is gone in the middle of a step
        with contextlib.suppress(*GONE):
            while control.poll(1):
                if not _receive(control):
                    return  # rank 0 has ended, and says why
        raise RunError(f"{name} cannot go on: {printable(error)}") from error
    finally:
        stop.set()
        for worker in workers:
            worker.join()
        dist.destroy_process_group()


# ---- connections -------------------------------------------------------------------------------------------------


def _on_several_machines() -> bool:
    """Whether the job is on several machines."""
    return int(os.environ["LOCAL_WORLD_SIZE"]) < dist.get_world_size()


def _agree(port: int, key: bytes) -> tuple[int, bytes]:
    """Port and key of rank 0, on every rank."""
    numbers = torch.tensor([port, *key])
    dist.broadcast(numbers, 0)
    port, *letters = numbers.tolist()
    return port, bytes(letters)


def _tuned(connection: Connection) -> Connection:
    """Without delays, and with an end if the other machine vanishes."""
    _tune(connection.fileno())
    return connection


def _tune(descriptor: int) -> None:
    options = {"TCP_NODELAY": 1, "TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 2}
    options["TCP_USER_TIMEOUT"] = 1000 * SILENCE
    with socket.socket(fileno=os.dup(descriptor)) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options.items():
            if hasattr(socket, name):  # macOS lacks some
                line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _tune_group() -> None:
    """The same for the connections of the process group, which Linux shows: a step could wait for them for minutes."""
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        with contextlib.suppress(OSError):  # it is no connection, or closed by now
            if stat.S_ISSOCK(os.stat(f"/proc/self/fd/{name}").st_mode):
                _tune(int(name))


def _send(connection: Connection, said: Mapping[str, Any]) -> None:
    connection.send_bytes(json.dumps(said).encode())


def _receive(connection: Connection) -> dict[str, Any]:
    return cast(dict[str, Any], json.loads(connection.recv_bytes()))
