"""Replies that one client spoils, over every method, handler, field and scalar: none may do harm.

    python tests/stress spoiled                             # two spoiled replies of each kind, an hour
    python tests/stress spoiled --transport flower          # over Flower's transport, its fields spoiled too
    python tests/stress spoiled --only fedgkt --budget 60   # one world, a minute at most; the next call goes on

Harm is a run that ends or hangs, an accuracy outside of 0 to 1, a loss of a million or more, an honest client whose
reply is not used, or memory beyond twice the honest peak. `spoiling.py` has what is done to replies.
Results go to `benchmarks/results/spoiled.json` after every few.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from evidence import RESULTS, Evidence
from spoiled_nodes import field_ways, over_flower
from spoiling import WORLDS, Found, Spoiling, honest_run, small_experiment, sweep, ways

CARRIERS = {"inprocess": Spoiling, "flower": over_flower}

PIECE = 60  # spoiled replies between two looks at the clock
EXAMPLES = 5  # of causes of harm


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
    known = evidence.table.setdefault("worlds", {})
    worlds = {name: World(name, chosen, known.get(name)) for name in chosen.only or WORLDS}
    while (left := [world for world in worlds.values() if world.left]) and time.monotonic() < until:
        world = min(left, key=lambda world: world.table["tried"] / world.total)
        world.go_on()
        known[world.name] = world.table
        evidence.table["spoiled"] = sum(table["spoiled"] for table in known.values())
        evidence.table["harm"] = sum(table["harm"] for table in known.values())
        for measure in ("memory", "grown_MB"):
            evidence.table[f"largest_{measure}"] = max(table[measure] for table in known.values())
        evidence.write()
        print(f"{evidence.table['spoiled']:6} spoiled, {evidence.table['harm']} harm; {world.name}", flush=True)
    print(json.dumps({key: value for key, value in evidence.table.items() if key != "worlds"}, indent=1))


class World:
    """One experiment: what is done to its replies, and what was found so far."""

    def __init__(self, name: str, chosen: argparse.Namespace, known: dict[str, Any] | None) -> None:
        self.name = name
        self.trial = small_experiment(name)
        self.carrier = CARRIERS[chosen.transport]
        self.replies, self.memory = honest_run(self.trial, self.carrier)
        spoils = [way for handler, reply in self.replies.items() for way in ways(handler, reply, self.replies)]
        if chosen.transport == "flower":
            spoils += field_ways(self.replies)
        draw = random.Random(f"{chosen.seed} {name}")
        self.spoils = [spoil for _ in range(chosen.each) for spoil in draw.sample(spoils, len(spoils))]
        self.table: dict[str, Any] = known or {
            "handlers": list(self.replies),
            **dict.fromkeys(("tried", "spoiled", "unreached", "harm"), 0),
            "memory": 0.0,
            "grown_MB": 0.0,
            "outcomes": {},
            "causes": {},
        }

    @property
    def total(self) -> int:
        return len(self.spoils)

    @property
    def left(self) -> int:
        return self.total - self.table["tried"]

    def go_on(self) -> None:
        """Try the next few."""
        table, found = self.table, Found()
        spoils = self.spoils[table["tried"] : table["tried"] + PIECE]
        for _ in sweep(self.trial, spoils, self.memory, found, self.carrier):
            pass
        table["tried"] += len(spoils)
        table["spoiled"] += found.spoiled
        table["unreached"] += len(found.unreached)
        table["harm"] += len(found.harm)
        table["memory"] = max(table["memory"], round(found.memory, 3))
        table["grown_MB"] = max(table["grown_MB"], round(found.grown / 1e6, 1))
        table["outcomes"] = dict(Counter(table["outcomes"]) + found.outcomes)
        causes = Counter(table["causes"]) + Counter(why[:100] for _, why in found.harm)
        table["causes"] = dict(causes.most_common(EXAMPLES))
        for spoil, why in found.harm:
            print(f"    {spoil} -> {why[:300]}", flush=True)
