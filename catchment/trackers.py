"""Trackers: rounds of a run as TensorBoard event files, MLflow runs or Weights & Biases runs.

Off by default; each needs the extra of its name. A tracker that fails is dropped with a warning, and the run goes on.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from catchment.config.experiment import Experiment
from catchment.errors import ExperimentError, needs
from catchment.names import did_you_mean
from catchment.runs.journal import Record
from catchment.runs.loop import Observer

_LOG = logging.getLogger("catchment")


class Tracker(Protocol):
    """Receives the numbers of a run."""

    def log(self, numbers: Mapping[str, float], round: int) -> None:
        """Record the numbers of a round."""

    def close(self) -> None:
        """The run has ended."""


class TensorBoard:
    """Event files in `tensorboard/` of the run's directory."""

    def __init__(self, experiment: Experiment, directory: Path) -> None:
        with needs("the tracker tensorboard", "tensorboard"):
            from torch.utils.tensorboard import SummaryWriter
        self._writer: Any = SummaryWriter(str(directory / "tensorboard"))
        self._writer.add_text("experiment", f"```toml\n{experiment.to_toml()}\n```")

    def log(self, numbers: Mapping[str, float], round: int) -> None:
        """One scalar per number."""
        for name, number in numbers.items():
            self._writer.add_scalar(name.replace(".", "/"), number, round)
        self._writer.flush()

    def close(self) -> None:
        """Finish the files."""
        self._writer.close()


class MLflow:
    """A run of MLflow at `MLFLOW_TRACKING_URI`, or in `mlflow.db` beside the run's directory."""

    def __init__(self, experiment: Experiment, directory: Path) -> None:
        with needs("the tracker mlflow", "mlflow"):
            from mlflow.tracking import MlflowClient
        uri = os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{(directory.parent / 'mlflow.db').absolute()}")
        self._client = MlflowClient(tracking_uri=uri)
        found = self._client.get_experiment_by_name("catchment")
        place = self._client.create_experiment("catchment") if found is None else found.experiment_id
        self._run = self._client.create_run(place, run_name=experiment.name).info.run_id
        for name, value in _flat(experiment.to_dict()):
            self._client.log_param(self._run, name, value)

    def log(self, numbers: Mapping[str, float], round: int) -> None:
        """One metric per number."""
        for name, number in numbers.items():
            self._client.log_metric(self._run, name, number, step=round)

    def close(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self._run)


class WeightsAndBiases:
    """A run of Weights & Biases; offline, in the run's directory, unless WANDB_MODE or WANDB_API_KEY is set."""

    def __init__(self, experiment: Experiment, directory: Path) -> None:
        with needs("the tracker wandb", "wandb"):
            import wandb
        offline = not {"WANDB_MODE", "WANDB_API_KEY"} & os.environ.keys()  # it would ask a person to log in
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "catchment"),
            name=experiment.name,
            config=experiment.to_dict(),
            dir=str(directory),
            mode="offline" if offline else None,
        )

    def log(self, numbers: Mapping[str, float], round: int) -> None:
        """One step per round."""
        self._run.log(dict(numbers), step=round)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


TRACKERS: dict[str, Callable[[Experiment, Path], Tracker]] = {
    "mlflow": MLflow,
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
}


def check_trackers(names: Sequence[str]) -> None:
    """Refuse a name that no tracker has."""
    for name in names:
        if name not in TRACKERS:
            raise ExperimentError(f'unknown tracker "{name}"; {did_you_mean(name, TRACKERS)}')


@contextmanager
def tracking(names: Sequence[str], experiment: Experiment, directory: Path) -> Iterator[Observer]:
    """An observer that passes every round on to the trackers with these names."""
    check_trackers(names)
    guarded = [_Guarded(name, experiment, directory) for name in names]

    def observe(record: Record) -> None:
        for tracker in guarded:
            tracker.log(record)

    try:
        yield observe
    finally:
        for tracker in guarded:
            tracker.close()


class _Guarded:
    """A tracker that is dropped at its first failure."""

    def __init__(self, name: str, experiment: Experiment, directory: Path) -> None:
        self._name = name
        self._tracker: Tracker | None = None
        self._do(lambda: self._open(experiment, directory))

    def log(self, record: Record) -> None:
        """Pass a round on."""
        if (tracker := self._tracker) is not None:
            self._do(lambda: tracker.log(numbers_of(record), record["round"]))

    def close(self) -> None:
        """Close the tracker, even after a failure."""
        if (tracker := self._tracker) is not None:
            self._do(tracker.close)

    def _open(self, experiment: Experiment, directory: Path) -> None:
        self._tracker = TRACKERS[self._name](experiment, directory)

    def _do(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            self._tracker = None
            _LOG.warning("tracker %s failed and is dropped: %s: %s", self._name, type(error).__name__, error)


def numbers_of(record: Record) -> dict[str, float]:
    """The numbers of a round, by dotted names."""
    kept = {key: record[key] for key in record if key not in ("round", "events", "probe")}
    return {name: value for name, value in _flat(kept) if isinstance(value, int | float)}


def _flat(table: Mapping[str, Any], begin: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        name = f"{begin}.{key}" if begin else str(key)
        if isinstance(value, Mapping):
            yield from _flat(value, name)
        else:
            yield name, value
