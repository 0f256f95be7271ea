"""What is written is for its owner alone."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from catchment.cli import main
from catchment.config.experiment import Experiment
from catchment.launch import run

TINY = """
name = "tiny"
rounds = 1
workers = 1
[data]
clients = 2
train = 20
test = 10
[models]
client = "mlp(4)"
"""


@pytest.fixture(autouse=True)
def generous() -> Iterator[None]:
    """As most machines are: others may read what one writes."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_nothing_of_a_run_can_be_read_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(TINY)
    Path("open").mkdir()
    for out in ("new", "open"):
        monkeypatch.setattr(sys, "argv", ["catchment", "run", "tiny.toml", "--out", out])
        with pytest.raises(SystemExit) as stop:
            main()
        assert not stop.value.code
        written = list(Path(out).rglob("*"))
        assert Path(out, "checkpoints/round-000001.safetensors") in written
        assert [str(path) for path in written if stat.S_IMODE(path.stat().st_mode) & 0o077] == []
    assert stat.S_IMODE(Path("new").stat().st_mode) == 0o700
    assert stat.S_IMODE(Path("open").stat().st_mode) == 0o755
    assert os.umask(0o022) == 0o022


def test_a_run_from_python_has_a_directory_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    run(Experiment.load(tmp_path / "tiny.toml"), tmp_path / "out")
    for path in (tmp_path / "out", tmp_path / "out/checkpoints"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path
