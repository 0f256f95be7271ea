"""The command that says whether an experiment can run, and how large it is."""

from __future__ import annotations

from collections.abc import Iterator

from rich.markup import escape
from rich.table import Table

from catchment.cli.options import ExperimentFile, Settings, load
from catchment.cli.output import console, say, say_sentences
from catchment.core.world import World
from catchment.planning.walk import steps_alone
from catchment.privacy.disclosure import disclosed
from catchment.report import human_bytes
from catchment.report.showing import MISSING

NAMED = 20  # at most this many classes are named


def check(file: ExperimentFile, settings: Settings = None) -> None:
    """Read an experiment, its data and its models, and say what it would do, without training."""
    experiment = load(file, settings)
    world = experiment.build_world()
    console.print(
        f"[bold]{experiment.name}[/]: {experiment.method['name']}, {experiment.rounds} rounds", highlight=False
    )
    console.print(models_table(world))
    console.print(clients_table(world))
    names = world.data.dataset.classes
    say(f"{len(names)} classes: {', '.join(names[:NAMED])}{', ...' if len(names) > NAMED else ''}")
    say_sentences(f"{fault}: {count:,}" for fault, count in world.data.dataset.faults.items())
    console.print(leaving_table(world))
    if experiment.data_parallel and not world.data.own:
        say_sentences(_who_trains(steps_alone(experiment, world)))
    console.print("This experiment can run.")


def _who_trains(alone: dict[str, str]) -> Iterator[str]:
    """What ranks share of the training of the server's model, in sentences."""
    for loss, why in alone.items():
        name = loss.rpartition(":")[2]
        yield f"rank 0 minimises {name} alone: {why}" if why else f"ranks share the steps that minimise {name}"
    if not alone:
        yield "data_parallel changes nothing: this server makes no training steps that ranks can share"


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
