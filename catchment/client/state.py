"""What clients remember between requests, in versions, so that a resumed run can go back."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from catchment.exchange.message import Message
from catchment.exchange.request import Request
from catchment.files import private_directories, write_atomically

ClientState = dict[str, dict[str, Tensor]]  # by the names a method declares in `persistent`
Version = tuple[int, int]  # the number of the request that made it, and how often the run had been resumed


class Versions:
    """What one client remembers: a few versions of its state, so that a resumed run can go back.

    A version is named by the request that made it. A request starts from the newest version before itself. Kept are
    the newest, the one it was made from (a checkpoint may be written before the reply is seen), and the one that the
    last checkpoint relies on. Methods here replace the table and never change it, so another thread may read it.
    """

    def __init__(self, kept: Mapping[Version, ClientState] | None = None) -> None:
        found = (kept or {}).items()
        self._kept = {
            sequence: (resumes, state) for (sequence, resumes), state in found
        }  # sequence -> (resumes, state)

    @property
    def kept(self) -> dict[Version, ClientState]:
        """All versions, with which a new object can be made."""
        return {(sequence, resumes): state for sequence, (resumes, state) in self._kept.items()}

    def before(self, request: Request) -> ClientState:
        """The state that a request starts from; versions that a resume has discarded are dropped."""
        self._kept = {s: v for s, v in self._kept.items() if v[0] >= request.resumes or s < request.start}
        return self.newest(request.sequence)

    def newest(self, before: int) -> ClientState:
        """The newest state made by a request with a number below `before`."""
        sequence = self._newest(before)
        return {} if sequence is None else dict(self._kept[sequence][1])

    def keep(self, request: Request, state: ClientState) -> None:
        """Keep the state after a request."""
        needed = (self._newest(request.base), self._newest(request.sequence))
        kept = {s: v for s, v in self._kept.items() if s in needed}
        self._kept = {**kept, request.sequence: (request.resumes, state)}

    def replace(self, change: Callable[[ClientState], ClientState]) -> None:
        """Put every version through a function (strict mode: to bytes and back)."""
        self._kept = {sequence: (resumes, change(state)) for sequence, (resumes, state) in self._kept.items()}

    def _newest(self, before: int) -> int | None:
        return max((s for s in self._kept if s < before), default=None)

    def restore(self, state: ClientState) -> None:
        """Start from a checkpointed state, older than any request to come."""
        self._kept = {-1: (-1, state)}


def state_to_message(state: ClientState) -> Message:
    """A client's state as one message, for disks and for strict mode."""
    return Message({f"{group}/{name}": t for group, tensors in state.items() for name, t in tensors.items()})


def state_from_message(message: Message) -> ClientState:
    """The inverse of `state_to_message`."""
    state: ClientState = {}
    for key, tensor in message.tensors.items():
        group, _, name = key.partition("/")
        state.setdefault(group, {})[name] = tensor
    return state


class StoredVersions(Versions):
    """A client's versions of its state, each in a file; a version is on disk before it is used."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory
        private_directories(directory)
        for path in directory.glob("*.safetensors"):
            if match := re.fullmatch("([0-9]{10})-([0-9]{6})", path.stem):
                state = state_from_message(Message.from_bytes(path.read_bytes())[0])
                self._kept[int(match[1])] = (int(match[2]), state)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._kept)

    def before(self, request: Request) -> ClientState:
        """The state that a request starts from."""
        state = super().before(request)
        self._clean()
        return state

    def keep(self, request: Request, state: ClientState) -> None:
        """Keep the state after a request."""
        super().keep(request, state)
        write_atomically(self._path(request.sequence, request.resumes), state_to_message(state).buffers())
        self._clean()

    def _path(self, sequence: int, resumes: int) -> Path:
        return self._directory / f"{sequence:010d}-{resumes:06d}.safetensors"

    def _clean(self) -> None:
        kept = {self._path(sequence, resumes) for sequence, (resumes, _) in self._kept.items()}
        for path in self._directory.glob("*.safetensors"):
            if path not in kept:
                path.unlink()
