"""Experiment files and modules of users, on disk."""

import sys

import pytest


@pytest.fixture(autouse=True)
def _same_path_afterwards(monkeypatch):
    monkeypatch.setattr(sys, "path", sys.path.copy())


@pytest.fixture
def written(tmp_path):
    """Write an experiment file."""

    def write(text, name="experiment.toml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def own(tmp_path):
    """Write a module beside the experiment file and give its name, new in each test, as imports are cached."""

    def write(text):
        name = f"own_{tmp_path.name}"
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write
