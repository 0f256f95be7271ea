"""Write what leaves a device, method by method, into the pages, from the payload classes of the methods.

python benchmarks/leaving.py

A page of `docs/methods` has the methods that its title names, `docs/privacy.md` has all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from catchment.methods import METHODS
from catchment.names import resolve
from catchment.privacy.disclosure import SHOWS, Disclosed, disclosed

DOCS = Path(__file__).parents[1] / "docs"
PAGES = [DOCS / "privacy.md", *sorted(DOCS.glob("methods/*.md"))]


def named(page: str) -> list[str]:
    """The methods that the title of a page names."""
    return re.findall(r"`(\w+)`", page.partition("\n")[0])


def table(names: Iterable[str] = METHODS) -> str:
    """A row for each field; methods whose clients send the same share theirs."""
    alike: dict[tuple[Disclosed, ...], list[str]] = {}
    for name in names:
        alike.setdefault(tuple(disclosed(resolve("method", name, METHODS))), []).append(name)
    lines = ["| methods | field | kind | shape | when asked for |", "|---|---|---|---|---|"]
    for rows, names in alike.items():
        first = ", ".join(f"`{name}`" for name in names)
        for row in rows:
            lines.append(f"| {first} | `{row.field}` | {row.kind} | {row.shape} | `{row.when}` |")
            first = ""
    return "\n".join(lines)


def kinds() -> str:
    """What each kind of field shows to who receives it."""
    return "\n".join(["| kind | shows |", "|---|---|", *(f"| {kind} | {shows} |" for kind, shows in SHOWS.items())])


def rewritten(page: str) -> str:
    """The page with its tables as they are now."""
    for name, text in (("leaving", table(named(page) or METHODS)), ("kinds", kinds())):
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        page = pattern.sub(lambda match, text=text: f"{match[1]}{text}\n{match[2]}", page)
    return page


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(rewritten(path.read_text()))
