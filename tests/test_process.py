"""Settings of the process: asked for once, and never against the user."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import catchment
from catchment import process

ALLOCATORS = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")


@pytest.fixture
def asked(monkeypatch):
    """Whether the allocator was asked, in an environment without settings of its own."""
    calls: list[bool] = []
    monkeypatch.setattr(process, "keep_freed_memory", lambda: calls.append(True))
    for name in list(os.environ):
        if name.startswith((*ALLOCATORS, "OMP_WAIT_POLICY")):
            monkeypatch.delenv(name)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    return calls


def test_threads_sleep_and_memory_stays(asked):
    process.set_up()
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    assert asked == [True]


@pytest.mark.parametrize("name", ["MALLOC_ARENA_MAX", "GLIBC_TUNABLES", "LD_PRELOAD"])
def test_what_the_user_has_set_stays(asked, name):
    os.environ.update({name: "1", "OMP_WAIT_POLICY": "ACTIVE"})
    process.set_up()
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"
    assert asked == []


IMPORTED = """
import ctypes, os, sys

opened, real, before = [], ctypes.CDLL, dict(os.environ)
ctypes.CDLL = lambda name, *more, **words: opened.append(name) or real(name, *more, **words)

import catchment

assert "torch" not in sys.modules
for name in catchment.__all__:
    getattr(catchment, name)
assert "torch" in sys.modules
assert dict(os.environ) == before, "the environment"
assert None not in opened, "the C library"
catchment.run(catchment.Experiment.from_dict({"rounds": 1, "data": {"clients": 2, "train": 20, "test": 10}}))
assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
assert None in opened
"""


def test_an_import_leaves_the_process_alone_and_a_run_sets_it_up():
    clean = {name: value for name, value in os.environ.items() if not name.startswith((*ALLOCATORS, "OMP_WAIT"))}
    subprocess.run([sys.executable, "-c", IMPORTED], check=True, env=clean, timeout=120)


def test_the_command_sets_the_process_up_before_pytorch_is_imported():
    program = (
        "import sys\nfrom catchment import cli, process\n"
        "process.set_up = lambda: print('torch' in sys.modules)\nsys.argv = ['catchment', 'version']\ncli.main()"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, timeout=120, stdout=subprocess.PIPE, text=True)
    assert done.stdout.split() == ["False", catchment.__version__]
