"""Start or resume a run, on the engine that its experiment names."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

from catchment import process
from catchment.config.experiment import Experiment
from catchment.core.world import World
from catchment.errors import ExperimentError
from catchment.process import this_rank
from catchment.runs.directory import RESULT, begin, load_experiment
from catchment.runs.journal import Record
from catchment.runs.loop import Observer, ignore, run_rounds
from catchment.simulation.ranks import Ranks, own_device

Tell = Callable[[str], None]


def run(
    experiment: Experiment,
    out: str | Path | None = None,
    *,
    observe: Observer | None = None,
    tell: Tell | None = None,
    ranks: Ranks | None = None,
) -> Record:
    """Run an experiment and return its result; with `out`, keep everything in that directory.

    `observe` is called with the record of every round, `tell` with sentences about what a run waits for whose clients
    are other machines. Records are dicts with the fields of `catchment.runs.records`.
    """
    process.set_up()
    _check_job(experiment)
    if experiment.engine == "flower":
        with TemporaryDirectory() if out is None else nullcontext(out) as place:
            return continue_run(experiment, begin(experiment, Path(place)), observe=observe, tell=tell)
    return _run_in_process(experiment, observe, ranks, lambda: None if out is None else begin(experiment, Path(out)))


def resume(out: str | Path, *, observe: Observer | None = None, tell: Tell | None = None) -> Record:
    """Resume the run in a directory from its last checkpoint; a finished run is left as it is."""
    directory = Path(out)
    if (directory / RESULT).exists():
        return json.loads((directory / RESULT).read_text())  # type: ignore[no-any-return]
    return continue_run(load_experiment(directory), directory, observe=observe, tell=tell)


def continue_run(
    experiment: Experiment,
    directory: Path,
    *,
    observe: Observer | None = None,
    tell: Tell | None = None,
    ranks: Ranks | None = None,
) -> Record:
    """Do the remaining rounds of the run in a directory, whose experiment is given."""
    process.set_up()
    _check_job(experiment)
    if experiment.engine == "flower":
        from catchment.flower.federation import federate

        return federate(experiment, directory, observe or ignore, tell or silent)
    return _run_in_process(experiment, observe, ranks, lambda: directory)


def silent(sentence: str) -> None:
    """Say nothing."""


def _check_job(experiment: Experiment) -> None:
    """Refuse what the ranks of a job cannot help with."""
    if this_rank() is None:
        return
    if experiment.engine == "flower" and not experiment.data_parallel:
        raise ExperimentError(
            "devices serve the clients of a federation, so that ranks have nothing to do: set data_parallel = "
            "true, and they share the training of the server's model"
        )


def _run_in_process(
    experiment: Experiment, observe: Observer | None, ranks: Ranks | None, place: Callable[[], Path | None]
) -> Record:
    """Do the remaining rounds with clients as function calls, here and on the other ranks of a job."""
    if ranks is None and this_rank() is not None:
        with closing(Ranks()) as ranks:
            return _run_in_process(experiment, observe, ranks, place)
    settings = (experiment.to_toml(), experiment.workers, experiment.threads, experiment.data_parallel)
    with nullcontext() if ranks is None else ranks.serving(*settings):
        world = experiment.build_world()  # before anything is written
        directory = place()
        transport = experiment.build_transport(world, directory, ranks)
        return run_rounds(experiment, world, transport, directory, observe)


def world_of_rank(text: str) -> World | None:
    """The world of an experiment on the torch device of this rank; None if devices serve its clients."""
    experiment = Experiment.from_toml(text)
    if experiment.engine == "flower":
        return None
    return dataclasses.replace(experiment, device=str(own_device(experiment.device))).build_world()
