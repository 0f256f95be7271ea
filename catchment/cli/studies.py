"""The command for studies: run what is missing of a table of experiments, and show it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from catchment.cli.output import console, errors, fail, say, say_sentences
from catchment.cli.watch import Watch, page_of
from catchment.config.toml import parse_setting
from catchment.errors import ExperimentError, UserError
from catchment.names import did_you_mean
from catchment.report import human_seconds
from catchment.studies import tables
from catchment.studies.file import PAPER, StudyFile
from catchment.studies.results import StudyResult
from catchment.studies.study import Progress as StudyProgress, Study

_COMMA = re.compile(r",(?![^()]*\))")  # between values; models such as lenet(8,16,2) have some of their own


def study(
    file: Annotated[Path, typer.Argument(help="A study file, or an experiment file to vary.")],
    scale: Annotated[str, typer.Option(help="A scale of the study; full scale if not given.")] = PAPER,
    rows: Annotated[str, typer.Option(help="Only rows whose label matches this pattern, such as '*gkt*'.")] = "*",
    seeds: Annotated[int | None, typer.Option(help="Seeds 0 to N - 1 in place of the study's.", min=1)] = None,
    vary: Annotated[
        list[str] | None, typer.Option(help="Values of a setting, such as method.name=fedavg,fedgkt or seed=0..4.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Processes that run experiments at the same time.", min=1)] = 1,
    out: Annotated[Path, typer.Option(help="The folder of runs, which several processes may share.")] = Path("runs"),
    known: Annotated[
        Path | None, typer.Option(help="A result file, or a folder of them: runs that they have are not run again.")
    ] = None,
    form: Annotated[str, typer.Option(help=f"The table also as {', '.join(tables.FORMS)}.")] = "",
    track: Annotated[
        list[str] | None, typer.Option(help="Send rounds to a tracker: mlflow, tensorboard or wandb.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Run nothing; show the results so far.")] = False,
    watch: Watch = False,
) -> None:
    """Run what is missing of a study, share the work with other processes on the same folder, and show its table."""
    if form and form not in tables.FORMS:
        raise UserError(f'unknown form "{form}"; {did_you_mean(form, tables.FORMS)}')
    chosen = Study.load(
        file, scale=scale, rows=rows, seeds=seeds, vary=parse_vary(vary or ()), out=out,
        trackers=tuple(track or ()), known=known,
    )  # fmt: skip
    if show:
        result = chosen.result()
    else:
        with page_of(out, watch), _progress(chosen.file) as follow:
            result = chosen.run(jobs, watch=follow)
    if form:
        typer.echo(tables.FORMS[form](result), nl=False)
    else:
        console.print(tables.text(result))
        say_sentences(tables.not_beaten(result))
        if not show:
            say(f"results: {chosen.result_file}")
            say(f"page: {chosen.page_file}")
    if _failures(result):
        raise typer.Exit(1)


def parse_vary(texts: Sequence[str]) -> dict[str, list[Any]]:
    """The values of every setting that `--vary` names, each once."""
    found: dict[str, list[Any]] = {}
    for text in texts:
        key, values = parse_values(text)
        if key in found:
            raise ExperimentError(f"--vary {key} is given twice; name all values once, such as --vary {key}=A,B")
        found[key] = values
    return found


def parse_values(text: str) -> tuple[str, list[Any]]:
    """`"seed=0..4"` or `"method.name=fedavg,fedgkt"` as a key and its values; a list in TOML is taken as it is."""
    if not re.match(r"\s*[^=\s]+\s*=\s*\S", text) or "\n" in text:
        raise ExperimentError(f"--vary {text}: expected key=values, such as --vary method.name=fedavg,fedgkt")
    key, value = parse_setting(text)
    if isinstance(value, str) and (match := re.fullmatch(r"(-?\d+)\.\.(-?\d+)", value)):
        first, last = int(match[1]), int(match[2])
        if last < first:
            raise ExperimentError(f"--vary {text}: {first}..{last} is empty; the smaller number comes first")
        return key, list(range(first, last + 1))
    if isinstance(value, str):
        return key, [parse_setting(f"{key}={item}")[1] for item in _COMMA.split(value)]
    if value == []:
        raise ExperimentError(f"--vary {text}: the list is empty; at least one value is expected")
    return key, value if isinstance(value, list) else [value]


def _failures(result: StudyResult) -> bool:
    """Say why runs failed."""
    for row in result.rows:
        for seed, why in row.failed.items():
            fail(f'row "{row.label}", seed {seed}: {why}')
    return any(row.failed for row in result.rows)


@contextmanager
def _progress(file: StudyFile) -> Iterator[Callable[[StudyProgress], None]]:
    """A bar over the rounds of all runs; Ctrl-C says that nothing is lost."""
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),  # a name may have braces of its own
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds{task.fields[left]}"),
        console=console,
        disable=not console.is_terminal,
    )
    task = bar.add_task(f"{file.name}, {file.scale}", left="")

    def watch(progress: StudyProgress) -> None:
        done, total = progress.rounds
        left = progress.seconds_left
        bar.update(task, completed=done, total=total, left="" if left is None else f", {human_seconds(left)} left")

    try:
        with bar:
            yield watch
    except KeyboardInterrupt:
        errors.print("stopped; nothing is lost: the same command continues it", highlight=False)
        raise typer.Exit(130) from None
