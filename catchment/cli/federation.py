"""The command that serves a federation on several machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from catchment.cli.options import ExperimentFile, Out, Settings, free_directory, load
from catchment.cli.output import say
from catchment.cli.runs import start
from catchment.cli.watch import Watch
from catchment.errors import UserError


def server(
    file: ExperimentFile,
    out: Out = None,
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 is all of this machine's.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(help="The port to listen on.")] = 9092,
    keys: Annotated[
        Path | None, typer.Option(help="Folder made by catchment keys: devices need a key, traffic is encrypted.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="No keys: anybody may join, nothing is encrypted.")
    ] = False,
    settings: Settings = None,
    watch: Watch = False,
) -> None:
    """Run an experiment with clients on other machines, which join with catchment join."""
    if (keys is None) != insecure:
        raise UserError("give either --keys DIR (made by: catchment keys DIR) or --insecure, and not both")
    chosen = {"engine": "flower", "flower.local": False, "flower.host": host, "flower.port": port}
    if keys is not None:
        chosen["flower.keys"] = str(keys.absolute())
    experiment = load(file, settings, chosen)
    directory = out or free_directory(experiment.name)
    say(f"{directory}: waiting for {experiment.data.clients} clients on port {port}")
    start(experiment, directory, watch)
