"""Arguments and options that several commands have."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer

from catchment.cli.output import note
from catchment.config.experiment import Experiment
from catchment.config.toml import changed, parse_setting, read_file
from catchment.names import check_slug

ExperimentFile = Annotated[Path, typer.Argument(help="An experiment in TOML.")]
RunDirectory = Annotated[Path, typer.Argument(help="The directory of a run.")]
Out = Annotated[Path | None, typer.Option(help="Directory of the run; runs/NAME if not given.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Change a setting: --set method.client_epochs=2. May be repeated.")
]


def load(file: Path, settings: list[str] | None, more: Mapping[str, Any] | None = None) -> Experiment:
    """The experiment of a file, changed by `--set` and by what a command has decided; says which model was chosen."""
    changes = {**dict(map(parse_setting, settings or ())), **(more or {})}
    experiment = Experiment.load(file, changes)
    server, given = experiment.models.server, changed(read_file(file), changes).get("models", {})
    clients = experiment.models.client
    names = clients if isinstance(clients, str) else ", ".join(dict.fromkeys(clients))
    if server is not None and "server" not in given:
        note(f"models.server is not set: {server}, which goes with {names}")
    form, name = experiment.build_method().client_form, experiment.method["name"]
    if not names.startswith(form.partition("{")[0]):
        note(f"{name} trains {names} as it is; it is meant for models such as {form.format(names)}")
    return experiment


def free_directory(name: str) -> Path:
    """`runs/name`, or the first `runs/name-2`, `-3`, ... that holds no run."""
    check_slug(name)
    candidates = (Path("runs", name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(path for path in candidates if not (path / "experiment.toml").exists())
