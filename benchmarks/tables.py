"""Rewrite the tables of docs/results.md from the measured files in benchmarks/results.

    python benchmarks/tables.py            # all
    python benchmarks/tables.py peers      # one

A table stands between `<!-- NAME -->` and `<!-- /NAME -->`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results.md"
RESULTS = ROOT / "benchmarks" / "results"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others are numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def engine(measured: dict[str, Any]) -> str:
    """The engine beside a bare loop, and registered clients."""
    resnet8, registered = measured["resnet8"], measured["registered"]
    seconds, ratio = resnet8["round_s"], resnet8["over_bare"]
    one, two = ratio["1 worker, 1 thread"], ratio["2 workers, 2 threads"]
    first = table(
        ["ResNet-8, 8 clients x 256 images of 32x32", "bare loop, s a round", "Catchment, s a round", "ratio"],
        [
            ["one core", f"{seconds['bare, 1 thread']:.2f}", f"{seconds['catchment, 1 worker']:.2f}", f"{one:.2f}"],
            ["two cores", f"{seconds['bare, 2 threads']:.2f}", f"{seconds['catchment, 2 workers']:.2f}", f"{two:.2f}"],
        ],
    )
    ratios = registered["ratio"]
    second = table(
        ["100 of so many clients take part", "seconds a round", "seconds of the run", "peak memory"],
        [["10,000 registered over 100 registered", *(f"{ratios[k]:.2f}" for k in ("round_s", "run_s", "peak_rss_mb"))]],
    )
    return f"{first}\n\n{second}"


def peers(measured: dict[str, Any]) -> str:
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
        parts.append(table(head, rows))
    return "\n\n".join(parts)


TABLES = {"engine": engine, "peers": peers}


def main() -> None:
    page = PAGE.read_text()
    for name in sys.argv[1:] or TABLES:
        text = TABLES[name](json.loads((RESULTS / f"{name}.json").read_text()))
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        if not pattern.search(page):
            sys.exit(f"docs/results.md has no place for {name}: <!-- {name} --> ... <!-- /{name} -->")
        page = pattern.sub(lambda match, text=text: match[1] + text + "\n" + match[2], page)
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
