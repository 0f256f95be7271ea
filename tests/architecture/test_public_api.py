"""The public names: what people may rely on."""

import ast
import inspect
from pathlib import Path

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
    "PerSample",
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
    "loss_function",
    "on_client",
    "resume",
    "run",
]


def test_the_public_names_are_these_and_sorted():
    assert catchment.__all__ == PUBLIC
    assert sorted(PUBLIC) == PUBLIC


def test_a_public_name_has_words_of_its_own():
    """Not those it inherits, nor those that dataclasses and named tuples make up."""

    def explained(name: str) -> bool:
        thing = getattr(catchment, name)
        text = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
        return bool(text) and not text.startswith(f"{name}(")

    assert [name for name in PUBLIC if name != "Weights" and not explained(name)] == []
    assert inspect.getdoc(catchment.Weights)


def test_what_a_public_class_offers_is_explained():
    silent = []
    for name in PUBLIC:
        for member, value in (
            vars(getattr(catchment, name)).items() if inspect.isclass(getattr(catchment, name)) else ()
        ):
            function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            offered = not member.startswith("_") and (inspect.isfunction(function) or isinstance(value, property))
            if offered and not function.__doc__:
                silent.append(f"{name}.{member}")
    assert silent == []


def test_the_changelog_begins_with_this_version():
    changelog = (Path(catchment.__file__).parents[1] / "CHANGELOG.md").read_text(encoding="utf-8")
    titles = [line for line in changelog.splitlines() if line.startswith("## ") and line != "## Unreleased"]
    assert titles[0] == f"## {catchment.__version__}"


def test_type_checkers_see_the_same_names_as_programs():
    tree = ast.parse(Path(catchment.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.asname: f"{node.module}" for node in block.body for alias in node.names}
    assert seen == catchment._MODULES
