"""The documentation as a site: built without a warning, of every public name, and without help from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import catchment

pytestmark = pytest.mark.docs
ROOT = Path(__file__).parents[2]
LOADED = re.compile(r"<(?:script|img|iframe|source)[^>]*\bsrc=\"?(?:https?:)?//|<link[^>]*\bhref=\"?(?:https?:)?//")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="pip install 'catchment-fl[docs]'")
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return directory


def test_the_check_itself() -> None:
    assert LOADED.search('<script src="https://example.org/a.js"></script>')
    assert LOADED.search('<link rel="stylesheet" href="//example.org/a.css">')
    assert not LOADED.search('<a href="https://flower.ai">Flower</a> <script src="assets/a.js">')


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    assert [page.name for page in pages if LOADED.search(page.read_text(encoding="utf-8"))] == []


def test_files_that_pages_link_to_are_part_of_it(site: Path) -> None:
    assert "../catchment/methods/fedgkt.py.html" in (site / "methods/fedgkt.html").read_text(encoding="utf-8")
    assert "extractor_rate" in (site / "catchment/methods/fedgkt.py.html").read_text(encoding="utf-8")
    assert (site / "benchmarks/results/inversion.json").exists()


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    page = (site / "reference.html").read_text(encoding="utf-8")
    anchors = set(re.findall(r'id="catchment\.(\w+)"', page))
    assert set(catchment.__all__) - anchors == set()
