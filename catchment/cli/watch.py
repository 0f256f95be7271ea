"""The command that shows runs while they run, as a page or in the terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer

from catchment.cli.output import console, say
from catchment.errors import UserError
from catchment.watching.server import LOOPBACK, watching
from catchment.watching.status import find_runs
from catchment.watching.terminal import watch_in_terminal

Watch = Annotated[bool, typer.Option("--watch", help="Show a page of the run meanwhile; its address is printed.")]


def watch(
    directory: Annotated[Path, typer.Argument(help="The directory of a run, or one with runs below it.")],
    terminal: Annotated[bool, typer.Option("--terminal", help="Here, without a browser.")] = False,
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 is all of this machine's.")] = LOOPBACK,
    port: Annotated[int, typer.Option(help="The port to listen on; 0 is one that is free.", min=0, max=65535)] = 0,
) -> None:
    """Show runs while they run: rounds, accuracy, bytes, time left, and who is there. Nothing can be changed there."""
    if not find_runs(directory):
        raise UserError(f"there is no run in {directory}, nor below it")
    with suppress(KeyboardInterrupt):
        if terminal:
            watch_in_terminal(directory, console)
            return
        with watching(directory, host, port) as address:
            say(f"{address}\nCtrl-C ends it; the run goes on.")
            while True:
                time.sleep(3600)


@contextmanager
def page_of(place: Path, wanted: bool) -> Iterator[None]:
    """Serve a page meanwhile, if it is wanted, and say where."""
    if not wanted:
        yield
        return
    with watching(place) as address:
        say(f"watch: {address}")
        yield
