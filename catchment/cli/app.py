"""The commands by name."""

from __future__ import annotations

import typer

from catchment.cli import experiments, federation, keys, plans, runs, studies
from catchment.cli.output import say
from catchment.engines.ranks import follow, this_rank
from catchment.errors import UserError
from catchment.launch import world_of_rank
from catchment.version import __version__

app = typer.Typer(
    name="catchment",
    help="Federated learning of large models from weak devices.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(runs.run)
app.command()(runs.resume)
app.command()(runs.report)
app.command()(studies.study)
app.command()(runs.export)
app.command()(experiments.check)
app.command()(plans.plan)
app.command("list")(experiments.list_names)
app.command()(federation.server)
app.command()(federation.join)
app.command()(federation.policy)
app.command()(keys.key)
app.command()(keys.keys)
RANKED = ("run", "resume", "server")  # what a job of torchrun can do


@app.callback()
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


@app.command()
def version() -> None:
    """Print the version."""
    say(__version__)
