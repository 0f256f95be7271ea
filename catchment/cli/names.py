"""Commands about names: which ones an experiment can use, and what they mean."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from catchment import data
from catchment.cli.describing import KINDS, Described, find, options
from catchment.cli.output import console, say
from catchment.core.method import Method
from catchment.errors import UserError
from catchment.learning import optimizers
from catchment.names import did_you_mean
from catchment.privacy.disclosure import disclosed
from catchment.report import summary_table
from catchment.runs.reading import RunFiles
from catchment.tasks import TASKS


def _complete_kind(incomplete: str) -> list[str]:
    return [kind for kind in KINDS if kind.startswith(incomplete)]


def _complete_name(incomplete: str) -> list[str]:
    return [name for kind in KINDS.values() for name in kind.names if name.startswith(incomplete)]


def list_names(
    what: Annotated[
        str | None,
        typer.Argument(
            help=f"{', '.join(KINDS)}; or a directory, to list the runs below it.", autocompletion=_complete_kind
        ),
    ] = None,
) -> None:
    """List the names that an experiment can use, or the runs below a directory."""
    if what is None:
        _list_all()
    elif what in KINDS:
        table = Table(title=f"{what}: names for {KINDS[what].key}", show_header=False, box=None)
        for one in KINDS[what].described():
            table.add_row(escape(one.name), escape(one.line))
        console.print(table)
    elif Path(what).is_dir():
        _list_runs(Path(what))
    else:
        raise UserError(f'"{what}" is no directory, and nothing that can be listed; {did_you_mean(what, KINDS)}')


def show(
    name: Annotated[
        str,
        typer.Argument(
            help="A name that catchment list has, or a model with arguments.", autocompletion=_complete_name
        ),
    ],
) -> None:
    """Say what a name means: its paper, its options with their defaults, what leaves a device."""
    for kind, one in find(name).items():
        _show(kind, one)


def _show(kind: str, one: Described) -> None:
    if not isinstance(one.thing, type):
        say(f"{one.name} ({kind}): {one.line}")
        return
    text = sys.modules[one.thing.__module__].__doc__ if kind == "methods" else inspect.getdoc(one.thing)
    say(f"{(text or '').strip()}\n")
    if dataclasses.is_dataclass(one.thing) and dataclasses.fields(one.thing):
        table = Table("option", "type", "default", "meaning", title=f"Options of {one.name}")
        for option in options(one.thing):
            table.add_row(*map(escape, option))
        console.print(table)
    if issubclass(one.thing, Method):
        if decay := one.thing.moving_average:
            say(f"Models are measured as moving averages of their weights: evaluation.average = {decay}.\n")
        table = Table("field", "kind", "when asked for", "what it shows", title="What a device sends")
        for row in disclosed(one.thing):
            table.add_row(*map(escape, (row.field, row.kind, row.when, row.shows)))
        console.print(table)


def _list_all() -> None:
    table = Table("key", "names", title="Every name may also be your own: package.module:attribute")
    for kind in KINDS.values():
        table.add_row(kind.key, escape(", ".join(kind.names)))
    table.add_row("data.partition", ", ".join(data.PARTITIONS))
    for task in TASKS.values():
        table.add_row(f"data.augment, {task.name}", ", ".join(task.augmentations))
    table.add_row("optimizer.*.name", ", ".join(optimizers.NAMES))
    table.add_row("inspection.action", "none, flag, drop")
    table.add_row("engine", "inprocess, flower")
    console.print(table)
    say(f"One line for each: catchment list {'|'.join(KINDS)}. All about one: catchment show fedgkt.")


def _list_runs(directory: Path) -> None:
    found = sorted(
        path.parent for path in directory.rglob("experiment.toml") if (path.parent / "rounds.jsonl").exists()
    )
    if not found:
        raise UserError(f"there is no run below {directory}")
    console.print(summary_table([RunFiles.read(path) for path in found], console.width))
