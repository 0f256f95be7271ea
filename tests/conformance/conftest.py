"""Runs that many tests compare with: each is done once in a session, by the worker that needs it first."""

from __future__ import annotations

import contextlib
import hashlib
import json

import pytest
from worlds import experiment

import catchment
from catchment.testing import Outcome


@pytest.fixture(scope="session")
def reference(tmp_path_factory, worker_id):
    """All that a small world leaves when one thread runs it."""
    base = tmp_path_factory.getbasetemp()
    shared = (base if worker_id == "master" else base.parent) / "references"
    shared.mkdir(exist_ok=True)

    def left(name, **settings):
        out = shared / hashlib.sha256(json.dumps([name, settings], sort_keys=True).encode()).hexdigest()[:16]
        if not out.exists():
            own = tmp_path_factory.mktemp("reference") / "run"
            catchment.run(experiment(name, few=True, **settings), own)
            with contextlib.suppress(OSError):  # another worker was as fast
                own.rename(out)
        return Outcome.of(out)

    return left
