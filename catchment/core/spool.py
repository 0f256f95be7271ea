"""Uploads that are too large for memory: kept in a file without a name, read back as tensors.

The file is unlinked as soon as it is open, so a process leaves nothing behind however it ends. What is written stays
in the system's page cache as long as there is room and is on the disk otherwise; either way it is not memory of this
process. Where the system's folder for temporary files lies in memory, name a folder on a disk.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import weakref
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from catchment.core.stopwatch import Stopwatch
from catchment.errors import ProtocolError, RunError
from catchment.process import return_freed_memory

PASSING = 192 * 2**20  # bytes of uploads after which their memory is returned to the system, which has a cost
RESIDENT = 256 * 2**20  # bytes; a file up to this size may stay in this process's memory once it is read


# ---- bytes ------------------------------------------------------------------------------------------------------


class Scratch:
    """Bytes by key, in one file without a name.

    Threads may write, read and remove at the same time, each its own keys; the mapping is for one thread.
    """

    def __init__(self, directory: str | Path | None = None) -> None:
        self._directory = Path(tempfile.gettempdir() if directory is None else directory)
        self._lock = threading.Lock()
        self._places: dict[int, tuple[int, int]] = {}  # key -> offset, bytes
        self._end = 0  # of the farthest place so far
        self._top = 0  # of the farthest place now
        self._gaps: dict[int, int] = {}  # below the top, by offset: where they end; no two adjoin
        self._gaps_by_end: dict[int, int] = {}  # the same by end: their offset
        self._gaps_by_size: list[tuple[int, int]] = []  # the same, ascending: size and offset
        self._descriptor: int | None = None  # the file is made when the first bytes come
        self._closing: weakref.finalize[[int], Scratch] | None = None
        self._mapping: mmap.mmap | None = None

    def __contains__(self, key: int) -> bool:
        return key in self._places

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._end

    def place(self, key: int) -> tuple[int, int]:
        """Offset in the file and number of bytes."""
        return self._places[key]

    def write(self, key: int, nbytes: int, buffers: Iterable[bytes | memoryview]) -> None:
        """Keep the bytes of a key, `nbytes` in all; its old bytes are gone even if writing fails."""
        with self._lock:
            descriptor = self._open()
            offset, before = self._places.get(key, (0, -1))
            if before != nbytes:
                self._forget(key)
                offset = self._room(nbytes)
                self._places[key] = (offset, nbytes)
        try:
            for buffer in buffers:
                self._write_at(descriptor, offset, buffer)
                offset += len(buffer)
        except BaseException:
            self.remove(key)
            raise

    def read(self, key: int) -> bytes:
        """A copy of the bytes of a key."""
        content = bytearray(self._places[key][1])
        self.read_into(memoryview(content), self._places[key][0])
        return bytes(content)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill a buffer with the bytes that begin at an offset of the file; the mapping is not touched."""
        while buffer:  # one call gives at most 2 GiB
            given = os.preadv(self._open(), [buffer], offset)
            if not given:
                raise RunError(f"a temporary file in {self._directory} ends before byte {offset:,}; it was changed")
            buffer, offset = buffer[given:], offset + given

    def remove(self, key: int) -> None:
        """Forget a key; its space is reused, and freed with the last key."""
        with self._lock:
            self._forget(key)
            if not self._places:
                self._close()

    def clear(self) -> None:
        """Forget everything; the space is freed once nobody uses the mapping any more."""
        with self._lock:
            self._places.clear()
            self._close()

    def mapping(self) -> mmap.mmap | None:
        """The whole file as memory, remade when the file has grown; None while it is empty.

        It is writable only because PyTorch warns about read-only memory. An old mapping stays valid while it is used,
        even after the file is cleared, which is why a file is never truncated.
        """
        if self._descriptor is not None:
            size = os.fstat(self._descriptor).st_size
            if size > (0 if self._mapping is None else len(self._mapping)):
                self.release()
                self._mapping = mmap.mmap(self._descriptor, size)
        return self._mapping

    def release(self) -> None:
        """Take the mapping's pages out of the memory of this process; they come back when they are read."""
        if self._mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._mapping.madvise(mmap.MADV_DONTNEED)

    def _open(self) -> int:
        """The file, made under the lock by the first write; there is one as long as there is a key."""
        if self._descriptor is None:
            try:
                with tempfile.TemporaryFile(dir=self._directory) as file:
                    self._descriptor = os.dup(file.fileno())
            except OSError as error:
                raise RunError(f"no temporary file can be made in {self._directory}: {error.strerror}") from error
            self._closing = weakref.finalize(self, os.close, self._descriptor)
        return self._descriptor

    def _close(self) -> None:
        if self._closing is not None:
            self._closing()
        self._descriptor = self._closing = self._mapping = None
        self._end = self._top = 0
        for gaps in (self._gaps, self._gaps_by_end, self._gaps_by_size):
            gaps.clear()

    def _forget(self, key: int) -> None:
        """Make a gap of the place of a key, joined with those beside it."""
        offset, size = self._places.pop(key, (0, 0))
        end = offset + size
        if not size:
            return
        if end in self._gaps:
            end = self._close_gap(end)
        if offset in self._gaps_by_end:
            offset = self._gaps_by_end[offset]
            self._close_gap(offset)
        if end == self._top:
            self._top = offset
        else:
            self._open_gap(offset, end)

    def _room(self, nbytes: int) -> int:
        """Where there is room: in the smallest gap that is large enough, or at the top."""
        at = bisect_left(self._gaps_by_size, (nbytes, 0))
        if nbytes and at < len(self._gaps_by_size):
            offset = self._gaps_by_size[at][1]
            end = self._close_gap(offset)
            if offset + nbytes < end:
                self._open_gap(offset + nbytes, end)
            return offset
        offset, self._top = self._top, self._top + nbytes
        self._end = max(self._end, self._top)
        return offset

    def _open_gap(self, offset: int, end: int) -> None:
        self._gaps[offset], self._gaps_by_end[end] = end, offset
        insort(self._gaps_by_size, (end - offset, offset))

    def _close_gap(self, offset: int) -> int:
        """Where it ended."""
        end = self._gaps.pop(offset)
        del self._gaps_by_end[end]
        del self._gaps_by_size[bisect_left(self._gaps_by_size, (end - offset, offset))]
        return end

    def _write_at(self, descriptor: int, offset: int, buffer: bytes | memoryview) -> None:
        rest = memoryview(buffer)
        try:
            while rest:  # one call takes at most 2 GiB
                written = os.pwrite(descriptor, rest, offset)
                rest, offset = rest[written:], offset + written
        except OSError as error:
            raise RunError(
                f"{len(buffer):,} bytes of an upload cannot be written to a temporary file in {self._directory}: "
                f"{error.strerror}; free some space there, or put --out (and data.root, if it is what fills the disk) "
                "on another disk"
            ) from error


# ---- rows -------------------------------------------------------------------------------------------------------


class Spool:
    """Rows of equal shape, by key (a client), in one memory-mapped file.

    Memory is bounded by what is taken out at a time. For one thread.
    """

    def __init__(self, directory: str | Path | None = None, stopwatch: Stopwatch | None = None) -> None:
        self._scratch = Scratch(directory)
        self._stopwatch = stopwatch or Stopwatch()
        self._counts: dict[int, int] = {}
        self._shape: tuple[int, ...] = ()  # of a row; the first put decides
        self._dtype = torch.float32
        self._nbytes = 0  # of a row; 0 before the first put
        self._passed = 0  # bytes that were put since memory was given back

    def __len__(self) -> int:
        return sum(self._counts.values())

    def __contains__(self, key: int) -> bool:
        return key in self._counts

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def keys(self) -> list[int]:
        """Who has put rows, ascending."""
        return sorted(self._counts)

    def count(self, key: int) -> int:
        """How many rows a key has."""
        if key not in self._counts:
            raise ProtocolError(f"nobody has put rows under {key}; there are rows under {self.keys()[:20]}")
        return self._counts[key]

    def put(self, key: int, rows: Tensor) -> None:
        """Keep the rows [n, ...] of a key instead of those it had."""
        self._check(key, rows)
        with self._stopwatch.during("disk"):
            self._put(key, rows)

    def _put(self, key: int, rows: Tensor) -> None:
        self.release()
        self._forget_passed()
        raw = _bytes_of(rows.detach().cpu().contiguous())
        self._passed += len(raw)
        try:
            self._scratch.write(key, len(rows) * self._nbytes, [raw])
        except BaseException:
            self._counts.pop(key, None)
            raise
        self._counts[key] = len(rows)

    def rows(self, key: int) -> Tensor:
        """The rows of a key as they lie in the file, [n, ...]: nothing is copied, and nothing in it may be changed.

        The next put may change them. What is read of them stays in the memory of this process until `release` or `put`.
        """
        count = self.count(key)
        first = self._scratch.place(key)[0] // self._nbytes if count else 0
        return self._whole()[first : first + count]

    def take(self, keys: Sequence[int], index: Tensor) -> Tensor:
        """Copies of rows, [len(index), ...], numbered through the rows of these keys one after the other."""
        self._forget_passed()
        counts = [self.count(key) for key in keys]
        total = sum(counts)
        if len(index) and not 0 <= int(index.min()) <= int(index.max()) < total:
            raise ProtocolError(
                f"rows {int(index.min())} to {int(index.max())} are wanted; {len(keys)} keys have {total:,}, "
                "numbered from 0"
            )
        firsts = [self._scratch.place(key)[0] // self._nbytes if count else 0 for key, count in zip(keys, counts)]
        ends = torch.tensor(counts, dtype=torch.int64).cumsum(0)
        shift = torch.tensor(firsts, dtype=torch.int64) - ends + torch.tensor(counts, dtype=torch.int64)
        index = index.cpu()
        index = index + shift[torch.searchsorted(ends, index, right=True)]  # rows of the file
        if self._scratch.size <= RESIDENT:
            return self._whole().index_select(0, index)
        # Through a mapping, one row that is read may bring in 2 MiB around it, and all of the file in the end.
        taken = torch.empty(len(index), *self._shape, dtype=self._dtype)
        raw, places = _bytes_of(taken), index.tolist()
        for begin, end in _runs(places):
            self._scratch.read_into(raw[begin * self._nbytes : end * self._nbytes], places[begin] * self._nbytes)
        return taken

    def release(self) -> None:
        """Take what was read out of the memory of this process; it comes back when it is read again."""
        self._scratch.release()

    def clear(self) -> None:
        """Forget everything, also the shape, and free the disk space; views that are still held stay valid."""
        self._scratch.clear()
        self._counts.clear()
        self._nbytes = 0

    def close(self) -> None:
        """The same as `clear`."""
        self.clear()

    def _forget_passed(self) -> None:
        """Return the memory of uploads that are in the file by now to the system."""
        if self._passed > PASSING:
            return_freed_memory()
            self._passed = 0

    def _whole(self) -> Tensor:
        """All rows of the file, also those that no key has any more."""
        mapping = self._scratch.mapping()
        count = 0 if mapping is None else len(mapping) // self._nbytes  # less a last row that was not written whole
        if mapping is None or not count:
            return torch.empty(0, *self._shape, dtype=self._dtype)
        elements = count * (self._nbytes // self._dtype.itemsize)
        return torch.frombuffer(mapping, dtype=self._dtype, count=elements).view(count, *self._shape)

    def _check(self, key: int, rows: Tensor) -> None:
        """Take the shape of the first rows; refuse others."""
        if not rows.ndim or 0 in rows.shape[1:]:
            raise ProtocolError(
                f"rows of shape {list(rows.shape)} came for {key}; [n, ...] is expected, and no 0 in it"
            )
        given, known = (rows.dtype, tuple(rows.shape[1:])), (self._dtype, self._shape)
        if not self._nbytes:
            self._dtype, self._shape = given
            self._nbytes = rows.shape[1:].numel() * rows.dtype.itemsize
        elif given != known:
            raise ProtocolError(
                f"a row of {key} is {_described(*given)}; the rows that are there are {_described(*known)}, and all "
                "rows of a spool are alike: use a spool for each shape, or clear this one first"
            )


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _runs(places: list[int]) -> Iterator[tuple[int, int]]:
    """Where runs of adjacent positions begin and end in a list: each run is read at once."""
    begin = 0
    for end in range(1, len(places) + 1):
        if end == len(places) or places[end] != places[end - 1] + 1:
            yield begin, end
            begin = end


def _described(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    return f"{str(dtype).removeprefix('torch.')} of shape {list(shape)}"


def on_disk(tensor: Tensor, directory: str | Path | None = None) -> Tensor:
    """A copy of a tensor with elements in a file without a name, which is freed with the tensor.

    No descriptor stays open, as it would with `mmap`: there may be many such tensors.
    """
    plain = tensor.detach().cpu().contiguous()
    scratch = Scratch(directory)
    scratch.write(0, plain.nbytes, [_bytes_of(plain)])
    return torch.from_file(f"/dev/fd/{scratch._open()}", size=plain.numel(), dtype=plain.dtype).view(plain.shape)
