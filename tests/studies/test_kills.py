"""Two processes share a study and are killed again and again: the table is that of one undisturbed process."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from catchment.studies import tables
from catchment.studies.study import Study

FILE = """
title = "Killed"
seeds = {seeds}
columns = ["accuracy", "best", "difference", "bytes.up", "rounds to 20 %"]
reference = "FedAvg"

[experiment]
rounds = {rounds}
workers = 1
data = {{ name = "digits", clients = 4, train = 400, test = 100 }}
models.client = "mlp"

[[row]]
label = "FedAvg"

[[row]]
label = "FedProx"
experiment.method = {{ name = "fedprox", mu = 0.5 }}

[[row]]
label = "alone"
experiment.method.name = "standalone"

[[row]]
label = "DGC"
experiment.method.name = "dgc"
"""


def forms(result):
    """Everything that a reader sees, less wall times."""
    for row in result.rows:
        for run in row.runs:
            run.numbers.pop("seconds")
    return [form(result) for form in (tables.markdown, tables.latex, tables.comma_separated, tables.html_table)]


@pytest.mark.parametrize(
    ("seeds", "rounds", "kills"),
    [([0], 6, 1), pytest.param([0, 1, 2], 60, 20, marks=pytest.mark.slow, id="twelve runs, twenty kills")],
)
def test_killed_at_random_moments_by_two_processes(seeds, rounds, kills, tmp_path):
    file = tmp_path / "killed.toml"
    file.write_text(FILE.format(seeds=seeds, rounds=rounds))
    undisturbed = Study.load(file, out=tmp_path / "whole").run()
    command = [sys.executable, "-m", "catchment", "study", str(file), "--out", str(tmp_path / "broken")]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    moments = random.Random(rounds)

    def start():
        return subprocess.Popen(command, env=environment, **quiet)

    def done():
        return sum(path.read_bytes().count(b"\n") for path in (tmp_path / "broken").glob("runs/*/rounds.jsonl"))

    total = 4 * len(seeds) * rounds
    workers = [start(), start()]
    for kill in range(kills):
        goal = (kill + 1) * total * 0.9 / (kills + 1)
        while done() < goal and all(worker.poll() is None for worker in workers):
            time.sleep(0.005)
        time.sleep(moments.uniform(0, 0.05))
        victim = moments.randrange(2)
        assert workers[victim].poll() is None, "the study ended before it could be killed: give it more rounds"
        workers[victim].send_signal(signal.SIGKILL)
        workers[victim].wait()
        workers[victim] = start()
    assert [worker.wait(300) for worker in workers] == [0, 0]
    assert forms(Study.load(file, out=tmp_path / "broken").run()) == forms(undisturbed)
