"""Settings of the process: asked for once, and never against the user."""

from __future__ import annotations

import os

import pytest

from catchment import process


@pytest.fixture
def asked(monkeypatch):
    """Whether the allocator was asked, in an environment without settings of its own."""
    calls: list[bool] = []
    monkeypatch.setattr(process, "keep_freed_memory", lambda: calls.append(True))
    for name in list(os.environ):
        if name.startswith(("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD", "OMP_WAIT_POLICY")):
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
