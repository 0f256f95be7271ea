"""The command that prints the form of a kind of file, as editors and other programs can check it.

What it prints is in `schemas`, which `python benchmarks/names.py` writes from the code; so nothing that learns is
imported to print it.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

SCHEMAS = Path(__file__).with_name("schemas")


class Kind(StrEnum):
    """What has a form."""

    experiment = "experiment"
    study = "study"
    policy = "policy"


def schema(
    kind: Annotated[Kind, typer.Argument(help="The kind of file.")] = Kind.experiment,
) -> None:
    """Print the JSON schema of a kind of file: its keys with their types, ranges, defaults and meanings."""
    typer.echo(text_of(kind), nl=False)


def text_of(kind: str) -> str:
    """The schema of a kind of file."""
    return (SCHEMAS / f"{kind}.json").read_text(encoding="utf-8")
