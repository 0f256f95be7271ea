"""First contact: lists, explanations, skeletons, help and completion."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from catchment import models
from catchment.cli import describing
from catchment.cli.app import COMMANDS, app
from catchment.cli.describing import options
from catchment.cli.names import find, index, kinds
from catchment.methods import METHODS
from catchment.methods.fedgkt import FedGKT
from catchment.methods.fedprox import FedProx
from catchment.names import resolve
from catchment.simulation.devices import DeviceProfile


@pytest.fixture
def call(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


def test_the_file_of_names_says_what_the_code_says():
    assert index() == describing.index(), "write it again: python benchmarks/names.py"


def test_to_show_names_and_help_nothing_that_learns_is_imported():
    code = (
        "import sys\nfrom catchment.cli import main\n"
        "for words in (['--help'], ['list'], ['list', 'models'], ['show', 'fedgkt'], ['version']):\n"
        "    sys.argv = ['catchment', *words]\n"
        "    try:\n        main()\n    except SystemExit as end:\n        assert not end.code, words\n"
        "heavy = {'torch', 'numpy', 'sklearn', 'matplotlib', 'flwr', 'pydantic'}\n"
        "heavy |= {'safetensors', 'cryptography', 'starlette'}\n"
        "print('IMPORTED', sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Usage:" in done.stdout
    assert done.stdout.splitlines()[-1] == "IMPORTED []"


@pytest.mark.parametrize("kind", kinds())
def test_every_name_has_a_line(kind, call):
    done = call("list", kind)
    assert done.exit_code == 0
    lines = [line.split() for line in done.output.splitlines()]
    lengths = {words[0]: len(words) for words in lines if words}
    assert all(lengths[name] > 1 for name in kinds()[kind]["names"])


@pytest.mark.parametrize("name", METHODS)
def test_every_option_of_a_method_is_shown_with_its_default(name, call):
    kind = resolve("method", name, METHODS)
    done = call("show", name)
    assert done.exit_code == 0, done.output
    for option in options(kind):
        assert f" {option.name} " in done.output


def test_every_option_has_a_meaning():
    for kind in kinds().values():
        for name, known in kind["names"].items():
            assert all(meaning for *_, meaning in known.get("options", ())), name
    assert all(option.meaning for option in options(DeviceProfile))


def test_letters_in_the_name_of_a_model_have_a_meaning():
    for name in models.FORMS.keys() - {"kgf(model)"}:
        letters = name.partition("(")[2].rstrip(")").split(",")
        assert all(re.search(rf"\b{letter}\b", models.FORMS[name]) for letter in letters), name


def test_the_meaning_of_an_option_is_the_docstring_below_it():
    found = {option.name: option for option in options(FedGKT)}
    assert found["alpha"] == (
        "alpha",
        "number, at least 0",
        "1.0",
        "The weight of the distillation terms, each T^2 KL.",
    )
    assert {option.name: option.default for option in options(FedProx)} == {"client_epochs": "1", "mu": "0.01"}


def test_other_names_are_shown_too(call):
    assert "One byte per number." in call("show", "int8").output
    assert "MACs per second" in call("show", "phone").output
    assert "11,173,962" in call("show", "resnet18").output
    assert "Options of fedgkt" in call("show", "FedGKT").output
    assert "9,714 parameters" in call("show", "resnet8(8,2)").output
    assert [*find("cronus")] == ["methods", "aggregators"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("show", "fedgtk"), "fedgkt"), (("show", "resnet8(x)"), "resnet8"), (("list", "modles"), "models")],
)
def test_a_misspelt_name_is_a_sentence(arguments, words, call):
    error = call(*arguments).exception
    assert f'did you mean "{words}"?' in str(error)


@pytest.mark.parametrize("name", [*COMMANDS, "version"])
def test_every_help_has_an_example_and_the_list_says_what_it_says(name, call):
    done = call(name, "--help")
    assert f" catchment {name}" in done.output.partition("Examples:")[2]
    [purpose] = re.findall(rf"│ {name} +(\S.*\S) +│", call("--help").output)
    assert purpose in " ".join(done.output.split())


def test_the_first_help_has_one_too(call):
    assert " catchment run mine.toml" in call("--help").output


def test_a_shell_can_complete_names(call):
    asked = {"_CATCHMENT_COMPLETE": "complete_bash", "COMP_WORDS": "catchment show fedgk", "COMP_CWORD": "2"}
    done = CliRunner().invoke(app, [], env=asked, prog_name="catchment")
    assert done.output.split() == ["fedgkt"]


def test_skeletons_pass_their_own_tests(call, tmp_path):
    for kind in ("method", "experiment", "study"):
        done = call("new", kind, f"my_{kind}", "--out", str(tmp_path))
        assert done.exit_code == 0, done.output
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout


def test_a_skeleton_replaces_nothing(call, tmp_path):
    (tmp_path / "mine.toml").write_text("mine")
    assert "is there already" in str(call("new", "study", "mine", "--out", str(tmp_path)).exception)
    assert (tmp_path / "mine.toml").read_text() == "mine"
    assert not (tmp_path / "test_mine.py").exists()
    assert "small letters" in str(call("new", "method", "My-Idea").exception)
    assert "is a file" in str(call("new", "study", "other", "--out", str(tmp_path / "mine.toml")).exception)


def test_a_method_hides_no_module(call, tmp_path):
    for name in ("torch", "json", "class"):
        error = str(call("new", "method", name, "--out", str(tmp_path)).exception)
        assert f"{name}.py would hide a module" in error
    assert call("new", "study", "torch", "--out", str(tmp_path)).exit_code == 0  # is imported by nobody
