"""Start or resume a run, on the engine that its experiment names."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

from catchment import process
from catchment.config.experiment import Experiment
from catchment.runs.converter import Record
from catchment.runs.directory import RESULT, begin, load_experiment
from catchment.runs.loop import Observer, ignore, run_rounds


def run(experiment: Experiment, out: str | Path | None = None, *, observe: Observer | None = None) -> Record:
    """Run an experiment and return its result; with `out`, keep everything in that directory.

    `observe` is called with the record of every round. Records are dicts with the fields of `catchment.runs.records`.
    """
    process.set_up()
    if experiment.engine == "flower":
        with TemporaryDirectory() if out is None else nullcontext(out) as place:
            return continue_run(experiment, begin(experiment, Path(place)), observe=observe)
    world = experiment.build_world()  # before anything is written
    directory = None if out is None else begin(experiment, Path(out))
    return run_rounds(experiment, world, experiment.build_transport(world, directory), directory, observe)


def resume(out: str | Path, *, observe: Observer | None = None) -> Record:
    """Resume the run in a directory from its last checkpoint; a finished run is left as it is."""
    directory = Path(out)
    if (directory / RESULT).exists():
        return json.loads((directory / RESULT).read_text())  # type: ignore[no-any-return]
    return continue_run(load_experiment(directory), directory, observe=observe)


def continue_run(experiment: Experiment, directory: Path, *, observe: Observer | None = None) -> Record:
    """Do the remaining rounds of the run in a directory, whose experiment is given."""
    process.set_up()
    if experiment.engine == "flower":
        from catchment.flower.federation import federate

        return federate(experiment, directory, observe or ignore)
    world = experiment.build_world()
    return run_rounds(experiment, world, experiment.build_transport(world, directory), directory, observe)
