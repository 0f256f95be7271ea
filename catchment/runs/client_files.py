"""The states of clients at the checkpoints of a run: in files that hold those that changed, and few that did not.

A file is never changed. A checkpoint names the files that it needs; of a client that is in several of them, the newest
counts. What a checkpoint writes does not grow with the run: the clients that changed since the last one, and at most as
many others, from files in which hardly anything still counts.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from catchment.client.state import ClientState
from catchment.exchange.message import FileContent, Message
from catchment.files import write_atomically

PATTERN = "clients-*.safetensors"
FULL = 64 * 2**20  # bytes of states after which another file is begun
FEW = 64  # clients that a checkpoint may write anew beside those that changed, if these are fewer
MANY = 64  # files: if there are more, the smallest are put together
CLIENTS = "clients"  # a scalar: whose states a file holds, those included that remember nothing


class ClientFiles(Mapping[int, ClientState]):
    """The newest state of every client that ever had one, read when it is asked for."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file_of: dict[int, str] = {}  # by client: the file that has its newest state
        self._counting: dict[str, set[int]] = {}  # by file: whose newest state it has
        self._held: dict[str, int] = {}  # by file: how many states it has, newest or not
        self._open: tuple[str, dict[int, ClientState]] = ("", {})  # the file that was read last

    def __getitem__(self, client: int) -> ClientState:
        name = self._file_of[client]
        if self._open[0] != name:
            self._open = name, self._read(name)
        return self._open[1].get(client, {})

    def __iter__(self) -> Iterator[int]:
        for clients in self._counting.values():  # one file after the other, as each is read as a whole
            yield from sorted(clients)

    def __len__(self) -> int:
        return len(self._file_of)

    @property
    def names(self) -> list[str]:
        """The files that a checkpoint made now needs."""
        return list(self._counting)

    def load(self, files: Iterable[str]) -> None:
        """Begin with the files of a checkpoint, the oldest first."""
        for name in files:
            self._take(name, list(self._read(name)))

    def save(self, round: int, changed: Mapping[int, ClientState]) -> None:
        """Write what changed; clients of files in which little counts join it."""
        if not changed:
            return
        part: dict[int, ClientState] = {}
        size = files = 0
        clients = [*changed, *self._sparse(changed, max(len(changed), FEW))]
        for place, client in enumerate(clients, start=1):
            part[client] = changed[client] if client in changed else self[client]
            size += sum(tensor.nbytes for group in part[client].values() for tensor in group.values())
            if size >= FULL or place == len(clients):
                self._write(f"clients-{round:06d}{f'-{files}' if files else ''}.safetensors", part)
                part, size, files = {}, 0, files + 1
        self._open = ("", {})

    def _sparse(self, changed: Mapping[int, ClientState], most: int) -> list[int]:
        """Clients to write anew: those of files of which less than half still counts, or that are small and many."""
        moved = Counter(self._file_of[client] for client in changed if client in self._file_of)
        counts = {name: len(clients) - moved[name] for name, clients in self._counting.items()}
        counts = {name: count for name, count in sorted(counts.items(), key=lambda item: item[1]) if count}
        found: list[int] = []
        excess = len(counts) + 1 - MANY
        for name, count in counts.items():
            if len(found) + count > most:
                break
            if 2 * count < self._held[name] or excess > 0:
                found += sorted(self._counting[name] - changed.keys())
                excess -= 1
        return found

    def _write(self, name: str, states: Mapping[int, ClientState]) -> None:
        tensors = {
            f"{client}/{group}/{key}": tensor
            for client, state in states.items()
            for group, entries in state.items()
            for key, tensor in entries.items()
        }
        message = FileContent(tensors, {CLIENTS: json.dumps(list(states))})
        write_atomically(self._directory / name, message.buffers())
        self._take(name, list(states))

    def _read(self, name: str) -> dict[int, ClientState]:
        message, _ = Message.from_bytes((self._directory / name).read_bytes())
        states: dict[int, ClientState] = {client: {} for client in json.loads(str(message.scalars.get(CLIENTS, "[]")))}
        for key, tensor in message.tensors.items():
            client, group, entry = key.split("/", 2)
            states.setdefault(int(client), {}).setdefault(group, {})[entry] = tensor
        return states

    def _take(self, name: str, clients: Sequence[int]) -> None:
        """From now on, a file has the newest states of these clients."""
        for client in clients:
            older = self._file_of.get(client)
            if older is not None:
                self._counting[older].discard(client)
                if not self._counting[older]:
                    del self._counting[older], self._held[older]
            self._file_of[client] = name
        if clients:
            self._counting[name], self._held[name] = set(clients), len(clients)
