"""What every method file has: a paper, the idea, and departures; at most one helper and one other paper as bases."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

from catchment.core.method import Method
from catchment.methods import METHODS

FILES = sorted(Path(import_module("catchment.methods").__file__).parent.glob("[!_]*.py"))


def test_every_file_is_registered():
    assert {file.stem for file in FILES} == {place.split(":")[0].rpartition(".")[2] for place in METHODS.values()}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_opens_with_paper_idea_and_departures(file):
    source = file.read_text(encoding="utf-8")
    paper, idea, *departures = (ast.get_docstring(ast.parse(source)) or "").split("\n\n")
    assert paper
    assert idea
    assert any(part.startswith("Departures:") for part in departures)
    assert len(source.splitlines()) <= 400


@pytest.mark.parametrize("name", METHODS)
def test_a_method_extends_at_most_one_helper_and_one_other_method(name):
    module, _, kind = METHODS[name].partition(":")
    _, *bases = [cls for cls in getattr(import_module(module), kind).__mro__ if issubclass(cls, Method)]
    assert bases.pop() is Method
    others = [base for base in bases if f"{base.__module__}:{base.__name__}" in METHODS.values()]
    assert len(others) <= 1
    assert len(bases) - len(others) <= 1
