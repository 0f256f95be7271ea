"""Write what leaves a device, method by method, into `docs/privacy.md`, from the payload classes of the methods.

python benchmarks/leaving.py
"""

from __future__ import annotations

import re
from pathlib import Path

from catchment.methods import METHODS
from catchment.names import resolve
from catchment.privacy.disclosure import SHOWS, Disclosed, disclosed

PAGE = Path(__file__).parents[1] / "docs" / "privacy.md"


def table() -> str:
    """A row for each field; methods whose clients send the same share theirs."""
    alike: dict[tuple[Disclosed, ...], list[str]] = {}
    for name in METHODS:
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
    """The page with both tables as they are now."""
    for name, text in (("leaving", table()), ("kinds", kinds())):
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        page = pattern.sub(lambda match, text=text: f"{match[1]}{text}\n{match[2]}", page)
    return page


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))
