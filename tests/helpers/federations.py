"""A server and clients as a person would start them: real processes, by the command line."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import tomli_w
from worlds import experiment

import catchment
from catchment.device.policy import Policy
from catchment.flower.federation import listen
from catchment.testing import Outcome

HERE = Path(__file__).parent
PATIENCE = 240.0  # seconds
DIGEST = Path("flower") / "digest"  # in a run's directory
ROUTINE = "catchment.flower.serving"  # in the command line of the server routine


def until(happened, what, patience=PATIENCE):
    """Wait until `happened()` is true."""
    end = time.monotonic() + patience
    while not (found := happened()):
        assert time.monotonic() < end, f"waited {patience:.0f} s for {what}"
        time.sleep(0.05)
    return found


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with listen("127.0.0.1", 0) as probe:
        return probe.getsockname()[1]


def outcome(name, out, observe=None, **settings):
    """All that must be equal."""
    catchment.run(experiment(name, **settings), out=out, observe=observe)
    return Outcome.of(out).less_news()


class Machines:
    """One server and some clients; `keys` is a folder made by `make_keys`, without which there are none."""

    def __init__(self, folder: Path, table: dict, clients: int, keys: Path | None = None):
        self.folder = folder
        self.out = folder / "run"
        self.port = free_port()
        self.keys = keys
        self.processes: dict[str, subprocess.Popen] = {}
        table = {"path": str(HERE), **table}
        table["data"] = {"name": "digits", "train": 60, "test": 20, "clients": clients, **table.get("data", {})}
        (folder / "x.toml").write_text(tomli_w.dumps(table))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def catchment(self, name: str, *arguments: object, ranks: int = 1) -> subprocess.Popen:
        """A command, as a job of `torchrun` if there are to be several ranks."""
        launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)] if ranks > 1 else []
        command = [sys.executable, *launcher, "-m", "catchment", *map(str, arguments)]
        environment = {**os.environ, "COLUMNS": "200"}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, cwd=self.folder, stdout=log, stderr=subprocess.STDOUT, env=environment
            )
        return self.processes[name]

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def serve(self, ranks: int = 1) -> subprocess.Popen:
        where = ("--host", "127.0.0.1", "--port", self.port, "--out", self.out)
        trust = ("--insecure",) if self.keys is None else ("--keys", self.keys)
        return self.catchment("server", "server", "x.toml", *where, *trust, ranks=ranks)

    def join(self, client: int, name: str = "", **changes: object) -> subprocess.Popen:
        """Start a device that lets the server have everything, or what `changes` to its policy say."""
        name = name or f"client-{client}"
        self.wait_for_run()
        policy = Policy.local(
            client=client, server=f"127.0.0.1:{self.port}", state=self.folder / f"state-{name}",
            key=self.keys and self.keys / f"client-{client}.key", federation=self.keys and self.keys / "federation.pub",
            experiment=(self.out / DIGEST).read_text(), data=None, modules=HERE,
        )  # fmt: skip
        if self.keys is not None:
            policy = dataclasses.replace(policy, insecure=False, root_certificate=self.keys / "ca.crt")
        dataclasses.replace(policy, **changes).write(self.folder / f"{name}.toml")
        return self.catchment(name, "join", "--policy", self.folder / f"{name}.toml")

    def kill(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()

    def rounds(self) -> list[dict]:
        path = self.out / "rounds.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for_run(self) -> None:
        """Until devices can be told what the run is."""
        self._wait((self.out / DIGEST).exists, "the server to know its run")

    def wait_for_round(self, number: int) -> None:
        """Until a round is over."""
        self._wait(lambda: len(self.rounds()) >= number, f"round {number}")

    def _wait(self, happened: Callable[[], bool], what: str) -> None:
        """Until something happened, unless the server has failed before."""

        def done() -> bool:
            assert self.processes["server"].poll() in (None, 0), self.log("server")
            return happened()

        until(done, f"{what}: {self.log('server')}")

    def result(self) -> dict:
        code = self.processes["server"].wait(PATIENCE)
        assert code == 0, self.log("server")
        return json.loads((self.out / "result.json").read_text())

    def events(self, *kinds: str) -> list[tuple[int, dict]]:
        return [(record["round"], e) for record in self.rounds() for e in record["events"] if e["what"] in kinds]

    def kill_routine(self) -> None:
        """End the process of the server routine."""
        child(ROUTINE, self.processes["server"].pid).kill()


def child(word: str, parent: int | None = None) -> psutil.Process:
    """The process that this one, or another, started with a word in its command line."""
    alive = [one for one in psutil.Process(parent).children() if one.status() != psutil.STATUS_ZOMBIE]
    (found,) = [one for one in alive if word in " ".join(one.cmdline())]
    return found


def left_running(folder: Path) -> list[str]:
    """Processes that still work in or for a folder."""
    found = []
    for process in psutil.process_iter():
        try:
            command = process.cmdline()  # nothing of one that is coming to its end
            if command and process.pid != os.getpid() and any(str(folder) in w for w in [*command, process.cwd()]):
                found.append(" ".join(command))
        except psutil.Error:
            continue
    return found
