"""This process: its rank in a job, and the settings of the C libraries under PyTorch, for threads and memory.

The settings change speed, never results, and do not override what the user has set in the environment.
"""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # values of M_TRIM_THRESHOLD and so on in malloc.h


JOB = "TORCHELASTIC_RUN_ID"  # a variable that torchrun sets


def this_rank() -> int | None:
    """The number of this process in its job; None outside of `torchrun`."""
    return int(os.environ["RANK"]) if JOB in os.environ else None


def set_up() -> None:
    """Let idle OpenMP threads sleep, and keep freed memory for the next batch.

    OpenMP reads its variable when PyTorch is imported, so the command calls this before. Where PyTorch is imported
    already, the thread setting only reaches child processes; the memory setting takes effect at once.
    """
    # Spinning OpenMP threads take cores from workers and from other processes, which slows small models most.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if not any(name.startswith(("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")) for name in os.environ):
        keep_freed_memory()


def keep_freed_memory() -> bool:
    """Do not return freed memory to the system; True if the C library (glibc) accepted the settings.

    By default glibc returns large blocks at once and fetches zeroed pages for the next batch, so that training a small
    CNN spends much of its time on page faults. One arena for all threads lets workers reuse each other's memory.
    """
    mallopt = getattr(ctypes.CDLL(None) if os.name == "posix" else None, "mallopt", None)
    settings = ((_TRIM_THRESHOLD, 2**30), (_MMAP_THRESHOLD, 2**30), (_ARENA_MAX, 1))
    return mallopt is not None and all(mallopt(name, value) for name, value in settings)


def return_freed_memory() -> bool:
    """Return freed memory to the system now; True if the C library returned some.

    For large, rare blocks: smaller allocations fragment the hole that each one leaves, the next one does not fit, and
    kept memory would grow with their number.
    """
    malloc_trim = getattr(ctypes.CDLL(None) if os.name == "posix" else None, "malloc_trim", None)
    return malloc_trim is not None and malloc_trim(0) == 1
