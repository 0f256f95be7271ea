"""Jobs of torchrun, as a person starts them: a rank dies, the run is resumed, and what cannot be done is said."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from jobs import COMMAND, job, rounds_done, surroundings
from worlds import METHODS, experiment

import catchment
from catchment import launch
from catchment.errors import ExperimentError, RunError, UserError
from catchment.runs.checkpoint import Checkpoints
from catchment.testing import Outcome

SETTINGS = {"rounds": 30, "data": {"train": 200, "test": 20}, "workers": 2}


def torchrun(*arguments: str, folder: Path, ranks: int = 2) -> subprocess.Popen[str]:
    """`torchrun -m catchment ...`"""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "-m", "catchment"]
    helpers = os.pathsep.join(path for path in sys.path if path)
    env = os.environ | {"PYTHONPATH": helpers, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*command, *arguments], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def others(job: subprocess.Popen[str]) -> list[int]:
    """The processes of the ranks from 1 on."""
    children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    ranks = {}
    for child in children:
        variables = dict(v.partition("=")[::2] for v in Path(f"/proc/{child}/environ").read_text().split("\0"))
        ranks[int(variables.get("RANK", 0))] = int(child)
    return [ranks[number] for number in sorted(ranks) if number]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_rank_that_is_killed_ends_the_run_with_one_sentence(tmp_path):
    settings = experiment("standalone", **SETTINGS)
    (tmp_path / "x.toml").write_text(settings.to_toml())
    running = torchrun("run", "x.toml", "--out", "broken", folder=tmp_path)
    while rounds_done(tmp_path / "broken") < 2:
        assert running.poll() is None
        time.sleep(0.01)
    os.kill(others(running)[0], signal.SIGKILL)
    _, errors = running.communicate()
    (sentence,) = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert sentence.startswith("error: rank 1 on ")
    assert sentence.endswith(" is gone; what was finished is kept: catchment resume broken")
    assert 2 <= rounds_done(tmp_path / "broken") < 30
    catchment.resume(tmp_path / "broken")
    catchment.run(settings, tmp_path / "whole")
    assert Outcome.of(tmp_path / "broken") == Outcome.of(tmp_path / "whole")


def test_a_rank_that_is_killed_while_it_has_nothing_to_do_is_noticed():
    with job(2, code=-9) as (ranks, (other,)):

        def kill(record):
            other.kill()
            time.sleep(30)  # until it is noticed

        with pytest.raises(RunError, match=r"^rank 1 on .* is gone$"):
            launch.run(experiment("fedavg"), ranks=ranks, observe=kill)


def test_a_rank_that_dies_in_a_step_ends_the_run():
    with job(2, code=-9) as (ranks, (other,)):
        order = ranks.order

        def deadly(said):
            order(said)
            if "rows" in said.get("fit", ()):
                other.kill()

        ranks.order = deadly
        with pytest.raises(RunError, match=r"^rank 1 on .* is gone$"):
            launch.run(experiment("centralized", data_parallel=True), ranks=ranks)


def test_a_rank_that_cannot_build_the_world_says_why(monkeypatch):
    monkeypatch.setenv("CATCHMENT_DATA", "/nowhere")
    with job(2) as (ranks, _):
        monkeypatch.undo()
        wanted = experiment("fedavg", data={"name": "mnist"})
        monkeypatch.setattr(type(wanted), "build_world", lambda self: None)
        with pytest.raises(UserError, match=r"^rank 1 on .* cannot take part: .*/nowhere"):
            launch.run(wanted, ranks=ranks)


@pytest.mark.slow
def test_a_finished_run_is_left_as_it_is_by_all_ranks(tmp_path):
    catchment.run(experiment("fedavg"), tmp_path / "run")
    running = torchrun("resume", "run", folder=tmp_path)
    assert "fedavg" in running.communicate()[0]
    assert running.returncode == 0


@pytest.mark.slow
def test_the_server_of_a_federation_shares_its_training_and_outlives_a_rank(tmp_path):
    """Over real connections; a rank is killed, the job is started again, and the result is that of one process."""
    pytest.importorskip("flwr")
    from federations import Machines

    table = {**METHODS["fedgkt"], "rounds": 3, "data_parallel": True}
    with Machines(tmp_path, table, 2) as machines:
        machines.serve(ranks=2)
        for client in range(2):
            machines.join(client)
        machines.wait_for_round(1)
        os.kill(others(machines.processes["server"])[0], signal.SIGKILL)
        assert machines.processes["server"].wait(60) != 0
        (sentence,) = [line for line in machines.log("server").splitlines() if line.startswith("error: ")]
        assert sentence.startswith("error: rank 1 on ")
        assert sentence.endswith(f" is gone; what was finished is kept: catchment resume {machines.out}")
        machines.catchment("server", "resume", machines.out, ranks=2)
        result = machines.result()
    assert result["failed"] == result["lost"] == 0
    catchment.run(catchment.Experiment.load(tmp_path / "x.toml"), tmp_path / "alone")
    there, here = (Checkpoints(out / "checkpoints").latest().tensors for out in (machines.out, tmp_path / "alone"))
    weights = [name for name in here if name.startswith("state/model")]
    assert weights
    for name in weights:
        torch.testing.assert_close(there[name], here[name], rtol=1e-2, atol=1e-3, msg=partial("{}: {}".format, name))


def test_ranks_without_clients_and_steps_are_refused(monkeypatch):
    for name, value in surroundings(0, 2, 1).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ExperimentError, match="ranks have nothing to do: set data_parallel = true"):
        catchment.run(experiment("fedgkt", engine="flower"))


def test_a_script_on_another_rank_is_told_of_the_command(monkeypatch):
    for name, value in surroundings(1, 2, 1).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="only the command is for torchrun"):
        catchment.run(experiment("fedavg"))


def test_what_a_job_cannot_do_is_said(tmp_path):
    environment = os.environ | surroundings(0, 2, 1)
    done = subprocess.run([*COMMAND[:3], "list"], env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "error: torchrun starts run, resume, server alone; start list without it\n"
