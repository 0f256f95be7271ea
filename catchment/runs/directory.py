"""The directory of a run: how it begins, and which version of Catchment may go on with it."""

from __future__ import annotations

import re
from pathlib import Path

from catchment.config.code import own_code
from catchment.config.experiment import Experiment
from catchment.config.toml import read_file
from catchment.errors import UserError, printable
from catchment.files import FileLock, private_directory, write_atomically
from catchment.version import __version__

EXPERIMENT, ROUNDS, LEDGER, RESULT = "experiment.toml", "rounds.jsonl", "ledger.jsonl", "result.json"
_WRITTEN_BY = "# Written by Catchment "  # and a version, in the first line of experiment.toml
_SILENT = "0.1.0"  # whose runs have no such line


def begin(experiment: Experiment, directory: Path) -> Path:
    """Make the directory of a run, which must not hold one yet."""
    try:
        private_directory(directory)
    except OSError as error:
        raise UserError(f"{directory} cannot be made: {error.strerror}") from None
    with FileLock(directory, "running it"):  # of two that begin at once, one writes
        if (directory / EXPERIMENT).exists():
            raise UserError(f"{directory} already holds a run; resume it, or choose another --out")
        write_atomically(directory / EXPERIMENT, f"{_WRITTEN_BY}{__version__}\n{experiment.to_toml()}".encode())
    return directory


def load_experiment(directory: Path, *, trust: bool = True) -> Experiment:
    """The experiment of a run that this version can go on with; a run of another version is refused.

    Whoever goes on with a run trusts it. Without `trust` nothing is imported that lies beside it, and a run that names
    code of its own is refused.
    """
    path = directory / EXPERIMENT
    if not path.exists():
        raise UserError(f"{directory} holds no run to resume (it has no {EXPERIMENT})")
    written_by = _written_by(path)
    if written_by is None or _minor(written_by) != _minor(__version__):
        version = written_by or _SILENT
        raise UserError(
            f"{directory} was written by Catchment {version}, whose runs this version cannot go on with; it is left "
            f"untouched: use Catchment {version} for it, or start over in another directory"
        )
    if trust:
        return Experiment.load(path)
    if code := code_of(directory):
        raise UserError(
            f"{path} names code of its own ({', '.join(code)}), which would run here; if you trust whoever wrote it, "
            "say so: --trust (in Python: trust=True)"
        )
    return Experiment.from_dict({key: value for key, value in read_file(path).items() if key != "path"})


def code_of(directory: Path) -> list[str]:
    """The code that the experiment of a run names, such as `own:Method`; nothing is imported."""
    return list(dict.fromkeys(printable(name) for _, name in own_code(read_file(directory / EXPERIMENT))))


def _written_by(path: Path) -> str | None:
    """The version that began a run; None if it does not say so."""
    first, *_ = path.read_text(encoding="utf-8", errors="replace").splitlines() or [""]
    found = re.fullmatch(re.escape(_WRITTEN_BY) + r"(\S+)", first)
    return found and found[1]


def _minor(version: str) -> list[str]:
    """Major and minor version: what runs have in common that can be resumed."""
    return version.split(".")[:2]
