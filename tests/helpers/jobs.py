"""Jobs of ranks, as torchrun makes them: rank 0 is this process, the others are commands."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from catchment.simulation.ranks import Ranks

COMMAND = (sys.executable, "-m", "catchment", "run", "what rank 0 runs")


def surroundings(rank: int, size: int, port: int) -> dict[str, str]:
    """The variables that torchrun sets."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    return {name: str(number) for name, number in numbers.items()} | {
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_RUN_ID": "test",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }


@contextmanager
def job(size: int, code: int = 0) -> Iterator[tuple[Ranks, list[subprocess.Popen[bytes]]]]:
    """A job with this number of ranks: what rank 0 has, and the processes of the others, which end with a code."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    others = [
        subprocess.Popen(COMMAND, env=os.environ | surroundings(rank, size, port), cwd=Path(__file__).parent)
        for rank in range(1, size)
    ]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in surroundings(0, size, port).items():
            patch.setenv(name, value)
        ranks = Ranks()
    try:
        yield ranks, others
    finally:
        ranks.close()
        for process in others:
            try:
                assert process.wait(60) == code
            finally:
                process.kill()


def rounds_done(out: Path) -> int:
    """Rounds of a run that are over."""
    path = out / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0
