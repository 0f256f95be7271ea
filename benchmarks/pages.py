"""The tables and pictures of the pages in `docs/` and of the README, made from committed results.

    python benchmarks/pages.py            # write them anew
    python benchmarks/pages.py --check    # say what is behind its results, and exit with 1 if something is

A table stands between `<!-- NAME -->` and `<!-- /NAME -->`. NAME is a study with its scale, whose results are in
`experiments/results/NAME.json`; or a script of this folder, whose numbers are in `results/NAME.json`; or one of
DIFFERENCES. `<!-- NAME; rows: PATTERN; columns: A, B -->` takes some rows and columns of a study, and leaves out of
the labels what the pattern begins with. Rows that were not run do not stand in a page. Pictures are in `docs/pictures`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from measured import MEASURED, markdown
from pictures import PICTURES

from catchment.files import write_atomically
from catchment.studies import tables
from catchment.studies.columns import FALL, numbers
from catchment.studies.file import PAPER
from catchment.studies.results import RowResult, StudyResult
from catchment.studies.statistics import paired

ROOT = Path(__file__).parents[1]
PLACE = re.compile(
    r"(<!-- ([\w-]+)(?:; rows: ([^;\n]+?))?(?:; columns: ([^;\n]+?))? -->\n)(.*?)(<!-- /\2 -->)", re.DOTALL
)
ACCURACY, CLIENTS, SERVER = "accuracy", "clients.mean", "server.accuracy"
SMALL_MAPS = "sent once, augmented, 4 bits, 16 maps of 16x16"


def _in_each_split(*pairs: tuple[str, str]) -> list[tuple[str, str, str]]:
    """Two rows of FedZKT compared on both kinds of data that are not IID, for devices and server."""
    return [
        (column, f"{split}, {row}", f"{split}, {other}")
        for split in ("5 classes per device", "Dirichlet(0.5)")
        for row, other in pairs
        for column in (ACCURACY, SERVER)
    ]


# What the pages say is ahead: the study, what its labels begin with, and (column, row, row that it is compared with).
DIFFERENCES = {
    "fedgkt-headline-differences": (
        "fedgkt-headline-small",
        "",
        [(ACCURACY, "FedAvg of the whole model", "centralized, the whole model")],
    ),
    "fedgkt-unequal-differences": (
        "fedgkt-unequal",
        "",
        [
            (ACCURACY, "Dirichlet(0.5), extractors at a hundredth", "IID, extractors at a hundredth"),
            (ACCURACY, "Dirichlet(0.5), extractors at a hundredth", "Dirichlet(0.5), extractors at the whole rate"),
            (ACCURACY, "Dirichlet(0.5), extractors at the whole rate", "IID, extractors at the whole rate"),
        ],
    ),
    "fedgkt-steady-differences": (
        "fedgkt-steady",
        "",
        [(FALL, row, "last weights") for row in ("cosine schedule", "moving average", "both")],
    ),
    "fedgkt-bytes-differences": (
        "fedgkt-bytes-small",
        "",
        [
            (ACCURACY, "sent once, augmented, 4 bits", "SplitFed of the same two halves"),
            (ACCURACY, "sent once, augmented, 4 bits", "all images in one place, ResNet-20"),
            (ACCURACY, "sent once, augmented, 4 bits, 8 maps of 16x16", "FedAvg of ResNet-20"),
            (ACCURACY, "sent once, augmented, 4 bits, 8 maps of 16x16, cut behind a block", "FedAvg of ResNet-20"),
            (ACCURACY, "features sent once", "FedAvg of ResNet-20"),
            *((ACCURACY, row, "FedAvg of ResNet-20") for row in (
                "features in 4 bits", "sent once, augmented on the server", "sent once, augmented, 4 bits", SMALL_MAPS,
                f"{SMALL_MAPS}, twice the epochs", "SplitFed of the same two halves",
            )),
            (ACCURACY, f"{SMALL_MAPS}, twice the epochs", "SplitFed of the same two halves"),
            (ACCURACY, f"{SMALL_MAPS}, twice the epochs", "all images in one place, ResNet-20"),
        ],
    ),
    "fedgkt-speeds-differences": (
        "fedgkt-two-speeds-small",
        "",
        [
            (ACCURACY, "asynchronous", "synchronous"),
            (ACCURACY, "asynchronous, with replay", "synchronous"),
            (ACCURACY, "asynchronous, more uploads, some replay", "synchronous"),
        ],
    ),
    "fedgkt-gone-differences": (
        "fedgkt-gone-small",
        "",
        [
            (ACCURACY, "asynchronous, weights for rare clients", "asynchronous"),
            *((ACCURACY, f"both directions, {option}", "both directions")
              for option in ("answers after training", "batches of one client")),
        ],
    ),
    "fedgems-differences": (
        "fedgems-table2-small",
        "CIFAR-10, hetero, ",
        [
            *((CLIENTS, "FedGEMS", other) for other in ("Stand-Alone", "FedMD", "Cronus", "DS-FL", "FedDF", "FedGKT")),
            *((CLIENTS, "FedGEM", other) for other in ("Stand-Alone", "FedMD", "Cronus", "FedGKT")),
            (CLIENTS, "FedGEMS", "FedGEM"),
            (SERVER, "FedGEMS", "FedGEM"),
            (SERVER, "FedGEMS", "Stand-Alone"),
            (SERVER, "FedGEM", "Stand-Alone"),
            *((CLIENTS, method, "Stand-Alone") for method in ("FedMD", "Cronus", "DS-FL", "FedDF")),
        ],
    ),
    "average-differences": (
        "average",
        "",
        [
            (ACCURACY, f"{training}, average 0.99", f"{training}, last weights")
            for training in (
                "centralized, ResNet-20, 12 epochs", "FedGKT, ResNet-8 and ResNet-19, 6 rounds of 2 epochs",
            )
        ],
    ),
    "fedgems-server-differences": (
        "fedgems-server",
        "",
        [
            *((SERVER, f"{method}, epsilon = {epsilon}, cosine schedule", "Stand-Alone, cosine schedule")
              for method in ("FedGEM", "FedGEMS") for epsilon in ("0.75", "0.1")),
            *((SERVER, f"FedGEMS, epsilon = {epsilon}, constant rate", "Stand-Alone, constant rate")
              for epsilon in ("0.75", "0.1")),
            *((SERVER, f"FedGEM, epsilon = {epsilon}, constant rate", "Stand-Alone, constant rate")
              for epsilon in ("0.75", "0.1")),
            (SERVER, "FedGEM, epsilon = 0.1, constant rate", "FedGEM, epsilon = 0.75, constant rate"),
            (SERVER, "FedGEM, epsilon = 0.1, cosine schedule", "FedGEM, epsilon = 0.75, cosine schedule"),
            (SERVER, "FedGEM, epsilon = 0.1, cosine schedule", "Stand-Alone, 320 public images"),
            (SERVER, "FedGEM, epsilon = 0.1, cosine schedule", "FedGEMS, epsilon = 0.1, cosine schedule"),
            (CLIENTS, "FedGEM, epsilon = 0.1, cosine schedule", "Stand-Alone, cosine schedule"),
            (CLIENTS, "FedGEMS, epsilon = 0.1, cosine schedule", "Stand-Alone, cosine schedule"),
        ],
    ),
    "fedgems-attacks-differences": (
        "fedgems-table8-small",
        "",
        [
            (ACCURACY, f"{method}, {attack}", f"{method}, no attack")
            for attack in ("PAF", "LIE", "OFOM")
            for method in ("FedGEMS", "FedGEM", "FedMD", "FedAvg", "Cronus", "DS-FL", "FedDF", "FedGKT")
        ],
    ),
    "fedgems-defences-differences": (
        "fedgems-defences-small",
        "",
        [
            (ACCURACY, f"{method}, {mean}, {attack}", f"{method}, mean, no attack")
            for method in ("FedAvg", "FedMD")
            for mean in (
                "median", "trimmed mean, a quarter at each end", "Multi-Krum, 4 of 8", "filter of Cronus",
            )
            for attack in ("no attack", "PAF", "OFOM")
        ]
        + [
            (ACCURACY, f"FedGKT, what stands out is dropped, {attack}", f"FedGKT, {attack}")
            for attack in ("no attack", "PAF", "OFOM")
        ],
    ),
    "defaults-differences": (
        "defaults",
        "",
        [
            (column, f"{method}, {row}", f"{method}, {other}")
            for method in ("FedGEM", "FedGEMS")
            for row, other in (
                ("10 epochs first", "as printed"),
                ("10 epochs first, moving average", "10 epochs first"),
                ("10 epochs first, moving average", "as printed"),
                ("10 epochs first, cosine schedule", "10 epochs first, moving average"),
                ("steady, 10 epochs first", "10 epochs first, moving average"),
                ("steady, 10 epochs first", "steady"),
                ("steady, 10 epochs first, 5 of the server", "steady, 10 epochs first"),
            )
            for column in (SERVER, CLIENTS)
        ]
        + [
            (CLIENTS, "FedMD, moving average", "FedMD, as printed"),
            *((CLIENTS, f"{method}, 10 epochs first, moving average", "FedMD, moving average")
              for method in ("FedGEM", "FedGEMS")),
            *((SERVER, f"{method}, steady, 10 epochs first, 5 of the server",
               "Stand-Alone, steady, 5 epochs of each per round") for method in ("FedGEM", "FedGEMS")),
        ],
    ),
    "fedkgf-differences": (
        "fedkgf-table1-small",
        "IID, ",
        [
            *(
                (ACCURACY, other, "FedAvg")
                for other in (
                    "Fed-KGF", "Fed-KGF without module upload", "DGC", "FedCOM", "FedCAMS, scaled sign", "SmartIdx",
                    "FedPM",
                )
            ),
            (ACCURACY, "Fed-KGF", "FedPM"),
        ],
    ),
    "fedkgf-limits-differences": (
        "fedkgf-limits-small",
        "",
        [
            (ACCURACY, "IID, base kernels alone", "IID, a dense network of as many parameters"),
            (ACCURACY, "IID, Fed-KGF", "IID, base kernels alone"),
            (ACCURACY, "IID, Fed-KGF without alpha", "IID, Fed-KGF"),
            (ACCURACY, "IID, Fed-KGF, last layer averaged", "IID, Fed-KGF"),
            (ACCURACY, "non-IID, Fed-KGF, last layer averaged", "non-IID, Fed-KGF"),
            (ACCURACY, "non-IID, Fed-KGF, last layer averaged", "non-IID, FedAvg"),
        ],
    ),
    "fedkgf-gone-differences": (
        "fedkgf-gone-small",
        "",
        [
            (ACCURACY, f"{split}, Fed-KGF, {averaged}", f"{split}, Fed-KGF{other}")
            for split in ("IID", "non-IID")
            for averaged, other in (("statistics averaged", ""), ("both averaged", ", last layer averaged"))
        ],
    ),
    "fedzkt-differences": (
        "fedzkt-headline-small",
        "",
        [
            *((ACCURACY, f"{data}: FedZKT", f"{data}: each device alone (lower bound)")
              for data in ("IID", "Dirichlet(0.5)")),
            (ACCURACY, "IID: FedZKT", "all data in one place (upper bound)"),
        ],
    ),
    "fedzkt-loss-differences": (
        "fedzkt-table2-small",
        "",
        _in_each_split(("SL", "KL-divergence"), ("SL", "l1 norm"), ("KL-divergence", "l1 norm")),
    ),
    "fedzkt-table1-differences": (
        "fedzkt-table1-small",
        "",
        [
            (ACCURACY, f"{data}, FedZKT", f"{data}, FedMD with {public}")
            for data, public in (("MNIST", "Fashion-MNIST"), ("Fashion-MNIST", "MNIST"))
        ],
    ),
    "fedzkt-fedmd-differences": (
        "fedzkt-figure4-small",
        "MNIST, ",
        [
            (ACCURACY, f"{split}, FedZKT", f"{split}, FedMD")
            for split in ("2 classes per device", "5 classes per device", "Dirichlet(0.5)")
        ],
    ),
    "fedzkt-anchor-differences": (
        "fedzkt-table4-small", "", _in_each_split(("anchor", "no anchor"), ("anchor, 200 times", "no anchor")),
    ),
}  # fmt: skip
WHOSE = {ACCURACY: "accuracy", CLIENTS: "clients", SERVER: "server", FALL: "largest fall"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    found = dict(behind())
    for path, content in found.items():
        print(f"{path.relative_to(ROOT)} {'is behind its results' if check else 'is written anew'}")
        if not check:
            write_atomically(path, content)
    sys.exit(check and bool(found))


def behind(root: Path = ROOT) -> Iterator[tuple[Path, bytes]]:
    """Every page and picture that is not as the results have it, with what it should be."""
    for page in (root / "README.md", *sorted((root / "docs").rglob("*.md"))):
        if (text := made(page.read_text(), root)) != page.read_text():
            yield page, text.encode()
    for name, draw in PICTURES.items():
        path = root / "docs" / "pictures" / f"{name}.svg"
        picture = draw(root / "experiments" / "results")
        if not path.exists() or path.read_bytes() != picture:
            yield path, picture


def made(text: str, root: Path = ROOT) -> str:
    """The text of a page with its tables as the results have them."""

    def table(match: re.Match[str]) -> str:
        begin, name, rows, columns, _, end = match.groups()
        found = content(name, rows or "*", tuple(columns.split(", ")) if columns else (), root)
        return match[0] if found is None else f"{begin}{found}\n{end}"

    return PLACE.sub(table, text)


def content(name: str, rows: str = "*", columns: tuple[str, ...] = (), root: Path = ROOT) -> str | None:
    """The table with a name; None if another script makes it."""
    results = root / "experiments" / "results"
    if name in DIFFERENCES:
        study, begin, pairs = DIFFERENCES[name]
        return differences(StudyResult.read(results / f"{study}.json"), begin, pairs)
    if name in MEASURED:
        return MEASURED[name](json.loads((root / "benchmarks" / "results" / f"{name}.json").read_text()))
    if (results / f"{name}.json").exists():
        return study_table(StudyResult.read(results / f"{name}.json"), rows, columns)
    return None


def study_table(result: StudyResult, pattern: str = "*", columns: tuple[str, ...] = ()) -> str:
    """Rows of a study that were run, and how they came about."""
    begin = pattern.removesuffix("*")
    rows = [
        dataclasses.replace(row, label=row.label.removeprefix(begin))
        for row in result.rows
        if row.runs and fnmatchcase(row.label, pattern)
    ]
    reference = None if result.reference is None else result.reference.removeprefix(begin)
    chosen = dataclasses.replace(result, rows=rows, reference=reference, columns=columns or result.columns)
    return f"{tables.markdown(chosen)}\n{_origin(result, rows)}"


def _origin(result: StudyResult, rows: list[RowResult]) -> str:
    counts = sorted({len(row.runs) for row in rows})
    seeds = "one seed" if counts == [1] else f"mean and standard deviation over {counts[-1]} seeds"
    if len(counts) > 1:
        seeds += ", one seed where no ± stands"
    versions = " and ".join(map(str, sorted({run.results for row in rows for run in row.runs})))
    scale = "" if result.scale == PAPER else f"scale {result.scale}; "
    origin = f"{scale}{seeds}; version {versions} of results."
    return f"{result.note} {origin[0].upper()}{origin[1:]}".lstrip()


def differences(result: StudyResult, begin: str, pairs: list[tuple[str, str, str]]) -> str:
    """Differences paired by seed, with their 95 % intervals."""
    lines = []
    for column, row, other in pairs:
        first, second = result.row(begin + row), result.row(begin + other)
        found = None if first is None or second is None else paired(numbers(first, column), numbers(second, column))
        if found is None or found.low is None or found.high is None:
            raise ValueError(f"{result.name} has no two seeds of both {begin + row} and {begin + other}")
        ends = 100 * found.low, 100 * found.high
        digits = 1 if all(abs(end) >= 0.05 for end in ends) else 2  # so that it shows on which side of zero an end is
        interval = " to ".join(f"{end:+.{digits}f}" for end in ends)
        verdict = "yes" if found.certain else "no"
        lines.append([f"{WHOSE[column]}: {row} over {other}", f"{100 * found.mean:+.1f}", interval, verdict])
    return markdown(["paired by seed", "points", "95 % interval", "beyond chance"], lines)


if __name__ == "__main__":
    main()
