"""Commands about keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Column, Table

from catchment.cli.output import console, say
from catchment.errors import UserError


def key(
    file: Annotated[Path, typer.Argument(help="The private key to make; the public half goes beside it.")] = Path(
        "device.key"
    ),
) -> None:
    """Make this device's key, which stays here; the server gets the public half. An existing key is never replaced."""
    from catchment.keys.keys import fingerprint, make_device_key

    public = make_device_key(file)
    say(
        f"{file} is this device's private key: it stays here, and nobody else may see it.\n"
        f"{public} is its public half: send it to whoever runs the server, who admits it with\n"
        f"  catchment keys DIR --add {public.name} --client-id K\n"
        f"and compare the fingerprint over another channel, such as a call:\n"
        f"  {fingerprint(public)}"
    )


def keys(
    directory: Annotated[Path, typer.Argument(help="A directory of its own, for its owner alone.")],
    clients: Annotated[
        int | None, typer.Option(help="Make keys for this many devices as well; devices that make their own are safer.")
    ] = None,
    host: Annotated[
        list[str] | None, typer.Option(help="A name or address under which devices reach the server. May be repeated.")
    ] = None,
    add: Annotated[Path | None, typer.Option(help="Admit the device with this public key (--client-id).")] = None,
    client: Annotated[int | None, typer.Option("--client-id", help="Which client it is; the first is 0.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Revoke the key that the client has.")] = False,
    revoke: Annotated[int | None, typer.Option(help="The client whose key is revoked.")] = None,
) -> None:
    """Make the keys of a server, admit devices and revoke them; without options, show who may join."""
    from catchment.keys import admission
    from catchment.keys.certificates import validity
    from catchment.keys.keys import fingerprint, make_keys

    making = clients is not None or host is not None
    if making + (add is not None) + (revoke is not None) > 1:
        raise UserError("give one of --host and --clients (to make keys), --add, and --revoke; one thing at a time")
    if (add is None) != (client is None) or (replace and add is None):
        raise UserError("--add FILE and --client-id K go together, and --replace only with them")
    if making:
        made = make_keys(directory, clients or 0, host or [])
        table = Table("who", "files", title=f"{escape(str(directory))}: {len(made)} new files")
        table.add_row("the server", "ca.crt, server.crt, server.key, federation.key, and client-K.pub of every client")
        table.add_row("every device", "ca.crt, federation.pub")
        if clients:
            table.add_row("device K, and nobody else", "client-K.key")
        table.add_row("nobody: keep it offline", "ca.key, which signs certificates of the server")
        console.print(table)
    elif add is not None and client is not None:
        admission.admit(directory, add, client, replace=replace)
    elif revoke is not None:
        admission.revoke(directory, revoke)
    whole = Column("fingerprint", no_wrap=True, min_width=50)  # to be compared, so it is never shortened
    table = Table("client", whole, "since", "revoked", title="Who may join")
    for one in admission.admissions(directory):
        table.add_row(str(one.client), one.fingerprint, f"{one.since:%Y-%m-%d}", one.revoked or "")
    console.print(table)
    say(f"{validity(directory)}\nfederation.pub is {fingerprint(directory / 'federation.pub')}")
