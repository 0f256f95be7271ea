"""What the clients of a simulation remember: of those that were asked lately in memory, of the others on the disk."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import NamedTuple

from catchment.client.state import ClientState, Version, Versions, state_from_message, state_to_message
from catchment.core.spool import Scratch
from catchment.exchange.message import Message
from catchment.process import return_freed_memory

RESIDENT = 256 * 2**20  # bytes of states that stay in memory
PASSING = 16 * 2**20  # bytes of states in use after which freed memory is returned to the system
BLOCK = 4096  # bytes; places in the file are multiples of it, so that the next version fits where an old one was


class Place(NamedTuple):
    """Where a version is in the file."""

    key: int
    size: int  # bytes


class ClientStates:
    """The versions of all clients' states. Threads may use those of different clients at the same time."""

    def __init__(self, directory: Path | None, resident: int = RESIDENT) -> None:
        """The disk is that of `directory`, or without one that of the system's folder for temporary files."""
        self._lock = threading.Lock()
        self._resident = resident
        self._here: OrderedDict[int, Versions] = OrderedDict()  # by client, who was used last comes last
        self._sizes: dict[int, int] = {}  # of those that are here, bytes
        self._bytes = 0  # of all that are here
        self._passed = 0  # bytes of states that were used since memory was given back
        self._in_use: Counter[int] = Counter()
        self._disk = Scratch(directory)
        self._places: dict[int, dict[Version, Place]] = {}  # by client: its versions in the file
        self._keys = count()
        self._free: dict[int, list[int]] = {}  # by size: keys that are not used any more

    def __contains__(self, client: int) -> bool:
        return client in self._here or client in self._places

    @property
    def resident(self) -> int:
        """Bytes of states in memory."""
        return self._bytes

    @contextmanager
    def of(self, client: int) -> Iterator[Versions]:
        """A client's versions, in memory as long as they are used; none of a client that was never asked."""
        with self._lock:
            versions = self._here.pop(client, None) or self._read(client)
            self._here[client] = versions
            self._in_use[client] += 1
        try:
            yield versions
        finally:
            with self._lock:
                self._in_use[client] -= 1
                if not self._in_use[client]:
                    del self._in_use[client]
                self._measure(client)
                self._make_room()
                self._return_freed()

    def restore(self, client: int, state: ClientState) -> None:
        """Start from a checkpointed state."""
        with self.of(client) as versions:
            versions.restore(state)

    def close(self) -> None:
        """Free the disk space."""
        self._disk.clear()

    def _measure(self, client: int) -> None:
        """Count what a client has in memory now; one without versions is forgotten."""
        versions = self._here[client]
        size = sum(t.nbytes for state in versions.kept.values() for group in state.values() for t in group.values())
        self._bytes += size - self._sizes.get(client, 0)
        self._sizes[client] = size
        self._passed += size
        if not versions.kept and client not in self._in_use and client not in self._places:
            del self._here[client], self._sizes[client]

    def _make_room(self) -> None:
        """Take those that were not used for the longest time out of memory."""
        while self._bytes > self._resident:
            client = next((client for client in self._here if client not in self._in_use), None)
            if client is None:
                return
            self._write(client, self._here.pop(client))
            self._bytes -= self._sizes.pop(client)

    def _return_freed(self) -> None:
        """Return the memory of a few turns: states that stay lie scattered in it, so that later turns cannot use it."""
        if self._passed > PASSING:
            return_freed_memory()
            self._passed = 0

    def _write(self, client: int, versions: Versions) -> None:
        """Put versions into the file, less those that are there already; the space of those that are gone is free."""
        places = self._places.setdefault(client, {})
        for version in [version for version in places if version not in versions.kept]:
            gone = places.pop(version)
            self._free.setdefault(_blocks(gone.size), []).append(gone.key)
        for version, state in versions.kept.items():
            if version not in places:
                message = state_to_message(state)
                size = message.size()
                free = self._free.get(_blocks(size))
                key = free.pop() if free else next(self._keys)
                self._disk.write(key, _blocks(size), message.buffers())
                places[version] = Place(key, size)

    def _read(self, client: int) -> Versions:
        """A client's versions from the file; none if it has none there."""
        found = {version: self._read_state(place) for version, place in self._places.get(client, {}).items()}
        return Versions(found)

    def _read_state(self, place: Place) -> ClientState:
        raw = bytearray(place.size)
        self._disk.read_into(memoryview(raw), self._disk.place(place.key)[0])
        return state_from_message(Message.from_bytes(bytes(raw))[0])


class Changed(Mapping[int, ClientState]):
    """The states of some clients at a checkpoint, each read when it is written there."""

    def __init__(self, states: ClientStates, before: Mapping[int, int]) -> None:
        """`before` says for each client which request is the first that the checkpoint does not cover."""
        self._states = states
        self._before = before

    def __getitem__(self, client: int) -> ClientState:
        before = self._before[client]
        with self._states.of(client) as versions:
            return versions.newest(before)

    def __iter__(self) -> Iterator[int]:
        return iter(self._before)

    def __len__(self) -> int:
        return len(self._before)


def _blocks(size: int) -> int:
    return -(-size // BLOCK) * BLOCK
