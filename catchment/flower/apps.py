"""Catchment as a Flower app: the ServerApp runs the rounds, the ClientApp answers as one device.

`flwr run` needs no more than a `pyproject.toml` that names these two. The server reads its run directory, or an
experiment file and where to put the run, from the run's configuration; a client reads from its node's configuration
which client it is (`partition-id`) and where its data, its state and its own modules are (`data`, `state`, `modules`).
"""

from __future__ import annotations

import os
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from catchment.device import Device
from catchment.errors import UserError
from catchment.flower.serving import serve_run, start_run
from catchment.transports.flower import content, opened

server = ServerApp()
client = ClientApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run an experiment, or go on with the one in the directory."""
    out = context.run_config.get("directory")
    if not out:
        raise UserError('the run configuration has no "directory"; say where to keep the run')
    directory = Path(str(out))
    if not (directory / "experiment.toml").exists():
        start_run(Path(str(context.run_config.get("experiment", ""))), directory)
    serve_run(grid, directory)


def answer(message: Message, context: Context) -> Message:
    """One message to one device."""
    settings = context.node_config
    state = settings.get("state") or Path(os.environ.get("FLWR_HOME", ".")) / "catchment"
    data, modules = settings.get("data"), settings.get("modules")
    device = Device(
        int(settings.get("partition-id", -1)),
        Path(str(state)),
        None if data is None else Path(str(data)),
        None if modules is None else Path(str(modules)),
    )
    kind = message.metadata.message_type.partition(".")[2]
    fields, raw = opened(message.content)
    return Message(content(*device.answer(kind, fields, raw)), reply_to=message)


for name in ("hello", "bye"):
    client.query(name)(answer)
for name in ("ask", "fetch"):
    client.train(name)(answer)
