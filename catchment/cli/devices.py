"""The commands of a device: take part, and say what may leave."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from catchment.cli.output import say, warn
from catchment.device.disk import approve as approve_run
from catchment.device.policy import FILE, REVEALING, Allow, Policy
from catchment.device.showing import described
from catchment.errors import UserError
from catchment.reading import read_table


def join(
    address: Annotated[str | None, typer.Argument(help="HOST:PORT of the server; with --init.")] = None,
    policy: Annotated[Path, typer.Option(help="The device's policy.")] = FILE,
    init: Annotated[bool, typer.Option("--init", help="Write the policy from the other options, and end.")] = False,
    client: Annotated[int | None, typer.Option("--client-id", help="Which client this is; the first is 0.")] = None,
    data_folder: Annotated[
        Path | None, typer.Option("--data", help="Folder of data sets, or of this device's own data.")
    ] = None,
    state: Annotated[Path | None, typer.Option(help="Folder for what the device remembers.")] = None,
    root_certificate: Annotated[Path | None, typer.Option(help="ca.crt of the server.")] = None,
    key: Annotated[Path | None, typer.Option(help="This device's key, made by catchment key.")] = None,
    federation: Annotated[Path | None, typer.Option(help="federation.pub, whose key must have signed a run.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="No encryption, no key and no signature.")] = False,
    modules: Annotated[
        Path | None, typer.Option(help="Folder of your own modules, if the experiment names any.")
    ] = None,
    leaves: Annotated[
        list[str] | None, typer.Option("--allow", help=f"What else may be sent: {', '.join(REVEALING)}.")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="End with the first run instead of waiting for the next.")
    ] = False,
) -> None:
    """Take part as one client, as this device's policy allows, until you press Ctrl-C."""
    given = {
        "server": address, "client": client, "data": data_folder, "state": state, "root_certificate": root_certificate,
        "key": key, "federation": federation, "insecure": insecure or None, "modules": modules,
    }  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None}
    if init:
        _write_policy(policy, given, leaves or [])
        return
    if given or leaves:
        raise UserError(
            "these options belong to the policy: write it once by adding --init, or change "
            f"{policy} with a text editor; then run catchment join without them"
        )
    from catchment.flower.joining import join_federation

    found = Policy.load(policy)
    if found.insecure and not found.allow.trusted:
        warn("the policy says insecure: anybody on the network path can read and alter what is sent")
    join_federation(found, once=once, ask=_agreed if sys.stdin.isatty() else None, tell=say)


def policy(
    file: Annotated[Path, typer.Argument(help="The device's policy.")] = FILE,
    approve: Annotated[str | None, typer.Option(help="Approve the run of this digest.")] = None,
) -> None:
    """Say in plain words what a device may send, and what it has sent so far."""
    found = Policy.load(file)
    if approve is not None:
        approve_run(found.state, approve)
    say(described(found))


def _write_policy(path: Path, given: dict[str, Any], leaves: list[str]) -> None:
    """Make a device's policy, and show it."""
    for name in ("server", "client"):
        if name not in given:
            raise UserError("--init needs the server's HOST:PORT and --client-id")
    if path.exists():
        raise UserError(f"{path} exists already; change it with a text editor, or remove it first")
    table = {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}
    made = read_table(Policy, {**table, "allow": {"leaves": [*Allow().leaves, *leaves]}})
    made.write(path)
    say(path.read_text(encoding="utf-8"))
    say(f"{path} is written; look at it, then take part with: catchment join")


def _agreed(summary: str) -> bool:
    """Show a person what a run would do, and ask."""
    say(summary)
    return typer.confirm("Take part?", default=False)
