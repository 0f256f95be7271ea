"""Run the rows of the tables of docs/results.md, and rewrite the tables.

    python benchmarks/tables.py                          # rewrite all tables from benchmarks/results, run nothing
    python benchmarks/tables.py headline fedgkt-table2   # run what these tables lack, row by row, and rewrite them
    python benchmarks/tables.py --list                   # what is done and what is missing
    python benchmarks/tables.py fedgkt-table5 --only resnet4-small --data ~/data

Tables whose rows are experiments are declared in `tables.toml`; the others (`engine`, `peers`, ...) are measured by the
scripts of these names. Results are kept a row and seed in `results/NAME.json`, runs in `runs/tables/NAME/ROW-SEED`; a
run that was interrupted is resumed. A result counts as long as the settings of its experiment are the same, and for
every table that has a row with these settings. Changes of the code are not seen: `--again` runs rows anew.

A table stands between `<!-- NAME -->` and `<!-- /NAME -->`.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import hashlib
import json
import math
import os
import re
import shutil
import statistics
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import catchment
from catchment.checkpoint import write_atomically
from catchment.costs import formulas
from catchment.data import SOURCES
from catchment.data.splits import find_split
from catchment.errors import CatchmentError, UserError
from catchment.models import build, feature_shape
from catchment.names import did_you_mean
from catchment.report import RunFiles
from catchment.transports.devices import Device

ROOT = Path(__file__).parents[1]
Record = dict[str, Any]


# ---- what a table is ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """An experiment, and what the paper has for it."""

    label: str
    file: Path
    paper: str = ""

    @property
    def name(self) -> str:
        return self.file.stem


@dataclass(frozen=True)
class Table:
    """Rows, what to show of them, and the seeds to run each with."""

    name: str
    head: str  # of the column of labels
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    seeds: tuple[int, ...] = (0,)
    across: tuple[str, ...] = ()  # heads of columns that are experiments of their own: as many rows make one line

    def jobs(self, only: str | None = None) -> Iterator[Job]:
        """Seed by seed, so that a night that was too short leaves complete tables of fewer seeds."""
        for seed in self.seeds:
            for row in self.rows:
                if only in (None, row.name):
                    yield Job(self.name, row, seed)


@dataclass(frozen=True)
class Job:
    """A row with a seed: one run."""

    table: str
    row: Row
    seed: int

    def __str__(self) -> str:
        return f"{self.table} {self.row.name} seed {self.seed}"

    @cached_property
    def experiment(self) -> catchment.Experiment:
        return catchment.Experiment.load(self.row.file, {"seed": self.seed})

    @cached_property
    def digest(self) -> str:
        return digest(self.experiment)


def declared(root: Path) -> dict[str, Table]:
    """The tables of `tables.toml`."""
    file = root / "benchmarks" / "tables.toml"
    tables = {}
    for name, entry in tomllib.loads(file.read_text()).items():
        rows = [
            Row(label, root / "experiments" / f"{experiment}.toml", *paper)
            for label, experiments, *paper in entry["rows"]
            for experiment in ([experiments] if isinstance(experiments, str) else experiments)
        ]
        names = [row.name for row in rows]
        for row in rows:
            if names.count(row.name) > 1:
                raise UserError(f"{file}: {name} has several rows {row.name}; their results would take the same place")
        across = tuple(entry.get("across", ()))
        if across and any(len(experiments) != len(across) for _, experiments in entry["rows"]):
            raise UserError(f"{file}: every row of {name} needs {len(across)} experiments, one for each head in across")
        for column in entry.get("columns", ()):
            known = {**FROM_RUNS, **FROM_SETTINGS, **dict.fromkeys(map(of_number, OF_NUMBERS))}
            if column not in known and from_runs(column) is None:
                raise UserError(f'{file}: {name} has an unknown column "{column}"; {did_you_mean(column, known)}')
        tables[name] = Table(
            name,
            entry["head"],
            tuple(entry.get("columns", ())),
            tuple(rows),
            tuple(entry.get("seeds", Table.seeds)),
            across,
        )
    return tables


# ---- which results count -----------------------------------------------------------------------------------------


def digest(experiment: catchment.Experiment) -> str:
    """A short hash of what results depend on.

    Settings at their defaults are left out: an option that is added later does not undo what is done.
    """
    settings = _set_apart(experiment)
    for name in ("name", "workers", "path", "checkpoint"):
        settings.pop(name, None)
    settings.get("data", {}).pop("root", None)
    settings["method"] = {"name": experiment.method["name"], **_set_apart(experiment.build_method())}
    for key, built in (("aggregation", experiment.build_aggregator()), ("attack", experiment.build_attack())):
        if key in settings:
            settings[key] = {"name": getattr(experiment, key)["name"], **_set_apart(built)}
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def _set_apart(value: Any) -> Any:
    """A dataclass as a dict of the fields that are not at their defaults, so too those within."""
    if not dataclasses.is_dataclass(value):
        return {key: _set_apart(item) for key, item in value.items()} if isinstance(value, dict) else value
    settings = {}
    for field in dataclasses.fields(value):
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if field.init and (own := getattr(value, field.name)) != default:
            settings[field.name] = _set_apart(own)
    return settings


def kept(root: Path, name: str) -> dict[str, dict[str, Record]]:
    """The results of a table by row and seed."""
    file = root / "benchmarks" / "results" / f"{name}.json"
    return json.loads(file.read_text())["rows"] if file.exists() else {}


def keep(root: Path, table: Table, job: Job, record: Record) -> None:
    """Add a result to its table's file; rows that are not declared any more go."""
    rows = kept(root, table.name)
    rows.setdefault(job.row.name, {})[str(job.seed)] = record
    rows = {row.name: rows[row.name] for row in table.rows if row.name in rows}
    file = root / "benchmarks" / "results" / f"{table.name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, (json.dumps({"rows": rows}, indent=1) + "\n").encode())


def finished(root: Path, job: Job) -> Record | None:
    """The result of a job, if there is one for its present settings."""
    record = kept(root, job.table).get(job.row.name, {}).get(str(job.seed))
    try:
        return record if record is not None and record["digest"] == job.digest else None
    except CatchmentError:  # the experiment cannot be read: whoever runs it is told why
        return None


def finished_elsewhere(root: Path, tables: Iterable[str], job: Job) -> Record | None:
    """The result of a row of another table that has the same settings."""
    for name in tables:
        for seeds in kept(root, name).values():
            for record in seeds.values():
                if record["digest"] == job.digest:
                    return record
    return None


def lacks_data(experiment: catchment.Experiment) -> str:
    """A data set that an experiment needs and that is not here; empty if all are."""
    settings = experiment.data
    folder = settings.root or os.environ.get("CATCHMENT_DATA")
    public = getattr(settings.public, "name", None)  # another set, or only a share of this one
    for name in (settings.name, *([public] if public else [])):
        if name not in SOURCES or name == "digits" or settings.download:
            continue
        if folder is None or find_split(Path(folder).expanduser() / name, "train") is None:
            return name
    return ""


# ---- running -----------------------------------------------------------------------------------------------------


def run_table(root: Path, tables: dict[str, Table], table: Table, only: str | None = None, again: bool = False) -> int:
    """Run what a table lacks; the number of rows that failed."""
    failed = 0
    for job in table.jobs(only):
        try:
            if not again and finished(root, job) is not None:
                continue
            record = None if again else finished_elsewhere(root, tables, job)
            if record is None and (lacking := lacks_data(job.experiment)):
                print(f"{job}: not run, there is no data set {lacking}", flush=True)
                continue
            if record is None:
                print(f"{job} ...", flush=True)
                record = perform(root, job, again)
        except Exception as error:  # a night's other rows shall not suffer
            said = str(error) if isinstance(error, CatchmentError) else f"{type(error).__name__}: {error}"
            print(f"{job}: failed: {said}", flush=True)
            failed += 1
            continue
        keep(root, table, job, record)
        rewrite(root, table.name, shown(root, table))
        print(f"{job}: {100 * record['accuracy']:.1f} %, {record['seconds'] / 60:.1f} minutes", flush=True)
    return failed


def perform(root: Path, job: Job, again: bool = False) -> Record:
    """Run a job, or go on with it."""
    directory = root / "runs" / "tables" / job.table / f"{job.row.name}-{job.seed}"
    begun = directory / "experiment.toml"
    if begun.exists() and (again or digest(catchment.Experiment.load(begun)) != job.digest):
        shutil.rmtree(directory)
    result = catchment.resume(directory) if begun.exists() else catchment.run(job.experiment, directory)
    run = RunFiles.read(directory)
    clients = (result["clients"] or {}).get("accuracy")
    return {
        "digest": job.digest,
        "accuracy": result["accuracy"],
        "best": result["best"]["accuracy"],
        "server": (result["server"] or {}).get("accuracy"),
        "clients": clients and {"min": clients["min"], "max": clients["max"], "mean": clients["mean"]},
        "models": {name: model["accuracy"] for name, model in (result["models"] or {}).items()},
        "rounds": result["rounds"],
        "curve": run.curve,
        **({"notes": notes} if (notes := [r["notes"] for r in run.rounds if r.get("notes")]) else {}),
        "more": result["more"],
        "bytes": result["bytes"],
        "virtual_seconds": result["virtual_seconds"],
        "seconds": result["seconds"],
        "link": link(job.experiment),
    }


def link(experiment: catchment.Experiment) -> float | None:
    """Mbit/s, if the virtual time of an experiment is that of transmission alone, over one kind of link."""
    device, *others = set(experiment.devices.chosen())
    alone = not others and device == Device(up=device.up, down=device.up) and math.isfinite(device.up)
    return device.up if alone else None


def list_table(root: Path, table: Table, only: str | None = None) -> None:
    """Say of every row whether it is done."""
    for job in table.jobs(only):
        try:
            state = "done" if finished(root, job) else "not run"
            if state == "not run" and (lacking := lacks_data(job.experiment)):
                state = f"not run, there is no data set {lacking}"
            elif state == "not run" and str(job.seed) in kept(root, table.name).get(job.row.name, {}):
                state = "changed since it was run"
        except CatchmentError as error:
            state = f"cannot run: {error}"
        print(f"{job}: {state}")


# ---- columns -----------------------------------------------------------------------------------------------------


def percent(values: Iterable[float]) -> str:
    """The mean, and the standard deviation if there are several."""
    shares = [100 * value for value in values]
    spread = f" ± {statistics.stdev(shares):.1f}" if len(shares) > 1 else ""
    return f"{statistics.fmean(shares):.1f}{spread}" if shares else ""


def mean(values: Iterable[float], unit: float) -> str:
    return f"{statistics.fmean(values) / unit:,.1f}"


def worst_and_best_client(records: Sequence[Record]) -> str:
    """Over all seeds; empty where all clients have one model."""
    clients = [c for record in records if (c := record["clients"])]
    if all(c["min"] == c["max"] for c in clients):
        return ""
    return f"{100 * min(c['min'] for c in clients):.1f} to {100 * max(c['max'] for c in clients):.1f}"


def edge_models(records: Sequence[Record]) -> str:
    """Of the small models alone; empty for methods without."""
    return percent(r["more"]["edge_accuracy"] for r in records if "edge_accuracy" in r["more"])


def client_means(records: Sequence[Record]) -> str:
    """Mean over clients, mean over seeds; empty for methods without."""
    return percent(r["clients"]["mean"] for r in records if r["clients"])


def servers(records: Sequence[Record]) -> str:
    """The server's own model; empty for methods without."""
    return percent(r["server"] for r in records if r.get("server") is not None)


def samples_of(path: str) -> Callable[[Sequence[Record]], str]:
    """How many samples took a path of FedGEMS' selection in the first, second, fourth, ... round; mean over seeds."""

    def column(records: Sequence[Record]) -> str:
        if not all("notes" in r for r in records):
            return ""
        rounds = min(len(r["notes"]) for r in records)
        shown = [2**k for k in range(rounds.bit_length()) if 2**k <= rounds]
        return ", ".join(f"{statistics.fmean(r['notes'][n - 1][path] for r in records):.0f}" for n in shown)

    return column


def by_model(records: Sequence[Record]) -> str:
    """Mean over clients with this model, and over seeds; empty where all clients have one."""
    names = dict.fromkeys(name for r in records for name in r.get("models") or {})
    return ", ".join(
        f"{name} {100 * statistics.fmean(r['models'][name] for r in records if name in r['models']):.1f}"
        for name in names
    )


def gradient(loss: str) -> Callable[[Sequence[Record]], str]:
    """The norm that FedZKT measured in the last round."""
    return lambda records: f"{statistics.fmean(r['more'][f'gradient_{loss}'] for r in records):.2g}"


FROM_RUNS: dict[str, Callable[[Sequence[Record]], str]] = {
    "accuracy, %": lambda records: percent(r["accuracy"] for r in records),
    "best, %": lambda records: percent(r["best"] for r in records),
    "clients, %": worst_and_best_client,
    "edge model, %": edge_models,
    "server, %": servers,
    "clients' mean, %": client_means,
    **{
        f"{path.replace('_', '-')}, rounds 1, 2, 4, ...": samples_of(path)
        for path in ("self_training", "self_distillation", "ensemble_distillation", "nobody_right")
    },
    "top, %": lambda records: percent(max(point[1] for point in r["curve"]) for r in records),
    "by model, %": by_model,
    "gradient of KL": gradient("kl"),
    "gradient of SL": gradient("sl"),
    "gradient of l1": gradient("l1"),
    "up, MB": lambda records: mean((r["bytes"]["up"] for r in records), 1e6),
    "down, MB": lambda records: mean((r["bytes"]["down"] for r in records), 1e6),
    "up, kB": lambda records: mean((r["bytes"]["up"] for r in records), 1e3),
    "down, kB": lambda records: mean((r["bytes"]["down"] for r in records), 1e3),
    "virtual minutes": lambda records: mean((r["virtual_seconds"] for r in records), 60),
    "minutes": lambda records: mean((r["seconds"] for r in records), 60),
    "up a round, MB": lambda records: f"{statistics.fmean(r['bytes']['up'] / r['rounds'] for r in records) / 1e6:,.3f}",
    "down a round, MB": lambda records: (
        f"{statistics.fmean(r['bytes']['down'] / r['rounds'] for r in records) / 1e6:,.3f}"
    ),
}  # fmt: skip


def until(unit: float, up: bool = False) -> Callable[[float, Sequence[Record]], str]:
    """ComU@x: bytes, up or both ways, until the first evaluation with so many percent; the mean of seeds that reach it.

    A curve is of points (bytes both ways, accuracy, bytes up).
    """

    def column(percents: float, records: Sequence[Record]) -> str:
        reached = [next((p[2 if up else 0] for p in r["curve"] if p[1] >= percents / 100), None) for r in records]
        found = [size for size in reached if size is not None]
        if not found:
            return "never"
        few = f" ({len(found)} of {len(reached)} seeds)" if len(found) < len(reached) else ""
        return f"{mean(found, unit)}{few}"

    return column


def seconds_a_round(speed: float, records: Sequence[Record]) -> str:
    """Virtual time over a link of this speed: what was run over a link of another one takes as much longer."""
    return f"{statistics.fmean(r['virtual_seconds'] * r['link'] / speed / r['rounds'] for r in records):,.2f}"


OF_NUMBERS: dict[str, Callable[[float, Sequence[Record]], str]] = {  # "#" stands for a number
    "kB to # %": until(1e3),
    "MB to # %": until(1e6),
    "MB up to # %": until(1e6, up=True),
    "s a round, # Mbit/s": seconds_a_round,
}


def of_number(column: str) -> str:
    return column.replace("#", "10")


def from_runs(column: str) -> Callable[[Sequence[Record]], str] | None:
    """What a column shows of the records of a row; None if it shows nothing of them."""
    if column in FROM_RUNS:
        return FROM_RUNS[column]
    for form, function in OF_NUMBERS.items():
        if found := re.fullmatch(re.escape(form).replace(r"\#", r"(\d+)"), column):
            return functools.partial(function, float(found[1]))
    return None


IMAGES = {"cifar10": (50_000, 10), "cifar100": (50_000, 100), "cinic10": (90_000, 10)}  # training images and classes


def equation_bytes(file: Path) -> int:
    """Bytes by FedGKT's equations 12 (split learning) and 13 (GKT), in 32-bit numbers."""
    experiment = catchment.Experiment.load(file)
    samples, classes = IMAGES[experiment.data.name]
    edge = build(str(experiment.models.client), (3, 32, 32), classes, seed=0)
    features = math.prod(feature_shape(edge, (3, 32, 32)))
    method, epochs = experiment.method, experiment.rounds
    if method["name"] == "split":
        sizes = features + features  # the feature map, and its gradient
        epochs *= method["client_epochs"]
    else:
        sizes = features + classes  # the feature map, and the soft labels from the server
    return 4 * sizes * (experiment.data.train or samples) * epochs


def logits_up(file: Path) -> float | None:
    """KiB of the logits of all clients on all public samples (FedGEMS, Table 6); None if that is not what travels."""
    experiment = catchment.Experiment.load(file)
    share = experiment.data.public
    if experiment.method["name"] not in ("cronus", "dsfl", "fedgem", "fedmd") or not isinstance(share, float):
        return None
    samples, classes = IMAGES[experiment.data.name]
    public = round((experiment.data.train or samples) * share)
    return formulas.fedmd(experiment.data.clients, public, classes).up / 1024


def full_size(row: Row) -> Path:
    """The file of a row at the paper's scale."""
    return row.file.with_stem(row.name.removesuffix("-small"))


FROM_SETTINGS: dict[str, Callable[[Row], str]] = {
    "paper, %": lambda row: row.paper,
    "paper, MB up": lambda row: row.paper,
    "equation, MB": lambda row: f"{equation_bytes(row.file) / 1e6:,.1f}",
    "equation at the paper's scale, GB": lambda row: f"{equation_bytes(full_size(row)) / 1e9:,.0f}",
    "logits up at the paper's scale, KiB a round": lambda row: (
        "" if (size := logits_up(full_size(row))) is None else f"{size:,.1f}"
    ),
}


# ---- the page ----------------------------------------------------------------------------------------------------


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others are numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def shown_across(root: Path, table: Table) -> str:
    """Experiments that differ in one thing side by side: the first, and the others with their relative change in %."""
    lines, missing = [], 0
    for start in range(0, len(table.rows), len(table.across)):
        row = table.rows[start : start + len(table.across)]
        found = [[finished(root, Job(table.name, cell, seed)) for seed in table.seeds] for cell in row]
        values = [[record["accuracy"] for record in records if record is not None] for records in found]
        missing += sum(not cell for cell in values)
        if not any(values):
            continue
        cells = [percent(cell) for cell in values]
        if values[0]:
            first = statistics.fmean(values[0])
            cells[1:] = [
                f"{cell} / {100 * (statistics.fmean(value) / first - 1):+.1f}" if value else ""
                for cell, value in zip(cells[1:], values[1:])
            ]
        lines.append([row[0].label, *cells])
    left = f"\n\n{missing} of {len(table.rows)} runs are not done yet." if missing else ""
    return markdown([table.head, *table.across], lines) + left


def shown(root: Path, table: Table) -> str:
    """The rows of a table that have a result for their present settings, and how many have none."""
    if table.across:
        return shown_across(root, table)
    lines = []
    for row in table.rows:
        found = [finished(root, Job(table.name, row, seed)) for seed in table.seeds]
        records = [record for record in found if record is not None]
        if not records:
            continue
        few = f" ({len(records)} of {len(table.seeds)} seeds)" if len(records) < len(table.seeds) else ""
        shows = [from_runs(column) for column in table.columns]
        cells = [show(records) if show else FROM_SETTINGS[c](row) for show, c in zip(shows, table.columns)]
        lines.append([row.label, cells[0] + few, *cells[1:]])
    missing = len(table.rows) - len(lines)
    left = f"\n\n{missing} of {len(table.rows)} rows are not run yet." if missing else ""
    return markdown([table.head, *table.columns], lines) + left


def rewrite(root: Path, name: str, text: str) -> None:
    """Put a table into its place on the page."""
    file = root / "docs" / "results.md"
    page = file.read_text()
    pattern = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- /{re.escape(name)} -->)", re.DOTALL)
    if not pattern.search(page):
        raise UserError(f"{file} has no place for {name}: <!-- {name} --> ... <!-- /{name} -->")
    write_atomically(file, pattern.sub(lambda match: match[1] + text + "\n" + match[2], page).encode())


def engine(measured: Record) -> str:
    """The engine beside a bare loop, and registered clients."""
    resnet8, registered = measured["resnet8"], measured["registered"]
    seconds, ratio = resnet8["round_s"], resnet8["over_bare"]
    one, two = ratio["1 worker, 1 thread"], ratio["2 workers, 2 threads"]
    first = markdown(
        ["ResNet-8, 8 clients x 256 images of 32x32", "bare loop, s a round", "Catchment, s a round", "ratio"],
        [
            ["one core", f"{seconds['bare, 1 thread']:.2f}", f"{seconds['catchment, 1 worker']:.2f}", f"{one:.2f}"],
            ["two cores", f"{seconds['bare, 2 threads']:.2f}", f"{seconds['catchment, 2 workers']:.2f}", f"{two:.2f}"],
        ],
    )
    ratios = registered["ratio"]
    second = markdown(
        ["100 of so many clients take part", "seconds a round", "seconds of the run", "peak memory"],
        [["10,000 registered over 100 registered", *(f"{ratios[k]:.2f}" for k in ("round_s", "run_s", "peak_rss_mb"))]],
    )
    return f"{first}\n\n{second}"


def peers(measured: Record) -> str:
    """The same FedAvg jobs in several systems."""
    parts = []
    for job, title in (("J1", "J1, many tiny"), ("J2", "J2, few small CNNs")):
        rows = []
        for name, row in measured["jobs"][job]["summary"].items():
            overhead = f"{row['turn_overhead_ms']:+.2f}" if "turn_overhead_ms" in row else ""
            rows.append(
                [name, f"{row['turn_ms']:.2f}", overhead, f"{row['fixed_s']:.1f}", f"{row['peak_rss_mb']:.0f}",
                 f"{row['weights_vs_bare']:.0e}"]
            )  # fmt: skip
        head = [title, "ms a client-turn", "over bare", "fixed s", "peak RSS MB", "weights vs bare"]
        parts.append(markdown(head, rows))
    return "\n\n".join(parts)


def edge_cost(measured: Record) -> str:
    """Edge models beside the whole models of FedAvg."""
    models = measured["models"]
    edge, over = models["resnet8"], "times ResNet-8"
    rows = []
    for name, model in models.items():
        counted = [(f"{model[key] / unit:,.{digits}f}", f"{model[key] / edge[key]:.1f}")
                   for key, unit, digits in (("parameters", 1, 0), ("macs", 1e6, 1))]  # fmt: skip
        timed = f"{model['batch_ms']:.0f}", f"{model['times_resnet8']:.1f}"
        rows.append([name.replace("resnet", "ResNet-"), *counted[0], *counted[1], *timed])
    head = [f"3x32x32, {measured['classes']} classes", "parameters", over, "million MACs an image", over,
            f"CPU ms, {measured['batch']} images", over]  # fmt: skip
    return markdown(head, rows)


def fedgkt(measured: Record) -> str:
    """A round of FedGKT beside a bare loop."""
    seconds = measured["round_s"]
    head = [f"FedGKT, {measured['clients']} clients x {measured['samples']} images of 32x32, ResNet-8 and ResNet-19",
            "bare loop, s a round", "Catchment, s a round", "ratio"]  # fmt: skip
    return markdown(
        head, [["one core", f"{seconds['bare']:.2f}", f"{seconds['engine']:.2f}", f"{measured['over_bare']:.2f}"]]
    )


def fedzkt(measured: Record) -> str:
    """FedZKT's server beside a plain loop, and teachers in one call beside a loop."""
    rows = [
        [f"generator of width {row['width']}", *(f"{row['iteration_s'][way]:.2f}" for way in ("plain", "catchment")),
         f"{row['plain_over_catchment']:.2f}"]
        for row in measured["server"]
    ]  # fmt: skip
    head = [f"{len(measured['devices'])} devices, 28x28, batches of {measured['batch']}",
            "plain loop, CPU s an iteration", "Catchment, CPU s an iteration", "times faster"]  # fmt: skip
    first = markdown(head, rows)
    rows = []
    for row in measured["ensembles"]:
        cells = [f"{row['model']}, {'x'.join(map(str, row['shape']))}"]
        for side in ("teachers", "students"):
            cells += [f"{row[side]['ms'][way]:.1f}" for way in ("loop", "one call")]
            cells.append(f"{row[side]['loop_over_one_call']:.2f}")
        rows.append(cells)
    head = [f"{measured['teachers']} devices of one architecture", "teachers, loop, CPU ms", "one call", "times faster",
            "students, loop, CPU ms", "one call", "times faster"]  # fmt: skip
    return f"{first}\n\n{markdown(head, rows)}"


def spool(measured: Record) -> str:
    """The server's memory for all uploads of a round."""
    gib, ways = 2**30, measured["ways"]
    head = [f"{measured['clients']} clients x {measured['samples']:,} samples", "uploaded, GiB", "at the start, GiB",
            "peak, GiB", "above start, GiB", "CPU s"]  # fmt: skip
    rows = [
        [way, *(f"{row[key] / gib:.2f}" for key in ("uploaded", "start", "peak", "above_start")),
         f"{row['cpu_seconds']:.0f}"]
        for way, row in ways.items()
    ]  # fmt: skip
    return markdown(head, rows)


def flower(measured: Record) -> str:
    """Round trips, throughput and memory of processes that speak over Flower."""
    processes = ["SuperLink", "server routine", "client"]
    head = [
        "one client on loopback",
        "empty request, s",
        "MB",
        "up, MB/s",
        "down, MB/s",
        *(f"{p}, MB" for p in processes),
    ]
    rows = [
        [way, f"{row['empty_seconds']:.2f}", size, f"{row['up_MB_per_second']:.1f}", f"{row['down_MB_per_second']:.1f}",
         *(f"{row['peak_MB'][p]:,}" if p in row["peak_MB"] else "" for p in processes)]
        for way, sizes in measured["ways"].items()
        for size, row in sizes.items()
    ]  # fmt: skip
    device = measured["device"]
    memory = markdown(
        ["a client process on a device", "at rest, MB", "in training, MB"],
        [
            [
                f"{device['model']}, {device['images']} images of its own, batches of {device['batch']}",
                f"{device['rest_MB']}",
                f"{device['training_MB']}",
            ]
        ],
    )
    return f"{markdown(head, rows)}\n\n{memory}"


def namespaces(measured: Record) -> str:
    """FedGKT over slow and lossy lines."""
    m = measured
    cells = {
        "clients": m["clients"],
        "delay, ms": m["delay_ms"],
        "loss": f"{m['loss']:.0%}",
        "Mbit/s": m["rate_mbit"],
        "rounds": m["rounds"],
        "accuracy": percent([m["accuracy"]]),
        "lost replies": m["lost"],
        "payload, MB": f"{sum(m['payload_bytes'].values()) / 1e6:.1f}",
        "on the lines, MB": f"{m['bytes_on_the_lines'] / 1e6:.1f}",
        "packets lost": f"{m['packets_lost']:,}",
        "seconds": f"{m['seconds']:.0f}",
    }
    return markdown(list(cells), [[str(cell) for cell in cells.values()]])


def device(measured: Record) -> str:
    """What an install takes on the disk."""
    rows = []
    for extras, row in measured["extras"].items():
        others = [f"{name} {size:.0f}" for name, size in row["mb"].items() if name not in ("torch", "others")]
        rows.append(
            [f"`catchment[{extras}]`", f"{row['total_mb']:,.0f}", f"{row['mb']['torch']:.0f}",
             f"{row['without_torch_mb']:.0f}", str(row["packages"]), ", ".join(others[:4])]
        )  # fmt: skip
    head = [f"Python {measured['python']}, {measured['machine']}", "MB", "PyTorch", "all else", "packages", "largest"]
    return markdown(head, rows)


def transmission(measured: Record) -> str:
    """Bytes and time of a round of each method, beside the paper's: a table for each model."""
    link, tables = measured["link"], []
    for model, rows in measured["models"].items():
        whole = rows["FedAvg"]["up"]
        head = [f"{model}, {measured['clients']} clients, one round", "parameters", "up, MB", "beside FedAvg, %",
                "down, MB", "s, 1 Mbit/s", "s, 10 Mbit/s", "s, 100 Mbit/s", "paper, MB"]  # fmt: skip
        lines = [
            [name, f"{row['parameters']:,}", f"{row['up'] / 1e6:.2f}", f"{100 * (row['up'] / whole - 1):+.2f}",
             f"{row['down'] / 1e6:.2f}", *(f"{row['seconds'] * link / speed:,.2f}" for speed in (1, 10, 100)),
             f"{row['paper_mb']:.2f}" if row["paper_mb"] else ""]
            for name, row in rows.items()
        ]  # fmt: skip
        tables.append(markdown(head, lines))
    return "\n\n".join(tables)


def kills(measured: Record) -> str:
    """Runs that were killed again and again."""
    names = {"inprocess": "in one process", "flower": "over Flower: server, clients, or all of them"}
    head = ["kills (SIGKILL) at random moments", "experiments", "runs", "kills", "results that differ"]
    rows = [
        [names[engine], str(len(m["cases"])), str(m["runs"]), f"{m['kills']:,}", str(len(m["unequal"]))]
        for engine, m in measured.items()
    ]
    return markdown(head, rows)


def spoiled(measured: Record) -> str:
    """Replies of one client that were spoiled, one thing at a time."""
    names = {"inprocess": "in one process", "flower": "over the Flower transport"}
    outcomes = ("refused", "failed", "lost", "taken")
    head = ["spoiled replies", "worlds", "replies", *outcomes, "runs ended or absurd results", "largest memory"]
    rows = []
    for engine, m in measured.items():
        counts = [sum(world["outcomes"].get(what, 0) for world in m["worlds"].values()) for what in outcomes]
        rows.append(
            [names[engine], str(len(m["worlds"])), f"{m['spoiled']:,}", *(f"{n:,}" for n in counts), str(m["harm"]),
             f"{m['largest_memory']:.2f} of honest"]
        )  # fmt: skip
    return markdown(head, rows)


def mutations(measured: Record) -> str:
    """Messages that were mutated."""
    m = measured["messages"]
    head = ["mutated messages", "kinds of mutation", "refused", "taken", "escaped", "memory per 1,000, MB"]
    counts = [sum(kind.get(what, 0) for kind in m["mutations"].values()) for what in ("refused", "taken")]
    cells = [f"{m['read']:,}", str(len(m["mutations"])), *(f"{n:,}" for n in counts), str(m["escaped"])]
    return markdown(head, [[*cells, f"{m['most_memory_MB']:.1f}"]])


MEASURED = {
    "engine": engine,
    "fedgkt": fedgkt,
    "fedzkt": fedzkt,
    "spool": spool,
    "peers": peers,
    "edge_cost": edge_cost,
    "flower": flower,
    "device": device,
    "namespaces": namespaces,
    "transmission": transmission,
    "kills": kills,
    "spoiled": spoiled,
    "mutations": mutations,
}


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """The command; its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", help="tables to run; with none, all are rewritten and nothing is run")
    parser.add_argument("--list", action="store_true", help="say what is done and what is missing, and run nothing")
    parser.add_argument("--only", metavar="ROW", help="this row alone")
    parser.add_argument("--again", action="store_true", help="run rows that are done, too")
    parser.add_argument("--data", type=Path, help="folder of data sets; CATCHMENT_DATA if not given")
    chosen = parser.parse_args(arguments)
    if chosen.data is not None:
        os.environ["CATCHMENT_DATA"] = str(chosen.data.expanduser().absolute())
    tables = declared(root)
    known = (*MEASURED, *tables)
    for name in chosen.tables:
        if name not in known:
            raise UserError(f'unknown table "{name}"; {did_you_mean(name, known)}')
    names = chosen.tables or known
    experiments = [tables[name] for name in names if name in tables]
    if chosen.only and not any(row.name == chosen.only for table in experiments for row in table.rows):
        raise UserError(f"--only {chosen.only}: there is no such row in {', '.join(t.name for t in experiments)}")
    if chosen.list:
        for table in experiments:
            list_table(root, table, chosen.only)
        return 0
    failed = 0
    if chosen.tables:
        failed = sum(run_table(root, tables, table, chosen.only, chosen.again) for table in experiments)
    for name in names:
        if name in tables:
            rewrite(root, name, shown(root, tables[name]))
        else:
            file = root / "benchmarks" / "results" / f"{name}.json"
            rewrite(root, name, MEASURED[name](json.loads(file.read_text())))
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CatchmentError as problem:
        sys.exit(str(problem))
