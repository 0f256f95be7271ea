"""What is missing until every table and figure of the four papers is measured: a line for each, and exit code 1.

    python experiments/missing.py

`papers.toml` says which they are. A result needs a heading in its paper's page, and results of a study with every row
and every seed that the study asks for.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from catchment.studies.file import PAPER, StudyFile  # noqa: E402, after the path
from catchment.studies.results import StudyResult  # noqa: E402

KINDS = ("result", "setting", "architecture", "drawing")


class Measured(NamedTuple):
    """One entry of `measured`."""

    name: str  # of results, as in the pages
    rows: str  # a pattern

    @staticmethod
    def of(text: str) -> Measured:
        """`NAME` or `NAME; rows: PATTERN`."""
        name, _, rows = text.partition("; rows: ")
        return Measured(name, rows or "*")


def papers(root: Path = ROOT) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The papers by name, and patterns of rows whose data nobody could get."""
    table = tomllib.loads((root / "experiments" / "papers.toml").read_text())
    return table, tuple(table.pop("absent"))


@cache
def studies(root: Path = ROOT) -> dict[str, tuple[Path, str]]:
    """File and scale of every study, by the name of its results."""
    found = {}
    for path in (root / "experiments").rglob("*.toml"):
        if tomllib.loads(path.read_text()).keys() & {"row", "axes", "extends"}:  # others are what studies share
            for scale in StudyFile.scales(path):
                name = StudyFile.load(path, scale).name
                found[name if scale == PAPER else f"{name}-{scale}"] = (path, scale)
    return found


def missing(root: Path = ROOT) -> Iterator[str]:
    """What is missing, item by item."""
    table, absent = papers(root)
    for paper, settings in table.items():
        page = (root / settings["page"]).read_text()
        for item, facts in settings["items"].items():
            if facts["kind"] != "result":
                continue
            if not re.search(rf"^##+ {re.escape(item)}(?![\w.])", page, re.MULTILINE):
                yield f"{paper}, {item}: {settings['page']} has no heading that begins with it"
            for text in facts["measured"]:
                yield from (f"{paper}, {item}: {why}" for why in lacking(Measured.of(text), absent, root))


def lacking(measured: Measured, absent: tuple[str, ...], root: Path = ROOT) -> Iterator[str]:
    """What one entry of `measured` lacks."""
    if measured.name not in studies(root):  # what a script of benchmarks/ wrote
        if not (root / "benchmarks" / "results" / f"{measured.name}.json").exists():
            yield f"benchmarks/results/{measured.name}.json is not there"
        return
    place = root / "experiments" / "results" / f"{measured.name}.json"
    if not place.exists():
        yield f"experiments/results/{place.name} is not there"
        return
    path, scale = studies(root)[measured.name]
    study, result = StudyFile.load(path, scale), StudyResult.read(place)
    labels = [row.label for row in study.rows if fnmatchcase(row.label, measured.rows)]
    labels = [label for label in labels if not any(fnmatchcase(label, pattern) for pattern in absent)]
    seeds = {row.label: {run.seed for run in row.runs} for row in result.rows}
    if never := [label for label in labels if not seeds.get(label)]:
        yield f"{place.name}: {len(never)} of {len(labels)} rows were not run: {'; '.join(never)}"
    if few := [label for label in labels if seeds.get(label) and set(study.seeds) - seeds[label]]:
        yield f"{place.name}: not all seeds of {list(study.seeds)}: {'; '.join(few)}"


if __name__ == "__main__":
    lines = list(missing())
    print("\n".join(lines) or "every table and figure is there")
    sys.exit(bool(lines))
