"""The commands by name."""

from __future__ import annotations

import typer

from catchment.cli import experiments, federation, keys, runs, studies
from catchment.cli.output import say
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
app.command("list")(experiments.list_names)
app.command()(federation.server)
app.command()(federation.join)
app.command()(federation.policy)
app.command()(keys.key)
app.command()(keys.keys)


@app.command()
def version() -> None:
    """Print the version."""
    say(__version__)
