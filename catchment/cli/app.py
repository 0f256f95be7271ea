"""The commands by name."""

from __future__ import annotations

from collections.abc import Callable

import typer

from catchment.cli import experiments, federation, keys, names, new, plans, runs, studies, watch
from catchment.cli.output import say
from catchment.engines.ranks import follow, this_rank
from catchment.errors import UserError
from catchment.launch import world_of_rank
from catchment.version import __version__

HELP = "Federated learning of large models from weak devices."
EXAMPLES: dict[Callable[..., None], tuple[str, ...]] = {
    runs.run: ("catchment run my.toml", "catchment run my.toml --set method.client_epochs=2 --out runs/second"),
    runs.resume: ("catchment resume runs/first",),
    runs.report: ("catchment report runs/first runs/second --out both.html",),
    watch.watch: (
        "catchment watch runs/first",
        "catchment watch runs --terminal",
        "catchment watch runs --host 0.0.0.0",
    ),
    studies.study: (
        "catchment study my.toml --vary method.name=fedavg,fedgkt --vary seed=0..2 --jobs 2",
        "catchment study experiments/fedgkt/table5.toml --scale small",
    ),
    runs.export: (
        "catchment export runs/first --client 3 --out model.safetensors",
        "catchment export runs/first --format onnx --pixels",
    ),
    runs.predict: ("catchment predict runs/first/model.onnx photo.png",),
    experiments.check: ("catchment check my.toml",),
    plans.plan: ("catchment plan my.toml --set devices.profile=raspberry", "catchment plan my.toml --advise"),
    names.list_names: ("catchment list", "catchment list methods", "catchment list runs/"),
    names.show: ("catchment show fedgkt", "catchment show int8"),
    new.new: ("catchment new method my_method", "catchment new study my_study --out studies"),
    federation.server: ("catchment server my.toml --keys keys", "catchment server my.toml --insecure --port 9000"),
    federation.join: ("catchment join fl.example.org:9092 --client-id 3 --data ~/data --init", "catchment join"),
    federation.policy: ("catchment policy",),
    keys.key: ("catchment key device.key",),
    keys.keys: (
        "catchment keys keys --clients 0 --host fl.example.org",
        "catchment keys keys --add device.pub --client-id 3",
    ),
}
"""The commands, each with examples for its help."""

app = typer.Typer(name="catchment", no_args_is_help=True, pretty_exceptions_enable=False)
for _command, _examples in EXAMPLES.items():
    _name = {"list_names": "list"}.get(_command.__name__)  # a command cannot shadow the type
    app.command(_name, epilog="Examples:\n\n" + "\n\n".join(_examples))(_command)
RANKED = ("run", "resume", "server")  # what a job of torchrun can do


@app.callback(help=HELP, epilog="Examples:\n\ncatchment new experiment mine\n\ncatchment run mine.toml")
def in_a_job(context: typer.Context) -> None:
    """Under `torchrun`, rank 0 does the command with the help of the others."""
    rank = this_rank()
    if rank is None:
        return
    if context.invoked_subcommand not in RANKED:
        raise UserError(f"torchrun starts {', '.join(RANKED)} alone; start {context.invoked_subcommand} without it")
    if rank > 0:
        follow(world_of_rank)
        raise typer.Exit


@app.command(epilog="Examples:\n\ncatchment version")
def version() -> None:
    """Print the version."""
    say(__version__)
