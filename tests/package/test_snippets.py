"""What the pages show works: commands, experiments, studies and Python, each run in the order of its page.

A page has a folder of its own, in which a block whose first line is `# NAME` is that file; my.toml is made small.
Commands that need another machine are only parsed here: ELSEWHERE says where they are run.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tomli_w
import torch
from typer.main import get_command
from typer.testing import CliRunner

import catchment
from catchment.cli.app import app
from catchment.methods.fedgkt import FedGKT
from catchment.studies.file import StudyFile

pytestmark = pytest.mark.docs
ROOT = Path(__file__).parents[2]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^(?:.*-m |.*; do )?\s*catchment ((?:[^#;]|#\S)+)")
EXAMPLES = "\n".join(path.read_text(encoding="utf-8") for path in ROOT.glob("examples/**/*.py"))
ELSEWHERE = {
    r"^server|^join(?!.*--init)": "tests/flower, and benchmarks/namespaces.py with TLS and machines of their own",
    r"^predict": "tests/export",
    r"watch": "it goes on until it is stopped, as in tests/watching",
    r"engine=flower": "tests/conformance/test_flower.py",
    r"\$": "a loop of the shell, as in tests/flower/test_app.py",
    r"\bx\b": "under torchrun, as in tests/cli/test_ranks.py",
    r"^study experiments/": "every row is read by tests/package/test_studies.py",
    r"/shared/": "a folder of several machines, as in tests/studies",
}
LONG = re.compile(r"^study|--advise|probe|__main__")  # commands and Python that take minutes


class Block(NamedTuple):
    """What stands between two fences."""

    language: str
    text: str

    @property
    def file(self) -> str | None:
        """The file that it is, if its first line says so."""
        found = re.match(r"# ([\w-]+\.(?:toml|py))\n", self.text)
        return found[1] if found else None

    @property
    def commands(self) -> list[str]:
        """The commands of Catchment in it, without comments."""
        lines = re.sub(r"\\\n\s*", "", self.text).splitlines() if self.language == "" else []
        return [found[1].partition(" > ")[0].strip() for line in lines if (found := COMMAND.match(line))]


PAGES = {
    path.relative_to(ROOT).as_posix(): [Block(*found) for found in FENCED.findall(path.read_text(encoding="utf-8"))]
    for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")))
}
COMMANDS = {command for blocks in PAGES.values() for block in blocks for command in block.commands}
TOML = [(page, block.text) for page, blocks in PAGES.items() for block in blocks if block.language == "toml"]
PYTHON = {page for page, blocks in PAGES.items() for block in blocks if block.language == "python"}
STORIES = [page for page, blocks in PAGES.items() if page in PYTHON or any(block.commands for block in blocks)]


def here(command: str) -> bool:
    return not any(re.search(pattern, command) for pattern in ELSEWHERE)


def is_long(block: Block) -> bool:
    return any(map(LONG.search, (block.text, *block.commands)))


def outline(tree: ast.Module) -> bool:
    """Whether code only says what there is."""
    return all(isinstance(node, ast.ClassDef) for node in tree.body) and "...\n" in ast.unparse(tree) + "\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a reader would be, with what is there before a page begins."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine").mkdir()
    experiment = tomllib.loads(next(block.text for block in PAGES["README.md"] if block.file))
    experiment |= {"rounds": 1, "data": experiment["data"] | {"train": 96, "test": 40}}
    (tmp_path / "my.toml").write_text(tomli_w.dumps(experiment))
    return tmp_path


@pytest.fixture
def names() -> dict[str, Any]:
    """What a Python block finds: public names, and those that its page leaves to the reader."""
    images, labels = np.zeros((80, 1, 8, 8), dtype=np.uint8), np.arange(80) % 2
    return {
        **{name: getattr(catchment, name) for name in catchment.__all__},
        **{"catchment": catchment, "np": np, "torch": torch, "nn": torch.nn, "Tensor": torch.Tensor, "FedGKT": FedGKT},
        **{"images": torch.from_numpy(images), "labels": labels, "net": "resnet4", "half": "resnet10"},
        "dataset": catchment.Dataset.of(images[:60], labels[:60], images[60:], labels[60:]),
    }


def test_the_check_itself() -> None:
    text = "pip install x\ncatchment run a \\\n  --out b  # c\nfor k in 0; do catchment keys k;\nx -m catchment list\n"
    assert Block("", text).commands == ["run a --out b", "keys k", "list"]
    assert Block("python", text).commands == []
    assert Block("toml", "# a.toml\nseed = 1\n").file == "a.toml"
    assert len(COMMANDS) > 20
    assert len(STORIES) > 8


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_the_options_that_it_is_given(command: str) -> None:
    name, *arguments = shlex.split(re.sub(r"\$\w+|\$\(.*?\)", "0", command))
    get_command(app).commands[name].make_context(name, arguments)


@pytest.mark.parametrize("page", PAGES)
def test_every_command_that_the_text_names_has_these_options(page: str) -> None:
    text = FENCED.sub("", (ROOT / page).read_text(encoding="utf-8"))
    for name, rest in re.findall(r"`catchment ([a-z]+)\b([^`]*)`", text):
        there = {option for parameter in get_command(app).commands[name].params for option in parameter.opts}
        assert set(re.findall(r"--[\w-]+", rest)) <= there, name


@pytest.mark.parametrize(("page", "text"), TOML, ids=[page for page, _ in TOML])
def test_every_file_is_an_experiment_or_a_study(page: str, text: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples" / "own", tmp_path, dirs_exist_ok=True)
    for block in PAGES[page]:
        if block.language == "python" and block.file:
            (tmp_path / block.file).write_text(block.text)
    table = tomllib.loads(text)
    if table.keys() & {"row", "axes"}:
        (tmp_path / "study.toml").write_text(text)
        table = StudyFile.load(tmp_path / "study.toml").rows[0].settings
    catchment.Experiment.from_dict({"path": str(tmp_path)} | table)


@pytest.mark.parametrize("page", PAGES)
def test_json_is_json(page: str) -> None:
    for block in PAGES[page]:
        if block.language == "json":
            json.loads(block.text)


@pytest.mark.parametrize("page", STORIES)
def test_a_page_can_be_followed(page: str, folder: Path, names: dict[str, Any]) -> None:
    follow(page, folder, names, long=False)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in STORIES if any(map(is_long, PAGES[page]))])
def test_what_takes_minutes_can_be_followed_too(page: str, folder: Path, names: dict[str, Any]) -> None:
    follow(page, folder, names, long=True)


def follow(page: str, folder: Path, names: dict[str, Any], long: bool) -> None:
    """Do what a page says, in its order, with or without what takes minutes."""
    for block in PAGES[page]:
        if block.file and block.file != "my.toml":
            (folder / block.file).write_text(block.text)
        elif block.language == "python" and (long or not LONG.search(block.text)):
            python(block.text, names)
        for command in filter(here, block.commands):
            if long or not LONG.search(command):
                call(command, folder)


def call(command: str, folder: Path) -> None:
    name, *arguments = shlex.split(command)
    if name == "key":  # on another device than before
        for old in folder.glob("device.*"):
            old.unlink()
    if name == "join" and not (folder / "ca.crt").exists():  # what the owner of the server has sent
        assert CliRunner().invoke(app, ["keys", "keys", "--host", "fl.example.org"]).exit_code == 0
        for sent in ("ca.crt", "federation.pub"):
            shutil.copy(folder / "keys" / sent, folder)
    done = CliRunner().invoke(app, [name, *arguments])
    assert done.exit_code == 0, f"catchment {command}: {done.exception!r}\n{done.output}"


def python(text: str, names: dict[str, Any]) -> None:
    tree = ast.parse(text)
    if outline(tree):
        for node in tree.body:
            compare(node)
    elif "__main__" in text:
        Path("snippet.py").write_text(text)
        subprocess.run([sys.executable, "snippet.py"], check=True)
    elif text not in EXAMPLES:  # those have tests of their own
        exec(re.sub(r"rounds=\d+", "rounds=1", text), names)


def compare(outlined: ast.stmt) -> None:
    """What an outline of a public class says of it is so."""
    assert isinstance(outlined, ast.ClassDef)
    real = getattr(catchment, outlined.name)
    for node in outlined.body:
        if isinstance(node, ast.FunctionDef):
            said = [one.arg for one in (*node.args.args, *node.args.kwonlyargs)]
            assert list(inspect.signature(getattr(real, node.name)).parameters) == said
        else:
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]  # type: ignore[attr-defined]
            assert hasattr(real, target.id)  # type: ignore[union-attr]
