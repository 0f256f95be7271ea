"""The state of runs in a terminal."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from catchment.report import human_bytes, human_seconds
from catchment.report.showing import MISSING, percent, printable
from catchment.watching.status import details, find_runs, overview

EVERY = 1.0  # seconds between two looks
CLIENTS = 20  # that fit a screen


def watch_in_terminal(place: Path, console: Console) -> None:
    """Show runs until all are finished, or until Ctrl-C; where there is no terminal, once."""
    if not console.is_terminal:
        console.print(shown(place))
        return
    with Live(shown(place), console=console, auto_refresh=False) as live:
        while not _all_finished(place):
            time.sleep(EVERY)
            live.update(shown(place), refresh=True)


def shown(place: Path) -> RenderableType:
    """One run with its clients, or a table of several."""
    runs = find_runs(place)
    if not runs:
        return Text(f"{place}: no run yet")
    return _one(details(next(iter(runs.values())))) if len(runs) == 1 else _several(overview(place)["runs"])


def _all_finished(place: Path) -> bool:
    runs = overview(place)["runs"].values()
    return bool(runs) and all(run.get("finished") or "error" in run for run in runs)


def _several(runs: dict[str, dict[str, Any]]) -> Table:
    names = {run["headline"] for run in runs.values() if "headline" in run}
    (name,) = names if len(names) == 1 else {""}  # runs that differ say it in their own rows
    table = Table("run", "method", "rounds", f"{name}, %" if name else "headline, %", "up", "left")
    for label, run in runs.items():
        if "error" in run:
            table.add_row(escape(label), "", escape(run["error"]))
        else:
            method, rounds, share, *rest = _numbers(run)
            table.add_row(escape(label), method, rounds, share if name else f"{run['headline']} {share}", *rest)
    return table


def _numbers(run: dict[str, Any]) -> tuple[str, ...]:
    left = run["seconds_left"]
    return (
        escape(run["method"]),
        f"{run['done']} of {run['planned']}",
        percent(run["share"]),
        human_bytes(run["up"]),
        "finished" if run["finished"] else MISSING if left is None else human_seconds(left),
    )


def _row(part: RenderableType) -> Table:
    """Something on a line of its own."""
    row = Table.grid()
    row.add_row(part)
    return row


def _one(run: dict[str, Any]) -> Group:
    method, rounds, share, up, left = _numbers(run)
    constant = "" if run["constant"] is None else f" (a constant answer: {percent(run['constant'])} %)"
    parts: list[RenderableType] = [
        Text(f"{run['name']}: {method}"),
        _row(ProgressBar(total=run["planned"], completed=run["done"], width=60)),
        Text(
            f"{rounds} rounds, {run['headline']} {share} %{constant}, {up} up, {human_bytes(run['down'])} down, "
            f"left: {left}"
        ),
    ]
    if run["fall"]:
        parts.append(Text(run["fall"], style="yellow"))
    parts += [Text(sentence, style="yellow") for sentence in run["helps"]]
    if run["clients"]:
        table = Table("client", "now", "for", "last trouble", "rounds", "why")
        for row in run["clients"][:CLIENTS]:
            trouble = row.get("trouble") or {"what": "", "since": "", "round": "", "why": ""}
            rounds = " to ".join(map(str, dict.fromkeys((trouble["since"], trouble["round"]))))
            lasting = "" if row["seconds"] is None else human_seconds(row["seconds"])
            why = escape(printable(trouble["why"]))
            table.add_row(str(row["client"]), row["state"], lasting, trouble["what"], rounds, why)
        parts.append(table)
    return Group(*parts)
