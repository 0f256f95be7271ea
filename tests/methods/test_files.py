"""What every method file has: a paper, the idea, and departures; one base at most between a method and `Method`."""

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
def test_one_base_at_most_stands_between_a_method_and_method(name):
    module, _, kind = METHODS[name].partition(":")
    lineage = [cls for cls in getattr(import_module(module), kind).__mro__ if issubclass(cls, Method)]
    assert lineage[-1] is Method
    assert len(lineage) <= 3
