"""The processes of a run over Flower on this machine: a SuperLink, an executor for the server routine, local clients.

Whoever starts them watches over them: what dies is started again and noted, the server routine goes on from its last
checkpoint, and all end with the run. Nothing is written outside the run's directory.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from catchment import errors
from catchment.checkpoint import write_atomically
from catchment.errors import RunError, UserError
from catchment.experiment import Experiment
from catchment.flower.serving import Papers, end_with_parent
from catchment.transports.devices import Faults

Record = dict[str, Any]
PATIENCE = 120.0  # seconds for a process to come up
LIVES = 3  # so often may the server routine die without finishing a round in between
LINK = "catchment"  # the name of the SuperLink in the configuration of Flower's command line

APP = """
[project]
name = "catchment-run"
version = "1.0.0"
description = "Names the apps of an installed Catchment."
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "catchment"

[tool.flwr.app.components]
serverapp = "catchment.flower.apps:server"
clientapp = "catchment.flower.apps:client"

[tool.flwr.app.config]
directory = ""
"""


def federate(directory: Path, observe: Callable[[Record], None]) -> Record:
    """Do what is left of the run in a directory, with all the processes that it needs; returns its result."""
    experiment = Experiment.load(directory / "experiment.toml")
    if experiment.devices.profile != "ideal" or experiment.faults != Faults():
        raise UserError(
            "devices.profile and faults are simulated by the in-process engine; over Flower devices are as fast and as "
            "faulty as they are: leave both out, or set engine = inprocess"
        )
    with contextlib.ExitStack() as stack:
        federation = _Federation(experiment, directory.resolve())
        stack.callback(federation.stop)
        stack.enter_context(_ended_by_signals())
        federation.start()
        return federation.watch(observe)


def environment(folder: Path) -> dict[str, str]:
    """The environment of Flower's processes: files in one folder, no telemetry, no downloads, quick polls."""
    found = dict(os.environ)
    found["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{found.get('PATH', '')}"
    found |= {
        "FLWR_HOME": str(folder),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
        "UV_OFFLINE": "1",
        "UV_CACHE_DIR": str(folder / "uv"),
        "PYTHONUNBUFFERED": "1",
        "PYTHONWARNINGS": "ignore",
    }
    return found


class _Federation:
    """SuperLink, executor and clients of one run, and what is known of them."""

    def __init__(self, experiment: Experiment, directory: Path) -> None:
        self.experiment = experiment
        self.directory = directory
        self.settings = experiment.flower
        self.papers = Papers(directory)
        self.folder = self.papers.folder
        self.environment = environment(self.folder / "home")
        self.port = self.settings.port or free_port()
        self.keys = None if self.settings.keys is None else Path(self.settings.keys)
        self.processes: dict[str, tuple[Sequence[str], subprocess.Popen[bytes]]] = {}
        self.seen = 0  # rounds

    # ---- starting ----

    def start(self) -> None:
        """Bring up everything and hand in the run."""
        if shutil.which("flower-superlink", path=self.environment["PATH"]) is None:
            raise UserError(
                'the engine "flower" needs Flower: pip install "catchment[server]", and run catchment from there'
            )
        self._write_app()
        if self.keys is not None and not self.papers.nodes.exists():
            self._register_keys(self.keys)
        self._spawn("superlink", self._superlink(self.settings.host, self.port))
        self._wait_for_link(self._address)
        self._spawn("superexec", self._superexec())
        if self.settings.local:
            for client in range(self.experiment.data.clients):
                self._spawn(f"client-{client}", self._client(client))
        self._submit()

    def _superlink(self, host: str, port: int) -> list[str]:
        command = ["flower-superlink", "--host", host, "--port", str(port)]
        command += ["--isolation", "process", "--disable-runtime-dependency-installation"]
        if self.settings.durable:
            command += ["--database", str(self.folder / "superlink.db")]
        if self.keys is None:
            return [*command, "--insecure"]
        certificates = ("ssl-ca-certfile", "ca.crt"), ("ssl-certfile", "server.crt"), ("ssl-keyfile", "server.key")
        for option, name in certificates:
            if not (self.keys / name).is_file():
                raise UserError(f"{self.keys} has no {name}; make it with: catchment keys {self.keys}")
            command += [f"--{option}", str(self.keys / name)]
        return [*command, "--enable-supernode-auth"]

    def _superexec(self) -> list[str]:
        return ["flower-superexec", "--runtime-api-address", self._address, *self._trust]

    @property
    def _address(self) -> str:
        """Where processes of this machine find the SuperLink."""
        return f"{'127.0.0.1' if self.settings.host in ('0.0.0.0', '::') else self.settings.host}:{self.port}"

    @property
    def _trust(self) -> list[str]:
        return ["--insecure"] if self.keys is None else ["--root-certificates", str(self.keys / "ca.crt")]

    def _client(self, client: int) -> list[str]:
        command = [sys.executable, "-m", "catchment", "join", self._address, "--client-id", str(client)]
        command += ["--state", str(self.folder / "clients")]
        if self.keys is None:
            command += ["--insecure"]
        else:
            key = self.keys / f"client-{client}.key"
            command += ["--root-certificate", str(self.keys / "ca.crt"), "--key", str(key)]
        return [*command, "--stock"] if self.settings.stock else command

    def _write_app(self) -> None:
        """What Flower's command line takes for an app."""
        (self.folder / "app").mkdir(exist_ok=True)
        (self.folder / "app" / "pyproject.toml").write_text(APP.lstrip())

    def _wait_for_link(self, address: str) -> None:
        """Until the SuperLink listens; Flower's command line then finds it."""
        host, port = address.rsplit(":", 1)
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            if self.processes["superlink"][1].poll() is not None:
                break
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
                trust = (
                    f"root-certificates = {json.dumps(str(self.keys / 'ca.crt'))}" if self.keys else "insecure = true"
                )
                (self.folder / "home").mkdir(exist_ok=True)
                (self.folder / "home" / "config.toml").write_text(
                    f'[superlink]\ndefault = "{LINK}"\n\n[superlink.{LINK}]\naddress = "{address}"\n{trust}\n'
                )
                return
            time.sleep(0.1)
        raise RunError(f"the SuperLink did not come up on {address}: {self._last_words('superlink')}")

    def _register_keys(self, keys: Path) -> None:
        """Let the SuperLink's database know the public keys, and the server routine which node is whose.

        The SuperLink is up for that on a port that devices do not know, as it refuses those whose key it does not have.
        """
        for half_done in self.folder.glob("superlink.db*"):
            half_done.unlink()
        port = free_port()
        self._spawn("superlink", self._superlink("127.0.0.1", port))
        self._wait_for_link(f"127.0.0.1:{port}")
        nodes = {}
        for client in range(self.experiment.data.clients):
            public = keys / f"client-{client}.pub"
            if not public.is_file():
                raise UserError(
                    f"{keys} has no {public.name}; make it with: "
                    f"catchment keys {keys} --clients {self.experiment.data.clients}"
                )
            nodes[self._flwr("supernode", "register", str(public), LINK)["node-id"]] = client
        self.stop()
        write_atomically(self.papers.nodes, json.dumps(nodes).encode())

    def _submit(self) -> None:
        self.papers.pid.unlink(missing_ok=True)
        self.papers.error.unlink(missing_ok=True)
        setting = f"directory={json.dumps(str(self.directory))}"
        self._flwr("run", str(self.folder / "app"), LINK, "--run-config", setting)
        self.submitted = time.monotonic()

    def _flwr(self, *arguments: str) -> Record:
        """Flower's own command line."""
        done = subprocess.run(
            ["flwr", *arguments, "--format", "json"],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
        )
        try:
            answer: Record = json.loads(done.stdout[done.stdout.index("{") :])
        except ValueError:
            answer = {}
        if not answer.get("success"):
            said = answer.get("error-message") or (done.stdout + done.stderr).strip()[-500:]
            raise RunError(f"flwr {arguments[0]} failed: {said}")
        return answer

    # ---- watching ----

    def watch(self, observe: Callable[[Record], None]) -> Record:
        """Until the run is over: pass on its records, and start again what dies."""
        result = self.directory / "result.json"
        lives = LIVES
        for _ in self._new_rounds():
            pass  # of earlier lives
        while True:
            for record in self._new_rounds():
                observe(record)
                lives = LIVES
            if result.exists():
                self._wait_for_server()
                return json.loads(result.read_text())  # type: ignore[no-any-return]
            if self.papers.error.exists():
                kind, text = json.loads(self.papers.error.read_text())
                raise getattr(errors, kind, RunError)(text)
            self._revive()
            if self._server_is_dead():
                lives -= 1
                if lives < 0:
                    raise RunError(f"the server routine died {LIVES + 1} times: {self._last_words('superexec')}")
                self.papers.note("the server routine died; it goes on from its last checkpoint")
                self._submit()
            time.sleep(0.1)

    def _new_rounds(self) -> Iterator[Record]:
        path = self.directory / "rounds.jsonl"
        if path.exists():
            lines = path.read_bytes().split(b"\n")[:-1]
            for line in lines[self.seen :]:
                yield json.loads(line)
            self.seen = len(lines)

    def _revive(self) -> None:
        for name, (command, process) in list(self.processes.items()):
            if (code := process.poll()) is not None:
                if name == "superlink" and not self.settings.durable:
                    raise RunError(f"the SuperLink ended with code {code}: {self._last_words(name)}")
                self.papers.note(f"{name} ended with code {code} and was started again")
                self._spawn(name, command)
                if name == "superlink":
                    self._wait_for_link(self._address)

    def _server_is_dead(self) -> bool:
        if not self.papers.pid.exists():
            if time.monotonic() - self.submitted > PATIENCE:
                raise RunError(f"the server routine did not start: {self._last_words('superexec')}")
            return False
        if self.papers.is_at_work():
            return False
        return not (self.directory / "result.json").exists() and not self.papers.error.exists()

    def _wait_for_server(self) -> None:
        """Let the server routine say goodbye to the clients."""
        until = time.monotonic() + 10
        while time.monotonic() < until and self.papers.is_at_work():
            time.sleep(0.1)

    # ---- processes ----

    def _spawn(self, name: str, command: Sequence[str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        self.processes[name] = (command, process)

    def _last_words(self, name: str) -> str:
        """The end of a log, for an error."""
        path = self.folder / f"{name}.log"
        lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
        return f"{' / '.join(line.strip() for line in lines[-4:])} (see {path})"

    def stop(self) -> None:
        """End every process and what it started, kindly and then not."""
        started = [process for _, process in self.processes.values()]
        self.processes = {}
        for process in started:
            if process.poll() is None:
                process.terminate()
        until = time.monotonic() + 8
        for process in started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, until - time.monotonic()))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if self.papers.is_at_work():
            os.kill(int(self.papers.pid.read_text()), signal.SIGKILL)


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM is as good as Ctrl-C, so that processes end with this one."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
