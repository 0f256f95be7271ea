"""The command that says what an experiment costs before it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from catchment.cli.options import ExperimentFile, Settings, load
from catchment.cli.output import console, human_count, say
from catchment.cli.trials import try_methods
from catchment.config.toml import parse_setting
from catchment.errors import UserError
from catchment.planning.advice import BASELINES, Advice, Advised, advise
from catchment.planning.plan import Amount, Plan, plan as make_plan
from catchment.report import human_bytes, human_seconds
from catchment.report.showing import MISSING, shortened


def plan(
    file: ExperimentFile,
    settings: Settings = None,
    advice: Annotated[
        bool, typer.Option("--advise", help="Plan every method, and rank those that fit by what our studies found.")
    ] = False,
    tried: Annotated[
        str | None,
        typer.Option("--try", metavar="TIME", help="With --advise: try them on a part of the data, such as 10m."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder of what --try runs.")] = Path("runs", "tried"),
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Say what an experiment costs each kind of device and the server, and whether it fits; with --try, what to run."""
    experiment = load(file, settings)
    if tried is not None:
        if not advice:
            raise UserError("--try is part of the advice: catchment plan FILE --advise --try 10m")
        try_methods(file, dict(map(parse_setting, settings or ())), experiment, tried, out, as_json)
        return
    if advice:
        found = advise(experiment)
        if as_json:
            typer.echo(json.dumps(found.as_json(), indent=2))
        else:
            _show_advice(found)
        return
    made = make_plan(experiment)
    if as_json:
        typer.echo(json.dumps(made.as_json(), indent=2))
    else:
        _show_plan(made)


def _show_plan(made: Plan) -> None:
    table = Table(title=f"{escape(made.name)}: {escape(made.method)}, the most that one device does in a round")
    for heading in ("devices", "model", "profile"):
        table.add_column(heading)
    for heading in ("parameters", "samples", "work, MACs", "memory", "up", "down", "time"):
        table.add_column(heading, justify="right")
    for kind in made.devices:
        table.add_row(
            f"{kind.clients:,}", escape(kind.model), escape(kind.profile), f"{kind.parameters:,}", f"{kind.samples:,}",
            human_count(kind.macs), _memory(kind.memory), human_bytes(kind.up), human_bytes(kind.down),
            human_seconds(kind.seconds) if kind.seconds else MISSING,
        )  # fmt: skip
    server = made.server
    table.add_section()
    table.add_row(
        "server", escape(server.model or MISSING), "", f"{server.parameters:,}" if server.parameters else MISSING, "",
        human_count(server.macs), human_bytes(server.memory),
    )  # fmt: skip
    console.print(table)
    say(
        f"{made.rounds} rounds: {_amount(made.up)} up, {_amount(made.down)} down, "
        f"{human_bytes(made.evaluation)} for evaluation"
        + (f", {human_seconds(made.virtual_seconds)} on these devices" if made.virtual_seconds else "")
    )
    if made.walked < made.rounds:
        say(f"Rounds {made.walked + 1} to {made.rounds} are taken to be like those before.")
    say(f"Devices send {', '.join(made.leaves)}. What that shows: catchment check, docs/privacy.md.")
    for kind in made.devices:
        for why in kind.problems:
            say(f"Does not fit {kind.profile} with {kind.model}: {why}.")
    if made.fits:
        say("It fits." if any(kind.profile != "ideal" for kind in made.devices) else "No device has limits.")


def _show_advice(advice: Advice) -> None:
    where = f"accuracy in the nearest study: {advice.setting}" if advice.setting else "no study compared these methods"
    table = Table(title=f"Methods that fit, by {where}" if advice.setting else f"Methods that fit; {where}")
    table.add_column("method")
    for heading in ("accuracy, %", "seeds", "work, MACs", "memory", "all up", "all down"):
        table.add_column(heading, justify="right")
    table.add_column("leaves the device")
    others: dict[str, str] = {}
    for one in advice.methods:
        if one.fits and one.plan is not None:
            kinds = one.plan.devices
            table.add_row(
                one.method + (" (baseline)" if one.method in BASELINES else ""), _accuracy(one, advice, others),
                f"{one.seeds}" if one.seeds else MISSING, human_count(max(kind.macs for kind in kinds)),
                _memory(max((kind.memory or 0 for kind in kinds), default=0) or None),
                human_bytes(one.plan.up.expected), human_bytes(one.plan.down.expected),
                ", ".join(one.plan.leaves),
            )  # fmt: skip
    console.print(table)
    say("Work and memory: the most of one device in a round. Bytes: of all devices and rounds, at most.")
    for text, mark in others.items():
        say(f"{mark} {text}")
    if rows := [f"{one.method}: {one.row}" for one in advice.methods if one.row and one.setting is advice.setting]:
        say(f"Accuracies are of a method's best row, whose settings may differ from yours: {'; '.join(rows)}.")
    for one in advice.methods:
        if not one.fits:
            say(f"{one.method} does not fit: {shortened(one.why_not, 150)}")


def _accuracy(one: Advised, advice: Advice, others: dict[str, str]) -> str:
    """The accuracy with a mark that says where it was measured, if that is elsewhere."""
    if one.accuracy is None or one.setting is None:
        return MISSING
    text = f"{100 * one.accuracy:.1f}"
    if one.setting is advice.setting:
        return text
    mark = others.setdefault(f"measured elsewhere: {one.setting}", "*" * (len(others) + 1))
    return f"{text} {mark}"


def _amount(amount: Amount) -> str:
    if amount.exact:
        return human_bytes(amount.high)
    return f"about {human_bytes(amount.expected)} ({human_bytes(amount.low)} to {human_bytes(amount.high)})"


def _memory(size: int | None) -> str:
    return MISSING if size is None else human_bytes(size)
