"""What the commands write to the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from catchment.config.experiment import Experiment
    from catchment.runs.loop import Observer

console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120)
errors = Console(stderr=True)


def say(text: str) -> None:
    """Print a text as it is."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def say_sentences(sentences: Iterable[str]) -> None:
    """Print what should be seen below a table."""
    for sentence in sentences:
        console.print(f"[yellow]{escape(sentence)}[/]", highlight=False, soft_wrap=True)


def note(text: str) -> None:
    """Print what should be known beside a command's output, which may be read by a program, to standard error."""
    errors.print(text, highlight=False, markup=False, soft_wrap=True)


def warn(text: str) -> None:
    """Print a warning to standard error."""
    errors.print(f"[yellow]warning:[/] {escape(text)}", highlight=False, soft_wrap=True)


def fail(text: str) -> None:
    """Print an error to standard error."""
    errors.print(f"[red]error:[/] {escape(text)}", highlight=False, soft_wrap=True)


@contextmanager
def progress(experiment: Experiment, directory: Path) -> Iterator[Observer]:
    """A progress bar on terminals, nothing elsewhere; Ctrl-C says how to go on."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

    from catchment.report import human_bytes
    from catchment.report.verdicts import NAMES

    bar = Progress(
        SpinnerColumn(),
        TextColumn(escape(experiment.name)),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[numbers]}"),
        TimeRemainingColumn(compact=True),
        console=console,
        disable=not console.is_terminal,
    )
    task = bar.add_task("rounds", total=experiment.rounds, numbers="")
    total = 0
    headline, share = experiment.evaluation.headline, ""

    def observe(record: dict[str, Any]) -> None:
        nonlocal total, share
        total += record["bytes"]["up"] + record["bytes"]["down"]
        if (value := record.get("scores", {}).get(headline, record.get("accuracy"))) is not None:
            share = f"{NAMES[headline]} {value:.1%}  "
        bar.update(task, completed=record["round"], numbers=share + human_bytes(total))

    try:
        with bar:
            yield observe
    except KeyboardInterrupt:
        errors.print(f"stopped; go on with: catchment resume {directory}", highlight=False, soft_wrap=True)
        raise typer.Exit(130) from None


def show_runs(directories: list[Path], out: Path | None = None) -> None:
    """The table of results and the path of the report."""
    from catchment.report import summary_table, write_report
    from catchment.report.verdicts import fallen, not_beaten, wrong_in_data
    from catchment.runs.reading import RunFiles

    runs = [RunFiles.read(directory) for directory in directories]
    console.print(summary_table(runs, console.width))
    say_sentences((*not_beaten(runs), *fallen(runs), *wrong_in_data(runs)))
    path = write_report(runs, out or directories[0] / "report.html")
    console.print(f"report: {path}", highlight=False, soft_wrap=True)


def human_count(count: float) -> str:
    """`"1.5 G"`: two digits or so, in powers of 1000."""
    for unit in ("", " k", " M", " G", " T"):
        if count < 1000:
            return f"{count:.3g}{unit}"
        count /= 1000
    return f"{count:.3g} P"
