"""The processes of a run over Flower on this machine: the server routine with its link, and local clients.

The process that starts them supervises them: what dies is restarted and noted, the server routine goes on from its last
checkpoint, and all end with the run. Nothing is written outside the run's directory.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from catchment.config.experiment import Experiment
from catchment.device.policy import Policy
from catchment.errors import RunError, UserError
from catchment.flower.control import ControlFiles
from catchment.flower.telling import Telling
from catchment.keys.keys import make_device_key, make_federation_key
from catchment.process import JOB
from catchment.runs.directory import RESULT, ROUNDS
from catchment.runs.journal import NewLines
from catchment.simulation.devices import Faults

Record = dict[str, Any]
RESTARTS = 3  # how often the server routine is restarted without finishing a round in between
GOODBYE = 10.0  # seconds for the server routine to end after its result
SERVER = "server"
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG in prctl.h


def federate(
    experiment: Experiment, directory: Path, observe: Callable[[Record], None], tell: Callable[[str], None]
) -> Record:
    """Do the remaining rounds of the run in a directory, with all the processes that it needs; returns its result.

    `tell` is called with sentences about what the run waits for.
    """
    directory = directory.resolve()
    if experiment.devices.profile != "ideal" or experiment.faults != Faults():
        raise UserError(
            "devices.profile and faults are simulated by the in-process engine; over Flower devices are as fast and as "
            "faulty as they are: leave both out, or set engine = inprocess"
        )
    with contextlib.ExitStack() as stack:
        control = ControlFiles(directory)
        stack.enter_context(control.lock())
        federation = _Federation(experiment, control, Telling(directory, tell))
        stack.callback(federation.stop)
        stack.enter_context(_ended_by_signals())
        federation.start()
        try:
            return federation.watch(observe)
        except KeyboardInterrupt:  # of torchrun too, if a rank is gone, which the server routine says
            federation.stop()
            if (error := control.stopped()) is not None:
                raise error from None
            raise


def environment(folder: Path) -> dict[str, str]:
    """The environment of processes that use Flower: its files in one folder, no telemetry, no update checks."""
    return os.environ | {
        "FLWR_HOME": str(folder),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONWARNINGS": "ignore",
    }


class _Federation:
    """The server routine and the local clients of one run."""

    def __init__(self, experiment: Experiment, control: ControlFiles, telling: Telling) -> None:
        self.experiment = experiment
        self.settings = experiment.flower
        self.control = control
        self.telling = telling
        self.folder = control.folder
        self.keys = control.keys(experiment)
        self.processes: dict[str, tuple[Sequence[str], subprocess.Popen[bytes]]] = {}
        self.listener = listen(self.settings.host, self.settings.port)
        self.rounds = NewLines(control.directory / ROUNDS)

    # ---- starting ----

    def start(self) -> None:
        """Start the server routine; local clients follow once the digest that they approve is known."""
        if self.settings.keys is None and self.keys is not None:
            self._make_keys(self.keys)
        self._check_keys()
        self.control.clear()
        module = [sys.executable, "-m", "catchment.flower.serving"]
        self._spawn(SERVER, [*module, str(self.control.directory), str(self.listener.fileno())])

    def _make_keys(self, folder: Path) -> None:
        """Keys for this run alone, so that nobody else on this machine can join."""
        folder.mkdir(mode=0o700, exist_ok=True)
        if not (folder / "federation.pub").exists():
            make_federation_key(folder)
        for client in range(self.experiment.data.clients):
            if not (folder / f"client-{client}.pub").exists():
                make_device_key(folder / f"client-{client}.key")

    def _check_keys(self) -> None:
        if self.keys is None:
            return
        needed = ["federation.key"] + (["server.crt", "server.key"] if self.settings.keys is not None else [])
        for name in needed:
            if not (self.keys / name).is_file():
                raise UserError(f"{self.keys} has no {name}; make it with: catchment keys {self.keys}")

    def _start_clients(self) -> None:
        host = self.settings.host
        address = f"{'127.0.0.1' if host in ('0.0.0.0', '::') else host}:{self.listener.getsockname()[1]}"
        for client in range(self.experiment.data.clients):
            policy = Policy.local(
                client=client,
                server=address,
                state=self.folder / "clients",
                key=self.keys and self.keys / f"client-{client}.key",
                federation=self.keys and self.keys / "federation.pub",
                experiment=self.control.digest.read_text(),
                data=None if self.experiment.data.own else _folder(self.experiment.data.root),
                modules=_folder(self.experiment.path),
            )
            if self.settings.keys is not None:
                certificate = Path(self.settings.keys) / "ca.crt"
                policy = dataclasses.replace(policy, insecure=False, root_certificate=certificate)
            file = self.folder / f"client-{client}.toml"
            policy.write(file)
            self._spawn(f"client-{client}", [sys.executable, "-m", "catchment", "join", "--policy", str(file)])

    # ---- watching ----

    def watch(self, observe: Callable[[Record], None]) -> Record:
        """Until the run is over: pass on its records, and restart what dies."""
        result = self.control.directory / RESULT
        restarts_left = RESTARTS
        self.rounds.read()  # written before this start
        while True:
            for line in self.rounds.read():
                observe(json.loads(line))
                restarts_left = RESTARTS
            if result.exists():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.processes[SERVER][1].wait(GOODBYE)
                return json.loads(result.read_text())  # type: ignore[no-any-return]
            if (error := self.control.stopped()) is not None:
                raise error
            if self.settings.local and len(self.processes) == 1 and self.control.digest.exists():
                self._start_clients()
            for name, (command, process) in list(self.processes.items()):
                if (code := process.poll()) is not None and not result.exists() and self.control.stopped() is None:
                    restarts_left -= name == SERVER
                    if restarts_left < 0:
                        raise RunError(f"the server routine died {RESTARTS + 1} times: {self._log_tail(name)}")
                    what = "the server routine" if name == SERVER else name
                    self.control.note("restarted", None, f"{what} ended with code {code} and was started again")
                    self._spawn(name, command)
            self.telling.look()
            time.sleep(0.05)

    # ---- processes ----

    def _spawn(self, name: str, command: Sequence[str]) -> None:
        variables = environment(self.folder / "home")
        if name != SERVER:
            variables.pop(JOB, None)  # rank 0 of a job is the server routine
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                env=variables,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent,
                pass_fds=[self.listener.fileno()] if name == SERVER else [],
            )
        self.processes[name] = (command, process)

    def _log_tail(self, name: str) -> str:
        """The end of a log, for an error."""
        path = self.folder / f"{name}.log"
        lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
        return f"{' / '.join(line.strip() for line in lines[-4:])} (see {path})"

    def stop(self) -> None:
        """End every process that this one started: asked first, killed after some seconds."""
        self.listener.close()
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


def end_with_parent() -> None:
    """On Linux, let the kernel end this process when its parent dies, however that happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)


def listen(host: str, port: int) -> socket.socket:
    """A socket that devices can connect to; it outlives the server routine, which may be started again."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise UserError(f"cannot listen on {host}, port {port}: {error.strerror}; choose another port") from None


def _folder(path: str | None) -> Path | None:
    """A folder of the experiment for clients of this machine, if it is there."""
    return Path(path) if path is not None and Path(path).is_dir() else None


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that processes end with this one."""

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
