"""Every random number of a run, derived from its seed and from what the number is for.

Nothing draws from a global generator, so results do not depend on the number of workers, on the order in which
replies arrive, or on where a run was interrupted.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_GLOBAL_GENERATOR = threading.RLock()


def derive(seed: int, *path: str | int) -> int:
    """A 63-bit seed for one purpose: `derive(seed, "cohort", round)`."""
    text = f"{seed}/" + "/".join(map(str, path))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def torch_generator(seed: int, *path: str | int) -> torch.Generator:
    """A PyTorch generator (CPU) for one purpose."""
    return torch.Generator().manual_seed(derive(seed, *path))


def numpy_generator(seed: int, *path: str | int) -> np.random.Generator:
    """A NumPy generator for one purpose."""
    return np.random.default_rng(derive(seed, *path))


def chance(seed: int, *path: str | int) -> float:
    """One uniform number in [0, 1) for one purpose."""
    return derive(seed, *path) / 2**63


def per_sample(seed: int, ids: Tensor, draws: int) -> Tensor:
    """Uniform numbers in [0, 1), `[N, draws]`, that depend on (seed, sample id) only, never on the batch.

    A SplitMix64 finaliser on `seed + id`: one vectorised pass, where one generator per sample would be a loop.
    """
    rows: npt.NDArray[np.uint64] = ids.numpy().astype(np.uint64)[:, None]
    counters: npt.NDArray[np.uint64] = np.add(rows * np.uint64(draws), np.arange(draws, dtype=np.uint64))
    z = counters * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return torch.from_numpy((z >> np.uint64(11)).astype(np.float64) / 2**53)


@contextmanager
def seeded_globals(seed: int) -> Iterator[None]:
    """Run code that can only draw from PyTorch's global generator (layer initialisation, dropout).

    One thread at a time; the generator's state before is restored after.
    """
    with _GLOBAL_GENERATOR:
        before = torch.get_rng_state()
        torch.default_generator.manual_seed(seed)
        try:
            yield
        finally:
            torch.set_rng_state(before)
