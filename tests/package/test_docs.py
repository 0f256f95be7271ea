"""What the pages name is there: modules, attributes, files and the targets of their links."""

from __future__ import annotations

import pkgutil
import re
from dataclasses import fields
from pathlib import Path

import pytest

from catchment.methods import METHODS
from catchment.names import resolve

ROOT = Path(__file__).parents[2]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("examples/**/*.md"),
    )
}
SOURCES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in ROOT.glob("catchment/**/*.py")
}
DOTTED = re.compile(r"`[^`\n]*\b(catchment(?:\.\w+)+)(?![\w.]*[-*])")
FILES = re.compile(r"\b((?:catchment|tests|benchmarks|examples|docs)/[\w./-]*\w/?)(?![\w*{])")
LINKS = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")
ANCHORS = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)#([^)\s]+)\)")
HEADINGS = re.compile(r"^#+ (.+)$", re.MULTILINE)


def is_there(dotted: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    try:
        pkgutil.resolve_name(dotted)
    except (ImportError, AttributeError):
        return False
    return True


def anchors(text: str) -> set[str]:
    """What GitHub calls the headings of a page in links."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADINGS.findall(text)}


def titled(text: str) -> list[str]:
    """The names in the title of a page."""
    return re.findall(r"`(\w+)`", text.partition("\n")[0])


def test_the_check_itself():
    assert is_there("catchment.core.fleet")
    assert is_there("catchment.core.fleet.Fleet")
    assert is_there("catchment.Fleet.ask")
    assert not is_there("catchment.fleet")
    assert not is_there("catchment.core.fleet.Ship")
    assert DOTTED.findall("`catchment.core` and `from catchment.fleet import Fleet`") == [
        "catchment.core",
        "catchment.fleet",
    ]
    assert FILES.findall("see catchment/core/fleet.py.") == ["catchment/core/fleet.py"]
    assert LINKS.findall("[a](docs/a.md#b) [c](https://example.org) [d](#e)") == ["docs/a.md"]
    assert ANCHORS.findall("[a](docs/a.md#b) [c](https://example.org#x) [d](#e)") == [("docs/a.md", "b"), ("", "e")]
    assert anchors("# A `b`: c, d\n\ntext\n\n## Tables 3 and 8") == {"a-b-c-d", "tables-3-and-8"}


@pytest.mark.parametrize("page", [*PAGES, *SOURCES])
def test_modules_that_are_named_are_there(page):
    text = PAGES.get(page) or SOURCES[page]
    assert [name for name in DOTTED.findall(text) if not is_there(name)] == []


@pytest.mark.parametrize("page", PAGES)
def test_files_that_are_named_are_there(page):
    assert [name for name in FILES.findall(PAGES[page]) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    assert [to for to in LINKS.findall(PAGES[page]) if not (ROOT / page).parent.joinpath(to).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_links_to_headings_lead_to_one(page):
    targets = [
        (ROOT / page if not to else (ROOT / page).parent / to, name) for to, name in ANCHORS.findall(PAGES[page])
    ]
    assert [(to.name, name) for to, name in targets if name not in anchors(to.read_text(encoding="utf-8"))] == []


METHOD_PAGES = {page: text for page, text in PAGES.items() if METHODS.keys() & set(titled(text))}


@pytest.mark.parametrize("page", METHOD_PAGES)
def test_a_page_of_a_method_has_its_options_and_its_equations_in_the_code(page):
    text = METHOD_PAGES[page]
    options = {field.name for name in titled(text) for field in fields(resolve("method", name, METHODS))}
    assert {option for option in options if not re.search(rf"`{option}\b", text)} == set()
    linked = re.findall(r"\((?:\.\./)+(catchment/[\w/]+)\.py\)", text)
    table = text.partition("## Equations to code")[2].partition("\n## ")[0]
    names = [name for row in re.findall(r"^\|.*\|(.*)\|$", table, re.MULTILINE) for name in re.findall(r"`(.+?)`", row)]
    assert names or page.endswith("bounds.md")
    assert [name for name in names if not any(is_there(f"{path.replace('/', '.')}.{name}") for path in linked)] == []


REGISTRIES = [
    ".".join(name)
    for name in (
        ("pypi", "org"), ("pythonhosted", "org"), ("anaconda", "org"), ("download", "pytorch", "org"), ("npmjs", "org"),
        ("npmjs", "com"), ("jsdelivr", "net"), ("unpkg", "com"), ("crates", "io"), ("ghcr", "io"), ("docker", "io"),
    )
]  # fmt: skip
"""Hosts of package registries, in pieces, so that this file does not name them either."""


def test_no_file_names_the_host_of_a_package_registry():
    folders = ("catchment", "docs", "tests", "benchmarks", "examples", "experiments", ".ci")
    files = [path for path in ROOT.iterdir() if path.is_file()]
    files += [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    named = {
        path.relative_to(ROOT).as_posix(): host
        for path in files
        if "__pycache__" not in path.parts
        for host in REGISTRIES
        if host.encode() in path.read_bytes().lower()
    }
    assert not named
