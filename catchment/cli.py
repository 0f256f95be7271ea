"""The command line. Bad input ends in one sentence and exit code 2, a failed run in exit code 1, Ctrl-C in 130."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from catchment import __version__, data, models, optimizers
from catchment.aggregators import AGGREGATORS
from catchment.attacks import ATTACKS
from catchment.codecs.rules import STAGES
from catchment.device.disk import approve as approve_run
from catchment.device.showing import described
from catchment.disclosure import disclosed
from catchment.errors import CatchmentError, UserError
from catchment.experiment import METHODS, Experiment, parse_setting
from catchment.finished import Run
from catchment.policy import FILE, REVEALING, Allow, Policy
from catchment.report import RunFiles, human_bytes, summary_table, write_report
from catchment.report.showing import MISSING
from catchment.run import Observer
from catchment.run import resume as resume_run
from catchment.run import run as run_experiment
from catchment.transports.devices import DEVICES
from catchment.world import World

app = typer.Typer(
    name="catchment",
    help="Federated learning of large models from weak devices.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120)
errors = Console(stderr=True)

File = Annotated[Path, typer.Argument(help="An experiment in TOML.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Change a setting: --set method.client_epochs=2. May be repeated.")
]


@app.command()
def run(
    file: File,
    out: Annotated[Path | None, typer.Option(help="Directory of the run; runs/NAME if not given.")] = None,
    settings: Settings = None,
) -> None:
    """Run an experiment and keep everything about it in a directory."""
    experiment = Experiment.load(file, dict(parse_setting(text) for text in settings or ()))
    _warn_of_open_doors(experiment)
    directory = out or _free_directory(Path("runs"), experiment.name)
    with _progress(experiment, directory) as observe:
        run_experiment(experiment, directory, observe=observe)
    _show([directory])


@app.command()
def resume(directory: Annotated[Path, typer.Argument(help="The directory of a run.")]) -> None:
    """Go on with a run that was stopped or killed, to the very same result."""
    if not (directory / "experiment.toml").exists():
        raise UserError(f"{directory} holds no run to resume (it has no experiment.toml)")
    experiment = Experiment.load(directory / "experiment.toml")
    _warn_of_open_doors(experiment)
    with _progress(experiment, directory) as observe:
        resume_run(directory, observe=observe)
    _show([directory])


@app.command()
def server(
    file: File,
    out: Annotated[Path | None, typer.Option(help="Directory of the run; runs/NAME if not given.")] = None,
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 is all of this machine's.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(help="The port to listen on.")] = 9092,
    keys: Annotated[
        Path | None, typer.Option(help="Folder made by catchment keys: who joins must have a key, all is encrypted.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="No keys: anybody may join, nothing is encrypted.")
    ] = False,
    settings: Settings = None,
) -> None:
    """Run an experiment with clients on other machines, which join with catchment join."""
    if (keys is None) != insecure:
        raise UserError("give either --keys DIR (made by: catchment keys DIR) or --insecure, and not both")
    chosen = {"engine": "flower", "flower.local": False, "flower.host": host, "flower.port": port}
    if keys is not None:
        chosen["flower.keys"] = str(keys.absolute())
    experiment = Experiment.load(file, {**dict(parse_setting(text) for text in settings or ()), **chosen})
    _warn_of_open_doors(experiment)
    directory = out or _free_directory(Path("runs"), experiment.name)
    console.print(f"{directory}: waiting for {experiment.data.clients} clients on port {port}", highlight=False)
    with _progress(experiment, directory) as observe:
        run_experiment(experiment, directory, observe=observe)
    _show([directory])


@app.command()
def join(
    address: Annotated[str | None, typer.Argument(help="HOST:PORT of the server; with --init.")] = None,
    policy: Annotated[Path, typer.Option(help="The device's policy.")] = FILE,
    init: Annotated[bool, typer.Option("--init", help="Write the policy from the other options, and end.")] = False,
    client: Annotated[int | None, typer.Option("--client-id", help="Which client this is; the first is 0.")] = None,
    data_folder: Annotated[
        Path | None, typer.Option("--data", help="Folder of data sets, or of this device's own data.")
    ] = None,
    state: Annotated[Path | None, typer.Option(help="Folder for what the device remembers.")] = None,
    root_certificate: Annotated[Path | None, typer.Option(help="ca.crt of the server.")] = None,
    key: Annotated[Path | None, typer.Option(help="This device's key, made by catchment key.")] = None,
    federation: Annotated[Path | None, typer.Option(help="federation.pub, by which runs must be signed.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="No encryption, no key and no signature.")] = False,
    modules: Annotated[
        Path | None, typer.Option(help="Folder of your own modules, if the experiment names any.")
    ] = None,
    leaves: Annotated[
        list[str] | None, typer.Option("--allow", help=f"What else may leave: {', '.join(REVEALING)}.")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="End with the first run instead of waiting for the next.")
    ] = False,
) -> None:
    """Take part as one client, as this device's policy allows, until you press Ctrl-C."""
    given = {
        "server": address, "client": client, "data": data_folder, "state": state, "root_certificate": root_certificate,
        "key": key, "federation": federation, "insecure": insecure or None, "modules": modules,
    }  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None}
    if init:
        _write_policy(policy, given, leaves or [])
        return
    if given or leaves:
        raise UserError(
            "where the server is and what may leave stands in the policy: write it once with --init after these "
            f"options, or change {policy} with a text editor; then give catchment join none of them"
        )
    from catchment.flower.joining import join_federation

    found = Policy.load(policy)
    if found.insecure and not found.allow.trusted:
        _warn("the policy says insecure: whoever is on the way can read and alter what is sent")
    join_federation(found, once=once, ask=_agreed if sys.stdin.isatty() else None, tell=_say)


@app.command("policy")
def show_policy(
    file: Annotated[Path, typer.Argument(help="The device's policy.")] = FILE,
    approve: Annotated[str | None, typer.Option(help="Approve the run of this digest.")] = None,
) -> None:
    """Say in plain words what a device lets a server have, and what has left so far."""
    found = Policy.load(file)
    if approve is not None:
        approve_run(found.state, approve)
    _say(described(found))


@app.command()
def check(file: File, settings: Settings = None) -> None:
    """Read an experiment, its data and its models, and say what it would do, without training."""
    experiment = Experiment.load(file, dict(parse_setting(text) for text in settings or ()))
    world = experiment.build_world()
    console.print(
        f"[bold]{experiment.name}[/]: {experiment.method['name']}, {experiment.rounds} rounds", highlight=False
    )
    console.print(_models_table(world))
    console.print(_clients_table(world))
    console.print(_leaving_table(world))
    console.print("This experiment can run.")


@app.command("list")
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
    table.add_row("data.augment", ", ".join(data.AUGMENTATIONS))
    table.add_row("optimizer.*.name", ", ".join(optimizers.NAMES))
    table.add_row("devices.profile", ", ".join(DEVICES))
    table.add_row("wire.codecs", "PATTERN=CHAIN of " + ", ".join(STAGES))
    table.add_row("aggregation.name", ", ".join(AGGREGATORS))
    table.add_row("attack.name", "none, " + ", ".join(ATTACKS))
    table.add_row("inspection.action", "none, flag, drop")
    table.add_row("engine", "inprocess, flower")
    console.print(table)


@app.command()
def report(
    directories: Annotated[list[Path], typer.Argument(help="Directories of runs; several are compared.")],
    out: Annotated[
        Path | None, typer.Option(help="The HTML file; report.html in the first directory if not given.")
    ] = None,
) -> None:
    """Write an HTML report of one run, or of several side by side."""
    _show(directories, out)


@app.command()
def export(
    directory: Annotated[Path, typer.Argument(help="The directory of a run.")],
    client: Annotated[int | None, typer.Option(help="Whose model; the global or the server's if not given.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The file; model.safetensors or client-N.safetensors in the run if not given.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a model of a run as a safetensors file."""
    done = Run(directory)
    path = out or directory / ("model.safetensors" if client is None else f"client-{client}.safetensors")
    model = done.export(path, client, force=force)
    whose = "global or server model" if client is None else f"model of client {client}"
    console.print(
        f"{path}: {whose} after round {done.round} of {done.experiment.rounds}, "
        f"{models.parameters(model):,} parameters, {human_bytes(path.stat().st_size)}",
        highlight=False,
        soft_wrap=True,
    )


@app.command()
def key(
    file: Annotated[Path, typer.Argument(help="The private key to make; the public half goes beside it.")] = Path(
        "device.key"
    ),
) -> None:
    """Make this device's key, which stays here; the server gets the public half. Nothing is ever replaced."""
    from catchment.flower.keys import fingerprint, make_device_key

    public = make_device_key(file)
    console.print(
        f"{file} is this device's key: it stays here, for nobody else's eyes.\n"
        f"{public} is its public half: send it to whoever runs the server, who admits it with\n"
        f"  catchment keys DIR --add {public.name} --client-id K\n"
        f"and compare the fingerprint by another way, such as a call:\n"
        f"  {fingerprint(public)}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


@app.command()
def keys(
    directory: Annotated[Path, typer.Argument(help="A directory of its own, for its owner alone.")],
    clients: Annotated[
        int | None, typer.Option(help="Make keys for so many devices as well; devices that make their own are safer.")
    ] = None,
    host: Annotated[
        list[str] | None, typer.Option(help="A name or address under which devices reach the server. May be repeated.")
    ] = None,
    add: Annotated[Path | None, typer.Option(help="Admit the device with this public key (--client-id).")] = None,
    client: Annotated[int | None, typer.Option("--client-id", help="Which client it is; the first is 0.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Revoke the key that the client has.")] = False,
    revoke: Annotated[int | None, typer.Option(help="The client whose key shall count no more.")] = None,
) -> None:
    """Make the keys of a server, admit devices and revoke them; without options, show who may join."""
    from catchment.flower import admission
    from catchment.flower.certificates import validity
    from catchment.flower.keys import fingerprint, make_keys

    making = clients is not None or host is not None
    if making + (add is not None) + (revoke is not None) > 1:
        raise UserError("give one of --host and --clients (to make keys), --add, and --revoke; one thing at a time")
    if (add is None) != (client is None) or (replace and add is None):
        raise UserError("--add FILE and --client-id K go together, and --replace only with them")
    if making:
        made = make_keys(directory, clients or 0, host or [])
        table = Table("who", "files", title=f"{_escape(str(directory))}: {len(made)} new files")
        table.add_row("the server", "ca.crt, server.crt, server.key, federation.key, and client-K.pub of every client")
        table.add_row("every device", "ca.crt, federation.pub")
        if clients:
            table.add_row("device K, and nobody else", "client-K.key")
        table.add_row("nobody: keep it offline", "ca.key, which signs certificates of the server")
        console.print(table)
    elif add is not None and client is not None:
        admission.admit(directory, add, client, replace=replace)
    elif revoke is not None:
        admission.revoke(directory, revoke)
    whole = Column("fingerprint", no_wrap=True, min_width=50)  # to be compared, so it is never shortened
    table = Table("client", whole, "since", "revoked", title="Who may join")
    for one in admission.admissions(directory):
        table.add_row(str(one.client), one.fingerprint, f"{one.since:%Y-%m-%d}", one.revoked or "")
    console.print(table)
    console.print(
        f"{validity(directory)}\nfederation.pub is {fingerprint(directory / 'federation.pub')}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


@app.command()
def version() -> None:
    """Print the version."""
    console.print(__version__, highlight=False)


def main() -> None:
    """Entry point of the `catchment` command; what it writes, and what it starts writes, is for its owner alone."""
    before = os.umask(0o077)
    try:
        app()
    except CatchmentError as error:
        errors.print(f"[red]error:[/] {_escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(error.exit_code)
    finally:
        os.umask(before)


def _free_directory(parent: Path, name: str) -> Path:
    """`parent/name`, or the first `parent/name-2`, `-3`, ... that holds no run."""
    candidates = (parent / (name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(path for path in candidates if not (path / "experiment.toml").exists())


@contextmanager
def _progress(experiment: Experiment, directory: Path) -> Iterator[Observer]:
    """A progress bar on terminals, nothing elsewhere; Ctrl-C says how to go on."""
    bar = Progress(
        SpinnerColumn(),
        TextColumn(_escape(experiment.name)),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[numbers]}"),
        TimeRemainingColumn(compact=True),
        console=console,
        disable=not console.is_terminal,
    )
    task = bar.add_task("rounds", total=experiment.rounds, numbers="")
    total = 0
    accuracy = ""

    def observe(record: dict[str, Any]) -> None:
        nonlocal total, accuracy
        total += record["bytes"]["up"] + record["bytes"]["down"]
        if "accuracy" in record:
            accuracy = f"accuracy {record['accuracy']:.1%}  "
        bar.update(task, completed=record["round"], numbers=accuracy + human_bytes(total))

    try:
        with bar:
            yield observe
    except KeyboardInterrupt:
        errors.print(f"stopped; go on with: catchment resume {directory}", highlight=False, soft_wrap=True)
        raise typer.Exit(130) from None
    except CatchmentError as error:
        if (directory / "checkpoints").exists():
            raise type(error)(f"{error}; what was finished is kept: catchment resume {directory}") from error
        raise


def _show(directories: list[Path], out: Path | None = None) -> None:
    """The result table and the path of the report."""
    files = [RunFiles.read(directory) for directory in directories]
    console.print(summary_table(files, console.width))
    path = write_report(directories, out or directories[0] / "report.html")
    console.print(f"report: {path}", highlight=False, soft_wrap=True)


def _models_table(world: World) -> Table:
    table = Table("model", "where", "parameters", "MACs a sample", title="Models")
    dealt = world.client_models
    rows = [
        (architecture, "clients" if len(dealt) == 1 else f"{dealt.count(architecture.name)} of {len(dealt)} clients")
        for architecture in dict.fromkeys(world.client_architectures)
    ]
    if world.server_model is not None:
        rows.append((world.server_architecture, "server"))
    for architecture, where in rows:
        table.add_row(
            architecture.name, where, f"{architecture.probe.parameters:,}", f"{architecture.probe.total_macs:,}"
        )
    return table


def _clients_table(world: World) -> Table:
    sizes = sorted(len(rows) for rows in world.data.clients)
    public = 0 if world.data.public is None else len(world.data.public)
    table = Table("clients", "smallest", "median", "largest", "private", "public", "test", title="Samples")
    private = [f"{number:,}" for number in (sizes[0], sizes[len(sizes) // 2], sizes[-1], sum(sizes))]
    if world.data.own:
        private = ["their own"] * len(private)
    table.add_row(f"{len(sizes):,}", *private, f"{public:,}", f"{len(world.data.test):,}")
    return table


def _leaving_table(world: World) -> Table:
    title = f"What leaves a device, such as client 0 with {world.client_architecture(0).name}"
    table = Table("field", "kind", "shape", "when asked for", "bytes per reply, at most", "what it shows", title=title)
    for row in disclosed(type(world.method), world):
        cells = (row.field, row.kind, row.shape, row.when, MISSING if row.most is None else human_bytes(row.most))
        table.add_row(*map(_escape, cells), row.shows)
    return table


def _write_policy(path: Path, given: dict[str, Any], leaves: list[str]) -> None:
    """Make a device's policy, and show it."""
    for name in ("server", "client"):
        if name not in given:
            raise UserError("--init needs the server's HOST:PORT and --client-id")
    if path.exists():
        raise UserError(f"{path} is there already; change it with a text editor, or remove it first")
    made = Policy(**given, allow=Allow(leaves=(*Allow().leaves, *leaves)))
    made.write(path)
    _say(path.read_text(encoding="utf-8"))
    _say(f"{path} is written; look at it, then take part with: catchment join")


def _agreed(summary: str) -> bool:
    """Show a person what a run would do, and ask."""
    _say(summary)
    return typer.confirm("Take part?", default=False)


def _say(text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _warn_of_open_doors(experiment: Experiment) -> None:
    """Look at the keys of a federation before it starts: bad ones end it, doubtful ones and none are said."""
    if experiment.engine != "flower" or (experiment.flower.local and experiment.flower.keys is None):
        return
    if experiment.flower.keys is None:
        _warn("there are no keys: whoever reaches this machine may join as a client, and read and alter what is sent")
        return
    from catchment.flower.keys import check_keys

    for text in check_keys(Path(experiment.flower.keys)):
        _warn(text)


def _warn(text: str) -> None:
    """Say something that a person should see, whatever becomes of the logs."""
    errors.print(f"[yellow]warning:[/] {_escape(text)}", highlight=False, soft_wrap=True)


def _escape(text: str) -> str:
    return text.replace("[", "\\[")
