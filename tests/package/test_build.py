"""The wheel and the source distribution that a release consists of."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import catchment

pytestmark = pytest.mark.docs
ROOT = Path(catchment.__file__).parents[1]
BUILD = """
import sys
from setuptools import build_meta
out = sys.argv[1]  # which building changes
print(build_meta.build_sdist(out), build_meta.build_wheel(out))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, Path]:
    """Both, built from a copy of the sources, which building would leave files in."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "catchment", source / "catchment", ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BUILD, str(out)], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    sdist, wheel = done.stdout.split()[-2:]
    return out / sdist, out / wheel


def test_every_extra_is_explained():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    page = (ROOT / "docs" / "install.md").read_text()
    assert [extra for extra in extras if f"`{extra}`" not in page] == []
    assert f"catchment_fl-{catchment.__version__}-py3-none-any.whl" in page


def test_both_have_every_file_of_the_package(built):
    sdist, wheel = built
    assert sdist.name == f"catchment_fl-{catchment.__version__}.tar.gz"
    assert wheel.name == f"catchment_fl-{catchment.__version__}-py3-none-any.whl"
    files = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "catchment").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as packed:
        assert files - set(packed.namelist()) == set()
    with tarfile.open(sdist) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert {*files, "pyproject.toml", "README.md", "LICENSE"} - names == set()


@pytest.mark.parametrize("which", ["sdist", "wheel"])
def test_it_runs_where_the_sources_are_not(built, which, tmp_path):
    target, file = tmp_path / "installed", dict(zip(("sdist", "wheel"), built))[which]
    options = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target", target)
    subprocess.run([sys.executable, "-m", "pip", "install", *options, file], check=True)
    (tmp_path / "x.toml").write_text(
        'rounds = 1\nmodels.client = "mlp"\ndata = { name = "digits", clients = 2, train = 40 }\n'
    )
    code = "import catchment.cli, sys; print(catchment.__file__); sys.exit(catchment.cli.main())"
    done = subprocess.run(
        [sys.executable, "-c", code, "run", "x.toml"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(target), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(target))
