"""One client's part in a federation: the process that a device runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from catchment.device import RealDevice
from catchment.errors import RunError, UserError
from catchment.flower.federation import environment, free_port


def join_federation(
    address: str,
    client: int,
    state: Path,
    data: Path | None,
    modules: Path | None,
    root_certificate: Path | None,
    key: Path | None,
    *,
    once: bool,
    stock: bool,
    tell: Callable[[str], None],
) -> None:
    """Serve one client until the process is ended, or with `once` until a run is over."""
    if not re.fullmatch(r"\S+:\d{1,5}", address):
        raise UserError(f'"{address}" is not an address; HOST:PORT is expected, such as fl.example.org:9092')
    if client < 0:
        raise UserError(f"--client-id is {client}; clients are numbered from 0 on")
    for option, path in (("--data", data), ("--root-certificate", root_certificate), ("--key", key)):
        if path is not None and not path.exists():
            raise UserError(f"{option} {path}: there is nothing there")
    if stock:
        _become_supernode(address, client, state, data, modules, root_certificate, key)
    os.environ |= {name: value for name, value in environment(state / "flower").items() if name.startswith("FLWR_")}
    try:
        from catchment.flower.node import Refused, serve_node
    except ImportError as error:
        tell(f"this Flower has no {error.name or error}: using its own SuperNode, which is slower")
        _become_supernode(address, client, state, data, modules, root_certificate, key)

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        serve_node(address, RealDevice(client, state, data, modules), root_certificate, key, once=once, tell=tell)
    except KeyboardInterrupt:
        tell(f"client {client} left")
    except Refused as refused:
        raise RunError(f"client {client} cannot join {address}: {refused}") from None


def _become_supernode(
    address: str,
    client: int,
    state: Path,
    data: Path | None,
    modules: Path | None,
    root_certificate: Path | None,
    key: Path | None,
) -> NoReturn:
    """Replace this process by Flower's own SuperNode."""
    settings = [f"partition-id={client}", f"state={json.dumps(str(state.absolute()))}"]
    settings += [f"data={json.dumps(str(data.absolute()))}"] if data is not None else []
    settings += [f"modules={json.dumps(str(modules.absolute()))}"] if modules is not None else []
    command = [
        "flower-supernode",
        "--superlink",
        address,
        "--node-config",
        " ".join(settings),
        "--port",
        str(free_port()),
    ]
    command += ["--insecure"] if root_certificate is None else ["--root-certificates", str(root_certificate)]
    command += [] if key is None else ["--auth-supernode-private-key", str(key)]
    found = environment(state.absolute() / "flower")
    program = shutil.which(command[0], path=found["PATH"])
    if program is None:
        raise UserError('flower-supernode is not installed here: pip install "catchment[device]"')
    os.execve(program, command, found)
