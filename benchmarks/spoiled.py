"""Replies that one client spoils, over every method, handler, field and scalar: none may do harm.

    python benchmarks/spoiled.py                             # two spoiled replies of each kind, an hour
    python benchmarks/spoiled.py --transport flower          # over Flower's transport, its fields spoiled too
    python benchmarks/spoiled.py --only fedgkt --budget 60   # one world, a minute at most; the next call goes on

Harm is a run that ends or hangs, an accuracy outside of 0 to 1, a loss of a million or more, an honest client whose
reply is not used, or memory beyond twice the honest peak. `tests/helpers/spoiling.py` has what is done to replies.
Results go to `benchmarks/results/spoiled.json` after each world.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from evidence import RESULTS, Evidence

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

import torch
from spoiled_nodes import field_ways, over_flower
from spoiling import WORLDS, Found, Spoiling, honest_run, small_experiment, sweep, ways

CARRIERS = {"inprocess": Spoiling, "flower": over_flower}

EXAMPLES = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transport", choices=CARRIERS, default="inprocess")
    parser.add_argument("--only", action="append", choices=WORLDS, help="a world; all without it")
    parser.add_argument("--each", type=int, default=2, help="spoiled replies of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds")
    parser.add_argument("--out", type=Path, default=RESULTS / "spoiled.json")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    until = time.monotonic() + chosen.budget
    evidence = Evidence(chosen.out, chosen.transport, chosen.seed)
    worlds = evidence.table.setdefault("worlds", {})
    for name in chosen.only or WORLDS:
        if name not in worlds and time.monotonic() < until:
            worlds[name] = measure(name, chosen, until)
            if worlds[name] is None:
                del worlds[name]
                break
            evidence.table["spoiled"] = sum(world["spoiled"] for world in worlds.values())
            evidence.table["harm"] = sum(world["harm"] for world in worlds.values())
            evidence.table["largest_memory"] = max(world["memory"] for world in worlds.values())
            evidence.write()
    print(json.dumps({key: value for key, value in evidence.table.items() if key != "worlds"}, indent=1))


def measure(name: str, chosen: argparse.Namespace, until: float) -> dict[str, Any] | None:
    """What spoiled replies do to one world; None if there was no time for all of them."""
    trial = small_experiment(name)
    carrier = CARRIERS[chosen.transport]
    replies, memory = honest_run(trial, carrier)
    spoils = [way for handler, reply in replies.items() for way in ways(handler, reply, replies)] * chosen.each
    if chosen.transport == "flower":
        spoils += field_ways(replies) * chosen.each
    random.Random(f"{chosen.seed} {name}").shuffle(spoils)
    found = Found()
    for _ in sweep(trial, spoils, memory, found, carrier):
        if time.monotonic() > until:
            return None
    print(f"{name}: {found.spoiled} spoiled, {dict(found.outcomes)}, memory {found.memory:.2f}", flush=True)
    for spoil, why in found.harm:
        print(f"    {spoil} -> {why[:200]}", flush=True)
    return {
        "handlers": list(replies),
        "spoiled": found.spoiled,
        "unreached": len(found.unreached),
        "outcomes": dict(found.outcomes),
        "harm": len(found.harm),
        "causes": dict(Counter(why[:100] for _, why in found.harm).most_common(EXAMPLES)),
        "memory": round(found.memory, 3),
    }


if __name__ == "__main__":
    main()
