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
from catchment.data import SOURCES
from catchment.data.parquet import find_split
from catchment.errors import CatchmentError, UserError
from catchment.models import build, feature_shape
from catchment.names import did_you_mean
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
            for label, experiment, *paper in entry["rows"]
        ]
        names = [row.name for row in rows]
        for row in rows:
            if names.count(row.name) > 1:
                raise UserError(f"{file}: {name} has several rows {row.name}; their results would take the same place")
        for column in entry["columns"]:
            known = {**FROM_RUNS, **FROM_SETTINGS, **dict.fromkeys(map(of_number, OF_NUMBERS))}
            if column not in known and from_runs(column) is None:
                raise UserError(f'{file}: {name} has an unknown column "{column}"; {did_you_mean(column, known)}')
        tables[name] = Table(
            name, entry["head"], tuple(entry["columns"]), tuple(rows), tuple(entry.get("seeds", Table.seeds))
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


def lacks_data(experiment: catchment.Experiment) -> bool:
    """Whether an experiment needs a data set that is not here."""
    settings = experiment.data
    if settings.name not in SOURCES or settings.name == "digits" or settings.download:
        return False
    folder = settings.root or os.environ.get("CATCHMENT_DATA")
    return folder is None or find_split(Path(folder).expanduser() / settings.name, "train") is None


# ---- running -----------------------------------------------------------------------------------------------------


def run_table(root: Path, tables: dict[str, Table], table: Table, only: str | None = None, again: bool = False) -> int:
    """Run what a table lacks; the number of rows that failed."""
    failed = 0
    for job in table.jobs(only):
        try:
            if not again and finished(root, job) is not None:
                continue
            record = None if again else finished_elsewhere(root, tables, job)
            if record is None and lacks_data(job.experiment):
                print(f"{job}: not run, there is no data set {job.experiment.data.name}", flush=True)
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
    clients = (result["clients"] or {}).get("accuracy")
    return {
        "digest": job.digest,
        "accuracy": result["accuracy"],
        "best": result["best"]["accuracy"],
        "clients": clients and {"min": clients["min"], "max": clients["max"]},
        "more": result["more"],
        "bytes": result["bytes"],
        "virtual_seconds": result["virtual_seconds"],
        "seconds": result["seconds"],
        "curve": curve(directory),
        "link": link(job.experiment),
    }


def curve(directory: Path) -> list[list[float]]:
    """After each evaluation of a run: round, accuracy, bytes of training up and down so far."""
    points: list[list[float]] = []
    up = down = 0
    for record in catchment.Run(directory).rounds:
        up, down = up + record["bytes"]["up"], down + record["bytes"]["down"]
        if "accuracy" in record:
            points.append([record["round"], record["accuracy"], up, down])
    return points


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
            if state == "not run" and lacks_data(job.experiment):
                state = f"not run, there is no data set {job.experiment.data.name}"
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


FROM_RUNS: dict[str, Callable[[Sequence[Record]], str]] = {
    "accuracy, %": lambda records: percent(r["accuracy"] for r in records),
    "best, %": lambda records: percent(r["best"] for r in records),
    "clients, %": worst_and_best_client,
    "edge model, %": edge_models,
    "up, MB": lambda records: mean((r["bytes"]["up"] for r in records), 1e6),
    "down, MB": lambda records: mean((r["bytes"]["down"] for r in records), 1e6),
    "virtual minutes": lambda records: mean((r["virtual_seconds"] for r in records), 60),
    "minutes": lambda records: mean((r["seconds"] for r in records), 60),
}  # fmt: skip


def rounds(record: Record) -> int:
    return int(record["curve"][-1][0])


def until(accuracy: float, records: Sequence[Record], both: bool = True) -> str:
    """MB until the first evaluation with this accuracy, up or both ways: the mean of the seeds that reach it."""
    reached = [next((up + both * down for _, a, up, down in r["curve"] if a >= accuracy), None) for r in records]
    found = [size for size in reached if size is not None]
    if not found:
        return "never"
    few = f" ({len(found)} of {len(reached)} seeds)" if len(found) < len(reached) else ""
    return f"{mean(found, 1e6)}{few}"


def seconds_a_round(speed: float, records: Sequence[Record]) -> str:
    """Virtual time over a link of this speed: what was run over a link of another one takes as much longer."""
    return f"{statistics.fmean(r['virtual_seconds'] * r['link'] / speed / rounds(r) for r in records):,.2f}"


FROM_RUNS |= {
    "up a round, MB": lambda records: f"{statistics.fmean(r['bytes']['up'] / rounds(r) for r in records) / 1e6:,.3f}",
    "down a round, MB": lambda records: (
        f"{statistics.fmean(r['bytes']['down'] / rounds(r) for r in records) / 1e6:,.3f}"
    ),
}

OF_NUMBERS: dict[str, Callable[[float, Sequence[Record]], str]] = {  # "#" stands for a number
    "MB to # %": lambda percents, records: until(percents / 100, records),
    "MB up to # %": lambda percents, records: until(percents / 100, records, both=False),
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


FROM_SETTINGS: dict[str, Callable[[Row], str]] = {
    "paper, %": lambda row: row.paper,
    "paper, MB up": lambda row: row.paper,
    "equation, MB": lambda row: f"{equation_bytes(row.file) / 1e6:,.1f}",
    "equation at the paper's scale, GB": lambda row: (
        f"{equation_bytes(row.file.with_stem(row.name.removesuffix('-small'))) / 1e9:,.0f}"
    ),
}


# ---- the page ----------------------------------------------------------------------------------------------------


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others are numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def shown(root: Path, table: Table) -> str:
    """The rows of a table that have a result for their present settings, and how many have none."""
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


def transmission(measured: Record) -> str:
    """Bytes and time of a round of each method, beside the paper's."""
    rows, link = measured["rows"], measured["link"]
    whole = rows["FedAvg"]["up"]
    head = [f"ResNet-18, {measured['clients']} clients, one round", "parameters", "up, MB", "beside FedAvg, %",
            "down, MB", "s, 1 Mbit/s", "s, 10 Mbit/s", "s, 100 Mbit/s", "paper, MB"]  # fmt: skip
    return markdown(
        head,
        [
            [name, f"{row['parameters']:,}", f"{row['up'] / 1e6:.2f}", f"{100 * (row['up'] / whole - 1):+.2f}",
             f"{row['down'] / 1e6:.2f}", *(f"{row['seconds'] * link / speed:,.2f}" for speed in (1, 10, 100)),
             f"{row['paper_mb']:.2f}" if row["paper_mb"] else ""]
            for name, row in rows.items()
        ],
    )  # fmt: skip


MEASURED = {
    "engine": engine, "fedgkt": fedgkt, "spool": spool, "peers": peers, "edge_cost": edge_cost,
    "transmission": transmission,
}  # fmt: skip


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
