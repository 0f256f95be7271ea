"""JSON schemas of files: what is committed, what is printed, and what an editor makes of them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import catchment
from catchment.cli.app import app
from catchment.cli.forms import forms
from catchment.cli.new import SKELETONS
from catchment.cli.schema import SCHEMAS, Kind, text_of
from catchment.methods import METHODS

ROOT = Path(catchment.__file__).parents[1]
EDITOR = Path(__file__).parents[1] / "helpers" / "editor.cjs"


def test_the_committed_schemas_say_what_the_code_says():
    kept = {path.stem: json.loads(path.read_text()) for path in SCHEMAS.glob("*.json")}
    assert kept == forms(), "write them again: python benchmarks/names.py"


def test_the_command_prints_them():
    for kind in Kind:
        done = CliRunner().invoke(app, ["schema", kind])
        assert json.loads(done.output) == json.loads(text_of(kind))
    assert json.loads(CliRunner().invoke(app, ["schema"]).output) == json.loads(text_of("experiment"))


def test_a_schema_has_types_ranges_defaults_and_meanings():
    whole = json.loads(text_of("experiment"))
    every = whole["$defs"]["EvaluationSettings"]["properties"]["every"]
    meaning = "Evaluate every n-th round, and after the last."
    assert every == {"type": "integer", "minimum": 1, "default": 1, "description": meaning}
    for part in (whole, *(part for name, part in whole["$defs"].items() if "-" not in name)):
        assert [name for name, field in part["properties"].items() if "description" not in field] == []
    assert {f"method-{name}" for name in METHODS} <= whole["$defs"].keys()


@pytest.mark.parametrize("kind", ["experiment", "method", "study"])
def test_what_new_writes_names_its_schema(kind, tmp_path):
    CliRunner().invoke(app, ["new", kind, "mine", "--out", str(tmp_path)])
    first = (tmp_path / "mine.toml").read_text().splitlines()[0]
    named = re.fullmatch(r"#:schema \./(\w+\.schema\.json)", first)
    assert named is not None
    assert (tmp_path / named[1]).read_text() == text_of("study" if kind == "study" else "experiment")


# ---- an editor --------------------------------------------------------------------------------------------------

MISTAKES = {
    2: "rounds = 0",
    4: 'engine = "ray"',
    6: "[data]\nclients = 'ten'",
    9: '[method]\nname = "fedgkt"\nserver_epoch = 2',
    13: "[optimizer.client.schedule]\nwarmpu = 1",
}
"""By the line that they begin in, one line apart."""


@pytest.fixture(scope="module")
def editor(tmp_path_factory):
    """A folder with Taplo, the engine of Even Better TOML, and the schemas."""
    folder = tmp_path_factory.mktemp("editor")
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("there is no Node.js")
    packages = ["@taplo/cli@0.7.0", "@taplo/lsp@0.8.0"]
    done = subprocess.run(["npm", "install", "--prefix", str(folder), *packages], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"no packages for Node.js here: {done.stderr}")
    for kind in Kind:
        (folder / f"{kind}.schema.json").write_text(text_of(kind))
    return folder


def lint(folder, schema, *files):
    address = (folder / f"{schema}.schema.json").as_uri()
    command = [folder / "node_modules/.bin/taplo", "lint", "--colors", "never", "--schema", address, *files]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_an_editor_marks_mistakes_where_they_are(editor):
    lines = ["#:schema ./experiment.schema.json"]
    for line, text in MISTAKES.items():
        lines += [""] * (line - 1 - len(lines)) + text.split("\n")
    (editor / "wrong.toml").write_text("\n".join(lines) + "\n")
    code, said = lint(editor, "experiment", "wrong.toml")
    assert code == 1
    for message, line in (
        ("0 is less than the minimum of 1", 2),
        ('"ray" is not one of ["inprocess","flower"]', 4),
        ('"ten" is not of type "integer"', 7),
        ("Additional properties are not allowed ('server_epoch' was unexpected)", 11),
        ("Additional properties are not allowed ('warmpu' was unexpected)", 14),
    ):
        assert re.search(rf"error: {re.escape(message)}\n\s*┌─ \S*wrong.toml:{line}:", said), said


@pytest.mark.slow
def test_every_file_that_comes_with_catchment_passes(editor):
    files = [*ROOT.glob("experiments/**/*.toml"), *ROOT.glob("examples/**/*.toml"), *SKELETONS.glob("*.toml")]
    tables = {path: tomllib.loads(path.read_text()) for path in files}
    others = {"papers.toml", "pyproject.toml"}
    studies = {"row", "axes", "title", "group", "scale", "experiment"}
    for kind in ("experiment", "study"):
        found = [
            path
            for path, table in tables.items()
            if path.name not in others and bool(table.keys() & studies) == (kind == "study")
        ]
        assert found
        assert lint(editor, kind, *map(str, found))[0] == 0


@pytest.mark.slow
def test_an_editor_proposes_keys_and_names(editor):
    first = "#:schema ./experiment.schema.json\n"
    cases = [f"{first}ro|", f'{first}[method]\nname = "fedgkt"\n|', f"{first}[method]\nname = |", f"{first}[data]\ncl|"]
    command = ["node", str(EDITOR), str(editor)]
    done = subprocess.run(command, input=json.dumps(cases), capture_output=True, text=True, check=True)
    keys, options, names, data = json.loads(done.stdout)
    assert {"rounds", "method"} <= set(keys)
    assert json.loads(text_of("experiment"))["$defs"]["method-fedgkt"]["properties"].keys() - {"name"} <= set(options)
    assert {f'"{name}"' for name in METHODS} <= set(names)
    assert {"clients", "classes"} <= set(data)
