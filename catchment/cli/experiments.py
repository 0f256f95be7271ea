"""Commands about experiments: whether one can run, and which names it can use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from catchment import data, models
from catchment.cli.options import ExperimentFile, Settings, load
from catchment.cli.output import console
from catchment.codecs.rules import STAGES
from catchment.core.world import World
from catchment.engines.profiles import PROFILES
from catchment.errors import UserError
from catchment.learning import optimizers
from catchment.methods import METHODS
from catchment.privacy.disclosure import disclosed
from catchment.report import human_bytes, summary_table
from catchment.report.showing import MISSING
from catchment.robust import ATTACKS
from catchment.robust.aggregators import AGGREGATORS
from catchment.runs.reading import RunFiles
from catchment.tasks import TASKS


def check(file: ExperimentFile, settings: Settings = None) -> None:
    """Read an experiment, its data and its models, and say what it would do, without training."""
    experiment = load(file, settings)
    world = experiment.build_world()
    console.print(
        f"[bold]{experiment.name}[/]: {experiment.method['name']}, {experiment.rounds} rounds", highlight=False
    )
    console.print(models_table(world))
    console.print(clients_table(world))
    console.print(leaving_table(world))
    console.print("This experiment can run.")


def list_names(
    directory: Annotated[Path | None, typer.Argument(help="List the runs below this directory instead.")] = None,
) -> None:
    """List the names that an experiment can use, or the runs below a directory."""
    if directory is not None:
        found = sorted(
            path.parent for path in directory.rglob("experiment.toml") if (path.parent / "rounds.jsonl").exists()
        )
        if not found:
            raise UserError(f"there is no run below {directory}")
        console.print(summary_table([RunFiles.read(path) for path in found], console.width))
        return
    table = Table("key", "names", title="Every name may also be your own: package.module:attribute")
    table.add_row("method.name", ", ".join(sorted(METHODS)))
    table.add_row("models.client, models.server", ", ".join(models.MODELS))
    table.add_row("data.name", ", ".join(data.SOURCES) + ", or the path of a folder of Parquet or NumPy files")
    table.add_row("data.partition", ", ".join(data.PARTITIONS))
    for task in TASKS.values():
        table.add_row(f"data.augment, {task.name}", ", ".join(task.augmentations))
    table.add_row("optimizer.*.name", ", ".join(optimizers.NAMES))
    table.add_row("devices.profile", ", ".join(PROFILES))
    table.add_row("wire.codecs", "PATTERN=CHAIN of " + ", ".join(STAGES))
    table.add_row("aggregation.name", ", ".join(AGGREGATORS))
    table.add_row("attack.name", "none, " + ", ".join(ATTACKS))
    table.add_row("inspection.action", "none, flag, drop")
    table.add_row("engine", "inprocess, flower")
    console.print(table)


def models_table(world: World) -> Table:
    """The models of clients and server, and how large they are."""
    table = Table("model", "where", "parameters", "MACs per sample", title="Models")
    dealt = world.client_models
    rows = [
        (architecture, "clients" if len(dealt) == 1 else f"{dealt.count(architecture.name)} of {len(dealt)} clients")
        for architecture in dict.fromkeys(world.client_architectures)
    ]
    if world.server_model is not None:
        rows.append((world.server_architecture, "server"))
    for architecture, where in rows:
        table.add_row(
            architecture.name, where, f"{architecture.facts.parameters:,}", f"{architecture.facts.total_macs:,}"
        )
    return table


def clients_table(world: World) -> Table:
    """How many samples the clients have, and how many are public or for testing."""
    sizes = sorted(world.data.clients.sizes.tolist())
    public = 0 if world.data.public is None else len(world.data.public)
    table = Table("clients", "smallest", "median", "largest", "private", "public", "test", title="Samples")
    private = [f"{number:,}" for number in (sizes[0], sizes[len(sizes) // 2], sizes[-1], sum(sizes))]
    if world.data.own:
        private = ["their own"] * len(private)
    table.add_row(f"{len(sizes):,}", *private, f"{public:,}", f"{len(world.data.test):,}")
    return table


def leaving_table(world: World) -> Table:
    """What a client sends, field by field."""
    title = f"What a device sends, such as client 0 with {world.client_architecture(0).name}"
    table = Table("field", "kind", "shape", "when asked for", "bytes per reply, at most", "what it shows", title=title)
    for row in disclosed(type(world.method), world):
        cells = (row.field, row.kind, row.shape, row.when, MISSING if row.most is None else human_bytes(row.most))
        table.add_row(*map(escape, cells), row.shows)
    return table
