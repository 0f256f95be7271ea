"""Runs that are killed at random moments and resumed, until they end: each must leave what the undisturbed run leaves.

    python benchmarks/kills.py inprocess                     # 1,000 kills of 21 experiments in one process, an hour
    python benchmarks/kills.py inprocess --budget 600        # stop after ten minutes; the next call goes on

A life of a run is a forked process, killed with SIGKILL in a round that was drawn, at a moment of it that was drawn;
the next life resumes it, and may be killed too. Result, rounds and ledger must be equal to the byte, less wall times.
Moments are drawn from the seed, but where they fall in the program depends on the machine. Results go to
`benchmarks/results/kills.json` after each run that ended; they are begun anew when the program has changed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "helpers"))

import preloaded  # noqa: E402
import torch  # noqa: E402
from lives import CASES, contents, live, rounds_done  # noqa: E402

import catchment  # noqa: E402
from catchment.checkpoint import write_atomically  # noqa: E402

__all__ = ["preloaded"]
RESULTS = HERE / "results" / "kills.json"
LIVES = 12  # of one run, at most; the last is left alone


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=["inprocess"])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds")
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    until = time.monotonic() + chosen.budget
    report = Report(chosen.out, chosen.engine, chosen.seed)
    each = -(-chosen.kills // len(CASES))
    for name in CASES:
        with tempfile.TemporaryDirectory() as folder:
            in_process(name, each, report, Path(folder), until)
    print(json.dumps(report.table, indent=1))


class Report:
    """What was found, on the disk after each run."""

    def __init__(self, path: Path, engine: str, seed: int) -> None:
        self.path, self.engine = path, engine
        known = json.loads(path.read_text()).get(engine, {}) if path.exists() else {}
        self.table: dict[str, Any] = {
            "seed": seed,
            "program": program(),
            "torch": torch.__version__,
            "python": sys.version.split()[0],
            "kills": 0,
            "kills_while_writing": 0,
            "runs": 0,
            "unequal": [],
            "cases": {},
        }
        if all(known.get(key) == self.table[key] for key in ("seed", "program", "torch", "python")):
            self.table = known

    def case(self, name: str) -> dict[str, int]:
        return self.table["cases"].setdefault(name, {"runs": 0, "kills": 0})

    def add(self, name: str, trial: int, kills: int, while_writing: int, equal: bool) -> None:
        """One run that ended after so many kills."""
        case = self.case(name)
        for counts in (case, self.table):
            counts["runs"] += 1
            counts["kills"] += kills
        self.table["kills_while_writing"] += while_writing
        if not equal:
            self.table["unequal"].append([name, trial])
        whole = json.loads(self.path.read_text()) if self.path.exists() else {}
        write_atomically(self.path, (json.dumps({**whole, self.engine: self.table}, indent=1) + "\n").encode())
        print(f"{self.table['kills']:5} kills; {name}, run {trial}: {kills} kills, {'equal' if equal else 'UNEQUAL'}")


def program() -> str:
    """A short hash of the program that is being tested."""
    digest = hashlib.sha256()
    for path in sorted(Path(catchment.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


# ---- in one process ---------------------------------------------------------------------------------------------


def in_process(name: str, kills: int, report: Report, folder: Path, until: float) -> None:
    """Runs of one experiment, until so many kills were made."""
    case = report.case(name)
    if case["kills"] >= kills or time.monotonic() > until:
        return
    began = time.monotonic()
    if os.waitpid(fork(name, folder / "whole"), 0)[1] != 0:
        sys.exit(f"{name} does not run undisturbed")
    round_length = (time.monotonic() - began) / CASES[name]["rounds"]
    while case["kills"] < kills and time.monotonic() < until:
        trial = case["runs"]
        broken = folder / f"broken-{trial}"
        killed, writing = disturbed(name, broken, random.Random(f"{report.table['seed']} {name} {trial}"), round_length)
        equal = contents(broken) == contents(folder / "whole")
        report.add(name, trial, killed, writing, equal)
        if equal:
            shutil.rmtree(broken)
        else:
            kept = Path(tempfile.mkdtemp(prefix="unequal-"))
            shutil.move(broken, kept / "broken")
            shutil.copytree(folder / "whole", kept / "whole")
            print(f"both runs are kept in {kept}")


def disturbed(name: str, out: Path, moments: random.Random, round_length: float) -> tuple[int, int]:
    """A run to its end; how often it was killed, and how often in the middle of writing a file."""
    kills = writing = 0
    for _ in range(LIVES - 1):
        process = fork(name, out)
        goal = rounds_done(out) + moments.choice([0, 1, 1, 2])
        ended = 0
        while not ended and rounds_done(out) < goal:
            ended = waited(process)
        moment = time.monotonic() + moments.uniform(0, round_length)
        while not ended and time.monotonic() < moment:
            ended = waited(process)
        if ended:
            return kills, writing
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        kills += 1
        writing += any(out.rglob("*.part"))
    if os.waitpid(fork(name, out), 0)[1] != 0:
        sys.exit(f"{name} does not go on after {kills} kills; see {out}")
    return kills, writing


def fork(name: str, out: Path) -> int:
    """One life of a run, in a process of its own that has everything imported."""
    process = os.fork()
    if process == 0:
        code = 1
        try:
            live(name, out)
            code = 0
        finally:
            os._exit(code)
    return process


def waited(process: int) -> bool:
    """Whether a life came to its end, a millisecond later."""
    time.sleep(0.001)
    found, status = os.waitpid(process, os.WNOHANG)
    if found and status != 0:
        sys.exit("a life ended by itself, and not well")
    return bool(found)


if __name__ == "__main__":
    main()
