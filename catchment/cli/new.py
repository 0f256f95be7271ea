"""The command that writes a working beginning: a method, an experiment or a study of one's own, with its test."""

from __future__ import annotations

import keyword
import re
import sys
from enum import StrEnum
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Annotated

import typer

from catchment.cli.output import say
from catchment.cli.schema import text_of
from catchment.errors import UserError
from catchment.files import write_atomically

SKELETONS = Path(__file__).with_name("skeletons")


class Kind(StrEnum):
    """What can be begun."""

    method = "method"
    experiment = "experiment"
    study = "study"


FILES = {
    Kind.method: {"{}.py": "method.py.txt", "{}.toml": "method.toml", "test_{}.py": "test_method.py.txt"},
    Kind.experiment: {"{}.toml": "experiment.toml", "test_{}.py": "test_experiment.py.txt"},
    Kind.study: {"{}.toml": "study.toml", "test_{}.py": "test_study.py.txt"},
}
FORMS = {Kind.method: "experiment", Kind.experiment: "experiment", Kind.study: "study"}
NEXT = {
    Kind.method: "catchment run {}.toml",
    Kind.experiment: "catchment plan {}.toml",
    Kind.study: "catchment study {}.toml --scale small",
}


def new(
    kind: Annotated[Kind, typer.Argument(help="What to begin.")],
    name: Annotated[str, typer.Argument(help="Its name: letters, digits and underscores.")],
    out: Annotated[Path, typer.Option(help="The folder for its files.")] = Path("."),
) -> None:
    """Write a method, an experiment or a study that works, with a test, to begin from."""
    if not re.fullmatch("[a-z][a-z0-9_]*", name):
        raise UserError(f'the name is "{name}"; small letters, digits and underscores are expected, such as my_method')
    if kind is Kind.method and _is_taken(name):
        raise UserError(
            f'{name}.py would hide a module that is called so, or "{name}" is a word of Python; choose another'
        )
    if out.is_file():
        raise UserError(f"{out} is a file; --out is the folder for the new files")
    words = {"NAME": name, "CLASS": "".join(word.capitalize() for word in name.split("_"))}
    paths = {out / pattern.format(name): SKELETONS / source for pattern, source in FILES[kind].items()}
    if there := [path for path in paths if path.exists()]:
        raise UserError(f"{there[0]} is there already; choose another name or folder")
    out.mkdir(parents=True, exist_ok=True)
    for path, source in paths.items():
        text = re.sub("NAME|CLASS", lambda found: words[found[0]], source.read_text(encoding="utf-8"))
        write_atomically(path, text.encode())
        say(str(path))
    form = out / f"{FORMS[kind]}.schema.json"  # which the first line of the file names, for editors
    write_atomically(form, text_of(FORMS[kind]).encode())
    say(str(form))
    say(f"Now: {NEXT[kind].format(out / name)}, and: pytest {out / f'test_{name}.py'}")


def _is_taken(name: str) -> bool:
    """Whether a module of Python or of an installed package has this name, or it cannot be imported."""
    return keyword.iskeyword(name) or name in sys.stdlib_module_names or name in packages_distributions()
