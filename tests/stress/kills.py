"""Runs that are killed at random moments and go on, until they end: each must leave what the undisturbed run leaves.

    python tests/stress kills inprocess                 # 1,000 kills of 21 experiments in one process, half an hour
    python tests/stress kills flower                    # 100 kills of server and clients over Flower, half an hour
    python tests/stress kills inprocess --budget 600    # stop after ten minutes; the next call goes on

In one process, a life of a run is a forked process, killed with SIGKILL in a round that was drawn, at a moment of it
that was drawn; the next life resumes it, and may be killed too. Over Flower, the process of the server routine, that of
a client, both, or the process that watches over them and all with it are killed; the undisturbed run is one without
Flower. Result, rounds and ledger must be equal to the byte, less wall times. Moments are drawn from the seed, but where
they fall in the program depends on the machine. Results go to `benchmarks/results/kills.json` after each run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import preloaded
import psutil
from evidence import RESULTS, Evidence
from federations import ROUTINE
from jobs import rounds_done
from lives import CASES, live

from catchment.flower.federation import end_with_parent
from catchment.testing import Outcome

__all__ = ["preloaded"]
KILLS = 11  # of one run, at most
OVER_FLOWER: dict[str, dict[str, Any]] = {
    name: {"rounds": 25, "data": {"clients": 3}, "participation": {"fraction": 1.0}}
    for name in ("fedavg", "standalone", "fedgkt", "fedgkt, coded", "dgc", "fedmd", "split learning", "fedzkt")
}
VICTIMS = {("server",): 35, ("client",): 40, ("server", "client"): 10, ("all",): 15}  # with their weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("--kills", type=int, help="1,000 in one process and 100 over Flower if not given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds")
    parser.add_argument("--out", type=Path, default=RESULTS / "kills.json")
    chosen = parser.parse_args()
    until = time.monotonic() + chosen.budget
    engine = ENGINES[chosen.engine]
    report = Report(Evidence(chosen.out, chosen.engine, chosen.seed))
    each = -(-(chosen.kills or engine.kills) // len(engine.cases))
    for name in engine.cases:
        with tempfile.TemporaryDirectory() as folder:
            disturb(name, engine, each, report, Path(folder), until)
    print(json.dumps(report.table, indent=1))


class Report:
    """What was found, on the disk after each run."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self.table = evidence.table
        if "cases" not in self.table:
            self.table |= {"kills": 0, "killed": {}, "runs": 0, "unequal": [], "cases": {}}

    def case(self, name: str) -> dict[str, int]:
        return self.table["cases"].setdefault(name, {"runs": 0, "kills": 0})

    def add(self, name: str, trial: int, killed: list[str], equal: bool) -> None:
        """One run that ended after these were killed."""
        for counts in (self.case(name), self.table):
            counts["runs"] += 1
            counts["kills"] += len(killed)
        for what in killed:
            self.table["killed"][what] = self.table["killed"].get(what, 0) + 1
        if not equal:
            self.table["unequal"].append([name, trial])
        self._evidence.write()
        said = "equal" if equal else "UNEQUAL"
        print(f"{self.table['kills']:5} kills; {name}, run {trial}: {len(killed)} kills, {said}", flush=True)


def disturb(name: str, engine: Engine, kills: int, report: Report, folder: Path, until: float) -> None:
    """Runs of one experiment, until so many kills were made."""
    case, settings = report.case(name), engine.cases[name]
    if case["kills"] >= kills or time.monotonic() > until:
        return
    began = time.monotonic()
    end(fork(name, settings, folder / "whole"))
    round_length = (time.monotonic() - began) / settings["rounds"]
    while case["kills"] < kills and time.monotonic() < until:
        trial = case["runs"]
        broken = folder / f"broken-{trial}"
        draw = random.Random(f"{report.table['seed']} {name} {trial}")
        killed = engine.disturbed(name, settings, broken, draw, round_length)
        equal = engine.left(broken) == engine.left(folder / "whole")
        report.add(name, trial, killed, equal)
        if not equal:
            kept = Path(tempfile.mkdtemp(prefix="unequal-"))
            shutil.copytree(folder / "whole", kept / "whole")
            shutil.copytree(broken, kept / "broken")
            print(f"both runs are kept in {kept}", flush=True)
        shutil.rmtree(broken)


def fork(name: str, settings: dict[str, Any], out: Path) -> int:
    """One life of a run, in a process of its own that has everything imported."""
    process = os.fork()
    if process == 0:
        end_with_parent()
        code = 1
        try:
            live(name, settings, out)
            code = 0
        finally:
            os._exit(code)
    return process


def end(process: int) -> None:
    """Let a life come to its end."""
    if os.waitpid(process, 0)[1] != 0:
        sys.exit("a life ended by itself, and not well")


def ended(process: int) -> bool:
    """Whether a life came to its end, a millisecond later."""
    time.sleep(0.001)
    found, status = os.waitpid(process, os.WNOHANG)
    if found and status != 0:
        sys.exit("a life ended by itself, and not well")
    return bool(found)


def survived(process: int, out: Path, draw: random.Random, round_length: float) -> bool:
    """Wait for a moment in this round or one of the next two; whether the run was over before it."""
    goal = rounds_done(out) + draw.choice([0, 1, 1, 2])
    while rounds_done(out) < goal:
        if ended(process):
            return True
    moment = time.monotonic() + draw.uniform(0, round_length)
    while time.monotonic() < moment:
        if ended(process):
            return True
    return False


def in_process(name: str, settings: dict[str, Any], out: Path, draw: random.Random, round_length: float) -> list[str]:
    """A run to its end; what was killed, and whether it was in the middle of writing a file."""
    killed: list[str] = []
    while len(killed) < KILLS:
        process = fork(name, settings, out)
        if survived(process, out, draw, round_length):
            return killed
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        killed.append("while writing" if any(out.rglob("*.part")) else "between writes")
    end(fork(name, settings, out))
    return killed


# ---- over Flower ------------------------------------------------------------------------------------------------


def over_flower(name: str, settings: dict[str, Any], out: Path, draw: random.Random, round_length: float) -> list[str]:
    """A run to its end; who was killed."""
    settings = {**settings, "engine": "flower"}
    killed: list[str] = []
    watcher = fork(name, settings, out)
    while len(killed) < KILLS:
        if survived(watcher, out, draw, 4 * round_length):
            return killed
        victims = draw.choices(list(VICTIMS), list(VICTIMS.values()))[0]
        if victims == ("all",):
            os.kill(watcher, signal.SIGKILL)
            os.waitpid(watcher, 0)
            watcher = fork(name, settings, out)
        for victim in victims:
            words = {"server": ROUTINE, "client": f"client-{draw.randrange(settings['data']['clients'])}.toml"}
            if victim in words and not kill_child(watcher, words[victim]):
                break
        else:
            killed.append(" and ".join(victims))
    end(watcher)
    return killed


def kill_child(parent: int, word: str) -> bool:
    """Kill the process that another started with a word in its command line; whether there is one."""
    for child in psutil.Process(parent).children():
        with contextlib.suppress(psutil.Error):
            if word in " ".join(child.cmdline()):
                child.kill()
                return True
    return False


def less_news(out: Path) -> Outcome:
    return Outcome.of(out).less_news()


class Engine(NamedTuple):
    """What is killed, and how."""

    cases: dict[str, dict[str, Any]]
    kills: int
    disturbed: Callable[[str, dict[str, Any], Path, random.Random, float], list[str]]
    left: Callable[[Path], Any]


ENGINES = {
    "inprocess": Engine(CASES, 1000, in_process, Outcome.of),
    "flower": Engine(OVER_FLOWER, 100, over_flower, less_news),
}
