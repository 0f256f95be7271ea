"""The commands by name. What a command needs is imported when that command is asked for."""

from __future__ import annotations

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import typer
from typer.core import TyperCommand, TyperGroup

from catchment.cli.output import say
from catchment.errors import UserError, needs
from catchment.process import this_rank
from catchment.version import __version__

HELP = "Federated learning of large models from weak devices."
COMMANDS: dict[str, tuple[str, ...]] = {
    "run": ("runs:run", "catchment run my.toml",
            "catchment run my.toml --set method.client_epochs=2 --out runs/second"),
    "resume": ("runs:resume", "catchment resume runs/first"),
    "report": ("reports:report", "catchment report runs/first runs/second --out both.html"),
    "watch": ("watch:watch", "catchment watch runs/first", "catchment watch runs --terminal",
              "catchment watch runs --host 0.0.0.0"),
    "study": ("studies:study", "catchment study my.toml --vary method.name=fedavg,fedgkt --vary seed=0..2 --jobs 2",
              "catchment study experiments/fedgkt/table5.toml --scale small"),
    "export": ("runs:export", "catchment export runs/first --client 3 --out model.safetensors",
               "catchment export runs/first --format onnx --pixels"),
    "predict": ("runs:predict", "catchment predict runs/first/model.onnx photo.png"),
    "check": ("experiments:check", "catchment check my.toml"),
    "plan": ("plans:plan", "catchment plan my.toml --set devices.profile=raspberry", "catchment plan my.toml --advise"),
    "list": ("names:list_names", "catchment list", "catchment list methods", "catchment list runs/"),
    "show": ("names:show", "catchment show fedgkt", "catchment show int8"),
    "new": ("new:new", "catchment new method my_method", "catchment new study my_study --out studies"),
    "schema": ("schema:schema", "catchment schema > experiment.schema.json", "catchment schema study"),
    "server": ("federation:server", "catchment server my.toml --keys keys",
               "catchment server my.toml --insecure --port 9000"),
    "join": ("devices:join", "catchment join fl.example.org:9092 --client-id 3 --data ~/data --init",
             "catchment join"),
    "policy": ("devices:policy", "catchment policy"),
    "key": ("keys:key", "catchment key device.key"),
    "keys": ("keys:keys", "catchment keys keys --clients 0 --host fl.example.org",
             "catchment keys keys --add device.pub --client-id 3"),
}  # fmt: skip
"""The function of each command, in a module beside this one, and examples for its help."""

EXTRAS = {"join": "device", "policy": "device", "key": "device", "keys": "server", "server": "server", "watch": "watch"}
"""What to install for a command; research for all others."""

RANKED = ("run", "resume", "server")  # what a job of torchrun can do


class _Loaded(dict[str, click.Command]):
    """The commands that were asked for, each imported at first."""

    def __missing__(self, name: str) -> click.Command:
        module, _, function = COMMANDS[name][0].partition(":")
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        with needs(f"catchment {name}", EXTRAS.get(name, "research")):
            found = getattr(import_module(f"catchment.cli.{module}"), function)
        alone.command(name, epilog="Examples:\n\n" + "\n\n".join(COMMANDS[name][1:]))(found)
        self[name] = typer.main.get_command(alone)
        return self[name]


class _Commands(TyperGroup):
    """All commands; to list them, only their sources are read."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Loaded(self.commands)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the help."""
        return [*COMMANDS, *(name for name in self.commands if name not in COMMANDS)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command that was loaded, or the name and the purpose of one."""
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            return TyperCommand(cmd_name, help=_purpose(*COMMANDS[cmd_name][0].split(":")))
        return self.commands.get(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is to run, which is loaded."""
        if args and args[0] in COMMANDS:
            self.commands[args[0]]
        return super().resolve_command(ctx, args)


def _purpose(module: str, function: str) -> str:
    """What the docstring of a command says."""
    spec = find_spec(f"catchment.cli.{module}")
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    found = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function)
    return ast.get_docstring(found) or ""


app = typer.Typer(name="catchment", cls=_Commands, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback(help=HELP, epilog="Examples:\n\ncatchment new experiment mine\n\ncatchment run mine.toml")
def in_a_job(context: typer.Context) -> None:
    """Under `torchrun`, rank 0 does the command with the help of the others."""
    rank = this_rank()
    if rank is None:
        return
    if context.invoked_subcommand not in RANKED:
        raise UserError(f"torchrun starts {', '.join(RANKED)} alone; start {context.invoked_subcommand} without it")
    if rank > 0:
        from catchment.launch import world_of_rank
        from catchment.simulation.ranks import follow

        follow(world_of_rank)
        raise typer.Exit


@app.command(epilog="Examples:\n\ncatchment version")
def version() -> None:
    """Print the version."""
    say(__version__)
