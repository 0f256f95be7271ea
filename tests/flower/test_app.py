"""The Flower app of the examples, by Flower's own commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from federations import free_port, until

import catchment
from catchment.device.policy import Policy
from catchment.flower.federation import environment

pytestmark = pytest.mark.slow

APP = Path(catchment.__file__).parents[1] / "examples" / "flower_app"


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """The server routine has as many threads there as here: sums of floats depend on it."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def allow(folder, approved):
    """The policies of two devices on this machine."""
    for client in range(2):
        Policy.local(
            client=client, server="127.0.0.1:1", state=folder / "state", key=None, federation=None,
            experiment=approved, data=None, modules=None,
        ).write(folder / f"client-{client}.toml")  # fmt: skip


def test_the_example_runs_by_flowers_own_commands(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    settings = environment(home) | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }
    port = free_port()
    allow(tmp_path, "0" * 64)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    link = ["flower-superlink", "--insecure", "--port", str(port), "--disable-runtime-dependency-installation"]
    nodes = [
        ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}", "--port", str(free_port()),
         "--node-config", f"policy=\"{tmp_path / f'client-{k}.toml'}\""]
        for k in range(2)
    ]  # fmt: skip
    with (tmp_path / "log").open("wb") as log:
        processes = [
            subprocess.Popen(command, cwd=tmp_path, env=settings, stdout=log, stderr=subprocess.STDOUT)
            for command in (link, *nodes)
        ]
    try:
        until(lambda: "Uvicorn running" in (tmp_path / "log").read_text(), "the SuperLink")
        done = subprocess.run(["flwr", "run", str(APP), "here"], env=settings, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        directory = tmp_path / "runs" / "flower-app"
        until((directory / "flower" / "digest").exists, (tmp_path / "log").read_text)
        allow(tmp_path, (directory / "flower" / "digest").read_text())  # those who refused are greeted again
        result = directory / "result.json"
        until(result.exists, (tmp_path / "log").read_text, 400)
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(30)
    found = json.loads(result.read_text())
    assert found["lost"] == found["failed"] == 0
    here = catchment.run(catchment.Experiment.load(APP / "app" / "experiment.toml"))
    assert found["fingerprint"] == here["fingerprint"]
