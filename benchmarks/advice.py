"""What `catchment plan --advise --try` is worth: its first choice beside the best of all methods and rates run in full.

    python benchmarks/advice.py                    # half an hour of one core; goes on where it was stopped
    python benchmarks/advice.py --only digits      # three minutes

For each data set, trials choose a method and a rate, and then every method that fits is run with every rate in full:
all samples, all rounds, two seeds, measured on test samples. `lost` is how many points the choice is below the best of
these means, which is the best of dozens and so a little lucky. Seconds are of CPU time, planning included, since the
machine may be shared; the time that trials are given is of the clock. Results go to `benchmarks/results/advice.json`.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from evidence import RESULTS, Evidence

from catchment import Experiment, run
from catchment.errors import CatchmentError
from catchment.planning.advice import with_method
from catchment.studies.candidates import find_facts
from catchment.studies.trials import SEEDS, Trials

FILE = RESULTS / "advice.json"
SKEWED = {"name": "dirichlet", "alpha": 0.5}
SETS: dict[str, tuple[float, dict[str, Any]]] = {  # seconds for the trials, and the experiment
    "digits": (
        30,
        {
            "rounds": 10,
            "data": {"name": "digits", "clients": 8, "train": 600, "partition": SKEWED},
            "models": {"client": "cnn", "server": "resnet10"},
        },
    ),
    "pneumoniamnist": (
        90,
        {
            "rounds": 8,
            "data": {"name": "pneumoniamnist", "clients": 4, "train": 1000, "partition": SKEWED},
            "models": {"client": "cnn(8)", "server": "resnet10"},
        },
    ),
    "cifar10": (
        240,
        {
            "rounds": 8,
            "data": {"name": "cifar10", "clients": 4, "train": 2000, "test": 2000, "partition": SKEWED},
            "models": {"client": "cnn(8)", "server": "resnet10"},
        },
    ),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=SETS, help="one data set")
    only = parser.parse_args().only
    torch.set_num_threads(1)
    for name in [only] if only else SETS:
        seconds, settings = SETS[name]
        evidence = Evidence(FILE, name, seed=0)
        measure(evidence, seconds, Experiment.from_dict({"workers": 1, "evaluation": {"every": 100}, **settings}))
        print(name, evidence.table["outcome"], flush=True)


def measure(evidence: Evidence, seconds: float, experiment: Experiment) -> None:
    """The trials, then all that they chose from, each piece written when it is done."""
    table = evidence.table
    if "trials" not in table:
        with tempfile.TemporaryDirectory() as folder:
            began = time.process_time()
            facts = find_facts(experiment, Path(folder), time.process_time)
            planned = time.process_time()
            trials = Trials(experiment, facts, seconds, Path(folder))
            found = trials.run(clock=time.process_time)
            table["seconds"] = {"given": seconds, "planning": round(planned - began, 1),
                                "trials": round(time.process_time() - planned, 1)}  # fmt: skip
        table["trials"] = found.as_json()
        table["every"] = [[trial.method, trial.rate] for trial in trials.trials]
        evidence.write()
    full = table.setdefault("full", {})
    for method, rate in table["every"]:
        for seed in range(SEEDS):
            key = f"{method}, lr {rate:g}, seed {seed}"
            if key not in full:
                full[key] = in_full(experiment, method, rate, seed)
                evidence.write()
    table["outcome"] = outcome(table)
    evidence.write()


def in_full(experiment: Experiment, method: str, rate: float, seed: int) -> dict[str, Any]:
    """The whole experiment with one method, rate and seed."""
    made = with_method(experiment, method)
    client = dataclasses.replace(made.optimizer.client, lr=rate)
    began = time.process_time()
    try:
        done = run(dataclasses.replace(made, seed=seed, optimizer=dataclasses.replace(made.optimizer, client=client)))
    except CatchmentError as error:
        return {"failed": str(error), "seconds": round(time.process_time() - began, 2)}
    return {"accuracy": done["accuracy"], "seconds": round(time.process_time() - began, 2)}


def outcome(table: dict[str, Any]) -> dict[str, Any]:
    """Points that are lost by the choice, and time that is saved."""
    means = {}
    for method, rate in table["every"]:
        runs = [table["full"][f"{method}, lr {rate:g}, seed {seed}"] for seed in range(SEEDS)]
        if all("accuracy" in done for done in runs):
            means[f"{method}, lr {rate:g}"] = fmean(done["accuracy"] for done in runs)
    chosen = table["trials"]["chosen"]
    choice, best = f"{chosen['method']}, lr {chosen['lr']:g}", max(means, key=means.__getitem__)
    ranked = sorted(means, key=means.__getitem__, reverse=True)
    in_all = sum(done["seconds"] for done in table["full"].values())
    spent = table["seconds"]["planning"] + table["seconds"]["trials"]
    return {
        "choice": choice,
        "accuracy": round(100 * means[choice], 2),
        "best": best,
        "best_accuracy": round(100 * means[best], 2),
        "lost": round(100 * (means[best] - means[choice]), 2),
        "place": ranked.index(choice) + 1,
        "of": len(ranked),
        "seconds": round(spent, 1),
        "seconds_in_full": round(in_all, 1),
        "times_faster": round(in_all / spent, 1),
    }


if __name__ == "__main__":
    main()
