"""Commands about runs: start, resume, report, export models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from catchment import launch, models
from catchment.cli.keys import warn_about_keys
from catchment.cli.options import ExperimentFile, Out, RunDirectory, Settings, free_directory, load
from catchment.cli.output import progress, say, show_runs
from catchment.cli.watch import Watch, page_of
from catchment.config.experiment import Experiment
from catchment.engines.ranks import Ranks, this_rank
from catchment.report import human_bytes
from catchment.runs.directory import RESULT, load_experiment
from catchment.runs.finished import Run


def run(file: ExperimentFile, out: Out = None, settings: Settings = None, watch: Watch = False) -> None:
    """Run an experiment and keep everything about it in a directory."""
    start(load(file, settings), out, watch)


def start(experiment: Experiment, out: Path | None, watch: bool = False) -> None:
    """Run an experiment, with its progress, its table and its report."""
    warn_about_keys(experiment)
    directory = out or free_directory(experiment.name)
    with page_of(directory, watch), progress(experiment, directory) as observe:
        launch.run(experiment, directory, observe=observe)
    show_runs([directory])


def resume(directory: RunDirectory, watch: Watch = False) -> None:
    """Resume a run that was stopped or killed; the result is the same as without the interruption."""
    if not (directory / RESULT).exists():
        experiment = load_experiment(directory)
        warn_about_keys(experiment)
        with page_of(directory, watch), progress(experiment, directory) as observe:
            launch.continue_run(experiment, directory, observe=observe)
    elif this_rank() is not None:
        Ranks().close()  # the others wait to be told that there is nothing to do
    show_runs([directory])


def report(
    directories: Annotated[list[Path], typer.Argument(help="Directories of runs; several are compared.")],
    out: Annotated[
        Path | None, typer.Option(help="The HTML file; report.html in the first directory if not given.")
    ] = None,
) -> None:
    """Write an HTML report of one run, or of several side by side."""
    show_runs(directories, out)


def export(
    directory: RunDirectory,
    client: Annotated[int | None, typer.Option(help="Whose model; the global or the server's if not given.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The file; model.safetensors or client-N.safetensors in the run if not given.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a model of a run as a safetensors file."""
    done = Run(directory)
    path = out or directory / ("model.safetensors" if client is None else f"client-{client}.safetensors")
    model = done.export(path, client, force=force)
    whose = "global or server model" if client is None else f"model of client {client}"
    say(
        f"{path}: {whose} after round {done.round} of {done.experiment.rounds}, "
        f"{models.parameters(model):,} parameters, {human_bytes(path.stat().st_size)}"
    )
