"""A server and clients as a person would start them: real processes, by the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import tomli_w

from catchment.flower.federation import free_port

HERE = Path(__file__).parent
PATIENCE = 240.0  # seconds


def until(happened, what, patience=PATIENCE):
    """Wait until `happened()` is true."""
    end = time.monotonic() + patience
    while not (found := happened()):
        assert time.monotonic() < end, f"waited {patience:.0f} s for {what}"
        time.sleep(0.05)
    return found


class Machines:
    """One server and some clients."""

    def __init__(
        self, folder: Path, table: dict, clients: int, *options: str, joining: tuple[str, ...] = ("--insecure",)
    ):
        self.folder = folder
        self.out = folder / "run"
        self.port = free_port()
        self.joining = joining
        self.processes: dict[str, subprocess.Popen] = {}
        table = {"path": str(HERE), **table}
        table["data"] = {"name": "digits", "train": 60, "test": 20, "clients": clients, **table.get("data", {})}
        (folder / "x.toml").write_text(tomli_w.dumps(table))
        self.options = options or ("--insecure",)

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

    def catchment(self, name: str, *arguments: object) -> subprocess.Popen:
        command = [sys.executable, "-m", "catchment", *map(str, arguments)]
        environment = {**os.environ, "COLUMNS": "200"}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, cwd=self.folder, stdout=log, stderr=subprocess.STDOUT, env=environment
            )
        return self.processes[name]

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def serve(self) -> subprocess.Popen:
        where = ("--host", "127.0.0.1", "--port", self.port, "--out", self.out)
        return self.catchment("server", "server", "x.toml", *where, *self.options)

    def join(self, client: int, *options: str) -> subprocess.Popen:
        where = (f"127.0.0.1:{self.port}", "--client-id", client, "--state", f"state-{client}")
        return self.catchment(f"client-{client}", "join", *where, *(options or self.joining))

    def kill(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()

    def rounds(self) -> list[dict]:
        path = self.out / "rounds.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for_round(self, number: int) -> None:
        def done() -> bool:
            assert self.processes["server"].poll() in (None, 0), self.log("server")
            return len(self.rounds()) >= number

        until(done, f"round {number}: {self.log('server')}")

    def result(self) -> dict:
        code = self.processes["server"].wait(PATIENCE)
        assert code == 0, self.log("server")
        return json.loads((self.out / "result.json").read_text())

    def events(self, *kinds: str) -> list[tuple[int, dict]]:
        return [(record["round"], e) for record in self.rounds() for e in record["events"] if e["what"] in kinds]

    def process_of_server(self, program: str) -> psutil.Process:
        """One of the processes that the server started, by a word of its command line."""
        children = psutil.Process(self.processes["server"].pid).children(recursive=True)
        (found,) = [child for child in children if program in " ".join(child.cmdline()[:3])]
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
