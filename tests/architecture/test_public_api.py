"""The public names: what people may rely on."""

import ast
import inspect
from pathlib import Path

import pytest

import catchment

PUBLIC = [
    "Aggregator",
    "Attack",
    "Batch",
    "CatchmentError",
    "Client",
    "Dataset",
    "DeviceProfile",
    "Experiment",
    "Fleet",
    "Message",
    "Method",
    "Metrics",
    "Normalisation",
    "Payload",
    "Reply",
    "Run",
    "RunError",
    "Samples",
    "Server",
    "SplitModel",
    "Stage",
    "Study",
    "UserError",
    "Weights",
    "fit",
    "on_client",
    "resume",
    "run",
]


def test_the_public_names_are_these_and_sorted():
    assert catchment.__all__ == PUBLIC
    assert sorted(PUBLIC) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_there_and_explains_itself(name):
    assert inspect.getdoc(getattr(catchment, name))


@pytest.mark.parametrize("name", [name for name in PUBLIC if name != "Weights"])
def test_a_public_name_has_words_of_its_own(name):
    """Not those it inherits, nor those that dataclasses and named tuples make up."""
    thing = getattr(catchment, name)
    text = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
    assert text
    assert not text.startswith(f"{name}(")


@pytest.mark.parametrize("name", [name for name in PUBLIC if inspect.isclass(getattr(catchment, name))])
def test_what_a_public_class_offers_is_explained(name):
    for member, value in vars(getattr(catchment, name)).items():
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if not member.startswith("_") and (inspect.isfunction(function) or isinstance(value, property)):
            assert function.__doc__, member


def test_the_changelog_begins_with_this_version():
    changelog = (Path(catchment.__file__).parents[1] / "CHANGELOG.md").read_text(encoding="utf-8")
    first = next(line for line in changelog.splitlines() if line.startswith("## "))
    assert first == f"## {catchment.__version__}"


def test_type_checkers_see_the_same_names_as_programs():
    tree = ast.parse(Path(catchment.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.asname: f"{node.module}" for node in block.body for alias in node.names}
    assert seen == catchment._MODULES
