"""Random combinations of what experiments can be made of: `check` refuses them, or they run as they should.

    python tests/stress combinations --minutes 60             # an hour
    python tests/stress combinations --minutes 10 --seed 1    # others
    python tests/stress combinations --replay 123             # one of them again, with tracebacks

`combining.py` has what is drawn, `judging.py` what must hold. Each is tried in a process of
its own, so that one that hangs or takes the process with it is a finding too. Results go to
`benchmarks/results/combinations.json` after each; the next call goes on.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import tomli_w
import torch
from combining import Trial, drawn
from evidence import RESULTS, Evidence
from judging import Verdict, judged

PATIENCE = 300  # seconds of one experiment, in all its runs
KEPT = 50  # findings
WARM = Trial({"name": "warm", "rounds": 1, "method": {"name": "fedavg"}, "data": {"clients": 2, "train": 20}})
PROCESSES = multiprocessing.get_context("fork")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--replay", type=int, metavar="K", help="only the K-th, which is not recorded")
    parser.add_argument("--out", type=Path, default=RESULTS / "combinations.json")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.replay is not None:
        replay(drawn(chosen.seed, chosen.replay))
        return
    evidence = Evidence(chosen.out, "combinations", chosen.seed)
    table = evidence.table
    if "drawn" not in table:
        table |= {"drawn": 0, "refused": 0, "ran": 0, "ended": 0, "runs": 0, "minutes": 0.0, "worlds": {}}
        table |= {"wrong": 0, "findings": []}
    with tempfile.TemporaryDirectory() as folder:
        judged(WARM, Path(folder))  # what is imported and made once is in every process then
    until = time.monotonic() + 60 * chosen.minutes
    while (began := time.monotonic()) < until:
        number = table["drawn"]
        trial = drawn(chosen.seed, number)
        add(table, number, trial, tried(trial))
        table["minutes"] = round(table["minutes"] + (time.monotonic() - began) / 60, 3)
        evidence.write()
    print(json.dumps({key: value for key, value in table.items() if key not in ("worlds", "findings")}, indent=1))


def tried(trial: Trial) -> Verdict:
    """What a process of its own found."""
    here, there = PROCESSES.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        process = PROCESSES.Process(target=_try, args=(trial, Path(folder), there))
        process.start()
        there.close()
        try:
            if not here.poll(PATIENCE):
                return Verdict("ran", findings=[f"it takes more than {PATIENCE} s"])
            return here.recv()
        except EOFError:
            process.join()
            return Verdict("ran", findings=[f"its process ends with code {process.exitcode}"])
        finally:
            process.kill()
            process.join()


def _try(trial: Trial, folder: Path, there: Connection) -> None:
    with there:
        there.send(judged(trial, folder))


def add(table: dict[str, Any], number: int, trial: Trial, verdict: Verdict) -> None:
    """Count it, and keep what was found."""
    table["drawn"] += 1
    table[verdict.outcome] += 1
    table["runs"] += verdict.runs
    if verdict.outcome != "refused":
        table["worlds"] = dict(Counter(table["worlds"]) + Counter([trial.table["name"]]))
    if verdict.findings:
        table["wrong"] += 1
        if len(table["findings"]) < KEPT:
            record = {"number": number, "found": verdict.findings, "ranks": trial.ranks}
            table["findings"].append({**record, "experiment": tomli_w.dumps(trial.table)})
        for found in verdict.findings:
            print(f"{number}, {trial.table['name']}: {found[:300]}", flush=True)


def replay(trial: Trial) -> None:
    """Show one of them, and what is wrong with it."""
    print(tomli_w.dumps(trial.table))
    with tempfile.TemporaryDirectory() as folder:
        verdict = judged(trial, Path(folder))
    print(*verdict.traces, sep="\n")
    print(f"{verdict.outcome}{', two ranks too' if trial.ranks else ''}: {verdict.why}")
    print(*verdict.findings or ["nothing is wrong"], sep="\n")
