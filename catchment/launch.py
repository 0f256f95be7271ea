"""Start or resume a run, on the engine that its experiment names."""

from __future__ import annotations

import dataclasses
import json
import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from catchment import process
from catchment.config.experiment import Experiment
from catchment.core.world import World
from catchment.engines.ranks import Ranks
from catchment.errors import ExperimentError
from catchment.runs.converter import Record
from catchment.runs.directory import RESULT, begin, load_experiment
from catchment.runs.loop import Observer, ignore, run_rounds


def run(
    experiment: Experiment,
    out: str | Path | None = None,
    *,
    observe: Observer | None = None,
    ranks: Ranks | None = None,
) -> Record:
    """Run an experiment and return its result; with `out`, keep everything in that directory.

    `observe` is called with the record of every round. Records are dicts with the fields of `catchment.runs.records`.
    """
    process.set_up()
    if experiment.engine == "flower":
        with TemporaryDirectory() if out is None else nullcontext(out) as place:
            return continue_run(experiment, begin(experiment, Path(place)), observe=observe)
    with _serving(experiment, ranks):
        world = experiment.build_world()  # before anything is written
        directory = None if out is None else begin(experiment, Path(out))
        transport = experiment.build_transport(world, directory, ranks)
        return run_rounds(experiment, world, transport, directory, observe)


def resume(out: str | Path, *, observe: Observer | None = None) -> Record:
    """Resume the run in a directory from its last checkpoint; a finished run is left as it is."""
    directory = Path(out)
    if (directory / RESULT).exists():
        return json.loads((directory / RESULT).read_text())  # type: ignore[no-any-return]
    return continue_run(load_experiment(directory), directory, observe=observe)


def continue_run(
    experiment: Experiment, directory: Path, *, observe: Observer | None = None, ranks: Ranks | None = None
) -> Record:
    """Do the remaining rounds of the run in a directory, whose experiment is given."""
    process.set_up()
    if experiment.engine == "flower":
        from catchment.flower.federation import federate

        return federate(experiment, directory, observe or ignore)
    with _serving(experiment, ranks):
        world = experiment.build_world()
        transport = experiment.build_transport(world, directory, ranks)
        return run_rounds(experiment, world, transport, directory, observe)


def _serving(experiment: Experiment, ranks: Ranks | None) -> AbstractContextManager[None]:
    """The other ranks, if there are any, build the same world meanwhile."""
    if ranks is None:
        return nullcontext()
    if experiment.batched:
        raise ExperimentError("batched is true, which trains clients in one call of one process: leave torchrun out")
    return ranks.serving(experiment.to_toml(), experiment.workers, experiment.threads)


def world_of_rank(text: str) -> World:
    """The world of an experiment on the torch device of this rank: of several of one kind, the one of its number."""
    experiment = Experiment.from_toml(text)
    device = torch.device(experiment.device)
    if device.index is None and device.type == getattr(torch.accelerator.current_accelerator(), "type", None):
        device = torch.device(device.type, int(os.environ["LOCAL_RANK"]) % torch.accelerator.device_count())
    return dataclasses.replace(experiment, device=str(device)).build_world()
