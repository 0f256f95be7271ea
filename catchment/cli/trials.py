"""What `catchment plan --advise --try` shows and writes."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tomli_w
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress as Bar, SpinnerColumn, TextColumn
from rich.table import Table

from catchment.cli.output import console, errors, human_count, say, say_sentences
from catchment.config.experiment import Experiment
from catchment.config.toml import changed
from catchment.errors import UserError
from catchment.files import write_atomically
from catchment.planning.advice import with_method
from catchment.report import human_bytes, human_seconds
from catchment.report.showing import MISSING, shortened
from catchment.studies.candidates import find_facts
from catchment.studies.trials import Outcome, Progress, Standing, Trials

_SECONDS = {"s": 1, "m": 60, "h": 3600}


def try_methods(
    file: Path, settings: Mapping[str, Any], experiment: Experiment, given: str, out: Path, as_json: bool
) -> None:
    """Try what fits for so long, show what it reached, and write the file to run next."""
    seconds = parse_time(given)
    with _shown(f"plan of every method, then trials of {given}", seconds) as follow:
        trials = Trials(experiment, find_facts(experiment, out), seconds, out)
        outcome = trials.run(follow)
    written = _write(file, settings, experiment, outcome, f"catchment plan {file.name} --advise --try {given}")
    if as_json:
        typer.echo(json.dumps({**outcome.as_json(), "file": None if written is None else str(written)}, indent=2))
    else:
        _show(outcome, written)


def parse_time(text: str) -> float:
    """`"10m"` in seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip())
    if found is None or not float(found[1]):
        raise UserError(f"--try {text}: a time is expected, such as 90s, 10m or 1h")
    return float(found[1]) * _SECONDS[found[2]]


def _show(outcome: Outcome, written: Path | None) -> None:
    size = outcome.size
    table = Table(
        title=f"{size.samples:,} training samples, {size.rounds} rounds, {size.validation:,} validation samples"
    )
    table.add_column("method")
    for heading in ("rate", "rounds", "accuracy, %", "seeds", "work, MACs", "all up", "all down"):
        table.add_column(heading, justify="right")
    table.add_column("leaves the device")
    shown: dict[str, Standing] = {}  # the best rate of each method, or the one that came farthest
    for one in outcome.standings:
        if outcome.chosen is None or one is outcome.chosen or one.trial.method != outcome.chosen.trial.method:
            shown.setdefault(one.trial.method, one)
    for one in shown.values():
        costs, found = one.trial.candidate, one.accuracy
        table.add_row(
            one.trial.method + (" (baseline)" if costs.baseline else ""), f"{one.trial.rate:g}", f"{one.rounds}",
            _accuracy(one), MISSING if found is None else f"{found.runs}", human_count(costs.macs),
            human_bytes(costs.up), human_bytes(costs.down), ", ".join(costs.leaves),
            style="bold" if one is outcome.chosen else "",
        )  # fmt: skip
    console.print(table)
    say("Work: the most of one device in a round. Bytes: of all devices and rounds of the experiment itself, at most.")
    say("Other rates of these methods were tried too, unless time was over; --json has all trials.")
    for one in outcome.standings:
        if one.why.startswith("it "):
            say(f"{one.trial} stopped: {shortened(one.why, 150)}.")
    for method, why in outcome.not_tried.items():
        say(f"{method} was not tried: {shortened(why, 150)}")
    if not outcome.finished:
        say_sentences(["Time was over before the last trial. The same command goes on, or give more time."])
    chosen = outcome.chosen
    if chosen is None or written is None:
        say_sentences(["Nothing was measured, so there is nothing to advise."])
        return
    say(f"Best: {chosen.trial}, {_accuracy(chosen)} % after {chosen.rounds} rounds.")
    if outcome.constant is not None:
        say(f"Always answering the most frequent class is right for {100 * outcome.constant:.1f} % of these samples.")
    if (frugal := outcome.frugal()) is not None:
        say(f"As good up to noise, with at most half of the bytes: {frugal.trial}, {_accuracy(frugal)} %.")
    say_sentences(outcome.none_ahead())
    say(f"To run next: catchment run {written}")


def _accuracy(one: Standing) -> str:
    if one.accuracy is None:
        return MISSING
    deviation = one.accuracy.deviation
    return f"{100 * one.accuracy.mean:.1f}" + ("" if deviation is None else f" ± {100 * deviation:.1f}")


def _write(
    file: Path, settings: Mapping[str, Any], experiment: Experiment, outcome: Outcome, command: str
) -> Path | None:
    """The experiment with the method and the rate that were chosen, beside its file, where it finds its modules."""
    if (chosen := outcome.chosen) is None:
        return None
    trial, other = chosen.trial, chosen.trial.method != experiment.method["name"]
    changes = {key: value for key, value in settings.items() if not (other and re.match(r"method(\.|$)", key))}
    changes["name"] = f"{experiment.name}-{re.sub('[^a-z0-9]+', '-', trial.method.lower())}"
    if other:
        changes["method.name"] = trial.method
        made = with_method(experiment, trial.method)
        if made.wire.codecs != experiment.wire.codecs:
            changes["wire.codecs"] = list(made.wire.codecs)
        if made.models.client != experiment.models.client:
            changes["models.client"] = made.models.client
        if made.models.server not in (None, experiment.models.server):
            changes["models.server"] = made.models.server
    if trial.rate != experiment.optimizer.client.lr:
        changes["optimizer.client.lr"] = trial.rate
    path = file.with_name(f"{file.stem}-advised.toml")
    why = (
        f"# {trial}: {_accuracy(chosen)} % of validation samples after {chosen.rounds} rounds, found by\n# {command}\n"
    )
    table = {"extends": file.name, **changed({}, changes)}
    write_atomically(path, (why + tomli_w.dumps(table)).encode())
    return path


@contextmanager
def _shown(doing: str, seconds: float) -> Iterator[Callable[[Progress], None]]:
    """A bar over the rounds of all trials; Ctrl-C says that nothing is lost."""
    bar = Bar(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds{task.fields[left]}"),
        console=console,
        disable=not console.is_terminal,
    )
    task = bar.add_task(doing, left="", total=None)
    ends: list[float] = []  # known when the trials begin

    def watch(progress: Progress) -> None:
        ends[:] = ends or [time.monotonic() + seconds]
        left = f", at most {human_seconds(max(0.0, ends[0] - time.monotonic()))} left"
        bar.update(task, description=progress.doing, completed=progress.done, total=progress.of, left=left)

    try:
        with bar:
            yield watch
    except KeyboardInterrupt:
        errors.print("stopped; nothing is lost: the same command continues it", highlight=False)
        raise typer.Exit(130) from None
