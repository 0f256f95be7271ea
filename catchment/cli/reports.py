"""The command that reports on runs, from their files alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from catchment.cli.output import show_runs


def report(
    directories: Annotated[list[Path], typer.Argument(help="Directories of runs; several are compared.")],
    out: Annotated[
        Path | None, typer.Option(help="The HTML file; report.html in the first directory if not given.")
    ] = None,
) -> None:
    """Write an HTML report of one run, or of several side by side."""
    show_runs(directories, out)
