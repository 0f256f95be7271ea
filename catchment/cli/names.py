"""Commands about names: which ones an experiment can use, and what they mean.

What they show of built-in names is in `names.json`, which `python benchmarks/names.py` writes from the code; so nothing
that learns is imported to show it.
"""

from __future__ import annotations

import functools
import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Column, Table

from catchment.cli.output import console, say
from catchment.errors import ModelError, UserError
from catchment.names import did_you_mean

INDEX = Path(__file__).with_name("names.json")


@functools.cache
def index() -> dict[str, Any]:
    """What `describing.index` made of the code."""
    return json.loads(INDEX.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def kinds() -> dict[str, Any]:
    """The kinds of names, each with the key of an experiment file, and its names with what is known of them."""
    return index()["kinds"]  # type: ignore[no-any-return]


def _complete_kind(incomplete: str) -> list[str]:
    return [kind for kind in kinds() if kind.startswith(incomplete)]


def _complete_name(incomplete: str) -> list[str]:
    return [name for kind in kinds().values() for name in kind["names"] if name.startswith(incomplete)]


def list_names(
    what: Annotated[
        str | None,
        typer.Argument(
            help=f"{', '.join(kinds())}; or a directory, to list the runs below it.", autocompletion=_complete_kind
        ),
    ] = None,
) -> None:
    """List the names that an experiment can use, or the runs below a directory."""
    if what is None:
        _list_all()
    elif what in kinds():
        kind = kinds()[what]
        table = Table(title=f"{what}: names for {kind['key']}", show_header=False, box=None)
        for name, known in kind["names"].items():
            table.add_row(escape(name), escape(known["line"]))
        console.print(table)
    elif Path(what).is_dir():
        _list_runs(Path(what))
    else:
        raise UserError(f'"{what}" is no directory, and nothing that can be listed; {did_you_mean(what, kinds())}')


def show(
    name: Annotated[
        str,
        typer.Argument(
            help="A name that catchment list has, or a model with arguments.", autocompletion=_complete_name
        ),
    ],
) -> None:
    """Say what a name means: its paper, its options with their defaults, what leaves a device."""
    for kind, known in find(name).items():
        _show(name.lower(), kind, known)


def find(name: str) -> dict[str, Any]:
    """What a name stands for, by kind; a name may be of several, and a model may have arguments."""
    wanted = name.lower()
    found = {title: kind["names"][wanted] for title, kind in kinds().items() if wanted in kind["names"]}
    if not found and "(" in wanted:
        from catchment.cli.describing import model

        with suppress(ModelError):  # then it is like no model
            found["models"] = {"line": model(wanted)}
    if not found:
        names = [name for kind in kinds().values() for name in kind["names"]]
        raise UserError(f'there is nothing called "{name}"; {did_you_mean(wanted, names)}')
    return found


def _show(name: str, kind: str, known: dict[str, Any]) -> None:
    if "text" not in known:
        say(f"{name} ({kind}): {known['line']}")
        return
    say(f"{known['text']}\n")
    if known["options"]:
        whole = Column("option", no_wrap=True, min_width=max(len(option) for option, *_ in known["options"]))
        table = Table(whole, "values", "default", "meaning", title=f"Options of {name}")
        for option in known["options"]:
            table.add_row(*map(escape, option))
        console.print(table)
    if "sends" in known:
        if known["average"]:
            say(f"Models are measured as moving averages of their weights: evaluation.average = {known['average']}.\n")
        table = Table("field", "kind", "when asked for", "what it shows", title="What a device sends")
        for row in known["sends"]:
            table.add_row(*map(escape, row))
        console.print(table)


def _list_all() -> None:
    table = Table("key", "names", title="Every name may also be your own: package.module:attribute")
    for key, names in index()["keys"].items():
        table.add_row(key, escape(", ".join(names)))
    console.print(table)
    say(f"One line for each: catchment list {'|'.join(kinds())}. All about one: catchment show fedgkt.")


def _list_runs(directory: Path) -> None:
    from catchment.report import summary_table
    from catchment.runs.reading import RunFiles

    found = sorted(
        path.parent for path in directory.rglob("experiment.toml") if (path.parent / "rounds.jsonl").exists()
    )
    if not found:
        raise UserError(f"there is no run below {directory}")
    console.print(summary_table([RunFiles.read(path) for path in found], console.width))
