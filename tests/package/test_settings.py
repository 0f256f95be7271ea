"""The tables of keys in the pages are what the code says."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("settings")


def test_no_page_is_behind_the_code(tables):
    pages = {path: path.read_text() for path in tables.PAGES}
    behind = [path.name for path, page in pages.items() if tables.rewritten(page) != page]
    assert behind == [], "write them again: python benchmarks/settings.py"
    written = re.findall("<!-- settings ([a-z]+) -->", "".join(pages.values()))
    assert sorted(written) == sorted(tables.TABLES)


def test_a_row_has_the_values_the_default_and_the_meaning(tables):
    page = tables.rewritten("<!-- settings checkpoint -->\nold\n<!-- /settings checkpoint -->")
    row = "| `every` | whole number, at least 1 | `1` | Keep every n-th round, and the last. |"
    assert page.splitlines()[3] == row
