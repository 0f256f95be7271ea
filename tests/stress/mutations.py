"""A million messages that were changed on their way: each is refused or sound, and none takes memory.

    python tests/stress mutations                   # a million, a quarter of an hour
    python tests/stress mutations --budget 60       # a minute; the next call goes on

Requests and replies of every handler of every method, and of all codecs, are changed as `mutating.py`
says and read as server and client read them. Memory is the resident size of the process, its peak over every thousand
messages. Results go to `benchmarks/results/mutations.json`.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from evidence import RESULTS, Evidence
from mutating import coded_target, flower_target, mutate, targets_of
from spoiling import WORLDS, peak_memory, reset_peak

BATCH = 1000
KEPT = 10  # of what escaped


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds")
    parser.add_argument("--out", type=Path, default=RESULTS / "mutations.json")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    until = time.monotonic() + chosen.budget
    table = (evidence := Evidence(chosen.out, "messages", chosen.seed)).table
    table.setdefault("read", 0)
    targets = [target for name in WORLDS for target in targets_of(name)]
    targets += [coded_target()] * (len(targets) // 4) + [flower_target()] * (len(targets) // 10)
    table["targets"] = len({target.name for target in targets})
    table["largest_target_bytes"] = max(len(target.raw) for target in targets)
    print(f"{len(targets)} messages to change", flush=True)
    while table["read"] < chosen.messages and time.monotonic() < until:
        batch(table, targets, chosen.seed)
        if table["read"] % (20 * BATCH) == 0:
            evidence.write()
            print(f"{table['read']:,} read, {table['escaped']} escaped, {table['most_memory_MB']} MB", flush=True)
    evidence.write()
    print(json.dumps(table, indent=1))


def batch(table: dict, targets: list, seed: int) -> None:
    """A thousand more."""
    before = resident()
    reset_peak()
    outcome = mutate(targets, BATCH, f"{seed} {table['read']}")
    grown = round((peak_memory() - before) / 1e6, 1)
    table["read"] += BATCH
    table["escaped"] = table.get("escaped", 0) + len(outcome.escaped)
    table["examples"] = [*table.get("examples", []), *outcome.escaped][:KEPT]
    table["most_memory_MB"] = max(grown, table.get("most_memory_MB", 0.0))
    kinds = table.setdefault("mutations", {})
    for kind, counts in outcome.read.items():
        sums = kinds.setdefault(kind, {})
        for said, count in counts.items():
            sums[said] = sums.get(said, 0) + count


def resident() -> int:
    """Bytes of this process that are in memory now."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
