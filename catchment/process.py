"""What a process that trains asks of its C libraries.

Everything here is about speed, none of it about results, and what the user has set in the environment stays.
"""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # values of M_TRIM_THRESHOLD and so on in malloc.h


def set_up() -> None:
    """Threads that sleep while they wait, and memory that stays for the next batch.

    OpenMP reads its variable when PyTorch is imported: the command calls this before. In a process that has imported
    PyTorch already, the variable counts for the processes that it starts, and the memory for itself.
    """
    # Spinning OpenMP threads take the cores from workers and from other processes, and small models pay most for it.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if not any(name.startswith(("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")) for name in os.environ):
        keep_freed_memory()


def keep_freed_memory() -> bool:
    """Do not hand freed memory back to the system; True if the C library (glibc) took it.

    glibc by default returns large blocks at once and fetches zeroed pages for the next batch, so that training a small
    CNN spends much of its time on page faults. One arena for all threads lets workers use each other's memory.
    """
    mallopt = getattr(ctypes.CDLL(None) if os.name == "posix" else None, "mallopt", None)
    settings = ((_TRIM_THRESHOLD, 2**30), (_MMAP_THRESHOLD, 2**30), (_ARENA_MAX, 1))
    return mallopt is not None and all(mallopt(name, value) for name, value in settings)


def return_freed_memory() -> bool:
    """Hand freed memory back to the system now; True if the C library gave some.

    For large blocks that come seldom: what is allocated between them takes a bite out of the hole that each leaves, so
    that the next does not fit, and memory that is kept would grow with their number.
    """
    malloc_trim = getattr(ctypes.CDLL(None) if os.name == "posix" else None, "malloc_trim", None)
    return malloc_trim is not None and malloc_trim(0) == 1
