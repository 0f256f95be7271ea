"""The list of hashes for an install: every package has one, or there is no list."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

requirements = runpy.run_path(str(Path(__file__).parents[2] / ".ci/hashes.py"))["requirements"]


def package(name: str, version: str, info: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": name, "version": version}, "download_info": {"url": f"file:///{name}", **info}}


def test_every_package_has_a_line_with_its_hash_and_catchment_has_none() -> None:
    torch = package("torch", "2.13.0+cpu", {"archive_info": {"hashes": {"sha256": "ab"}}})
    jinja = package("Jinja2", "3.1.6", {"archive_info": {"hashes": {"sha256": "cd"}}})
    own = package("catchment-fl", "0.1.0", {"dir_info": {}})
    assert requirements({"install": [torch, own, jinja]}) == [
        "Jinja2==3.1.6 --hash=sha256:cd",
        "torch==2.13.0+cpu --hash=sha256:ab",
    ]


@pytest.mark.parametrize("info", [{"dir_info": {}}, {"archive_info": {"hashes": {}}}])
def test_a_package_without_a_hash_is_an_error(info: dict[str, Any]) -> None:
    with pytest.raises(SystemExit, match=r"pip knows no hash of torch 2\.13\.0: file:///torch is not a file"):
        requirements({"install": [package("torch", "2.13.0", info)]})
