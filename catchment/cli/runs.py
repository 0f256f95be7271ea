"""Commands about runs: start, resume, export models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from catchment import launch
from catchment.cli.options import ExperimentFile, Out, RunDirectory, Settings, free_directory, load
from catchment.cli.output import progress, say, show_runs, warn
from catchment.cli.watch import Watch, page_of
from catchment.config.experiment import Experiment
from catchment.errors import CatchmentError
from catchment.export import FORMATS, open_model
from catchment.process import this_rank
from catchment.report import human_bytes
from catchment.runs.directory import EXPERIMENT, RESULT, code_of, load_experiment
from catchment.runs.finished import Run
from catchment.simulation.ranks import Ranks


def run(file: ExperimentFile, out: Out = None, settings: Settings = None, watch: Watch = False) -> None:
    """Run an experiment and keep everything about it in a directory."""
    start(load(file, settings), out, watch)


def start(experiment: Experiment, out: Path | None, watch: bool = False) -> None:
    """Run an experiment, with its progress, its table and its report."""
    warn_about_keys(experiment)
    directory = out or free_directory(experiment.name)
    occupied = (directory / "checkpoints").exists()
    try:
        with page_of(directory, watch), progress(experiment, directory) as observe:
            launch.run(experiment, directory, observe=observe, tell=say)
    except CatchmentError as error:
        if (directory / "checkpoints").exists() and not occupied:
            raise type(error)(f"{error}; what was finished is kept: catchment resume {directory}") from error
        raise
    show_runs([directory])


def resume(directory: RunDirectory, watch: Watch = False) -> None:
    """Resume a run that was stopped or killed; the result is the same as without the interruption."""
    if not (directory / RESULT).exists():
        if (directory / EXPERIMENT).exists() and (code := code_of(directory)):
            say(f"{directory} names code of its own, which runs here: {', '.join(code)}")
        experiment = load_experiment(directory)
        warn_about_keys(experiment)
        with page_of(directory, watch), progress(experiment, directory) as observe:
            launch.continue_run(experiment, directory, observe=observe, tell=say)
    elif this_rank() is not None:
        Ranks().close()  # the others wait to be told that there is nothing to do
    show_runs([directory])


def export(
    directory: RunDirectory,
    client: Annotated[int | None, typer.Option(help="Whose model; the global or the server's if not given.")] = None,
    format: Annotated[str, typer.Option(help=f"One of {', '.join(FORMATS)}.")] = "safetensors",
    pixels: Annotated[
        bool, typer.Option("--pixels", help="The model takes pixels and normalises them itself.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="The file; model or client-N in the run, with the format's end, if not given.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
    trust: Annotated[bool, typer.Option("--trust", help="Import the modules that the run's experiment names.")] = False,
) -> None:
    """Write a model of a run as a file that other programs run, checked against PyTorch, and a card beside it."""
    done = Run(directory, trust=trust)
    path = out or directory / (("model" if client is None else f"client-{client}") + FORMATS.get(format, ""))
    written = done.export(path, client, format=format, pixels=pixels, force=force)
    whose = "global or server model" if client is None else f"model of client {client}"
    checked = f", within {written.error:.1e} of PyTorch on {written.images} images" if written.images else ""
    say(
        f"{path}: {whose} after round {done.round} of {done.experiment.rounds}, "
        f"{written.parameters:,} parameters, {human_bytes(path.stat().st_size)}{checked}"
    )
    say(f"card: {path}.md")


def predict(
    model: Annotated[Path, typer.Argument(help="A file that catchment export wrote.")],
    images: Annotated[list[Path], typer.Argument(help="Image files, such as PNG or JPEG.")],
) -> None:
    """Say which class each image shows, with an exported model."""
    for answer in open_model(model).predict(images):
        say(f"{answer.file}: {answer.name} ({100 * answer.probability:.1f} %)")


def warn_about_keys(experiment: Experiment) -> None:
    """Check the keys of a federation before it starts: bad ones are an error, doubtful or missing ones a warning."""
    if experiment.engine != "flower" or (experiment.flower.local and experiment.flower.keys is None):
        return
    if experiment.flower.keys is None:
        warn("there are no keys: whoever reaches this machine may join as a client, and read and alter what is sent")
        return
    from catchment.keys.keys import check_keys

    for text in check_keys(Path(experiment.flower.keys)):
        warn(text)
