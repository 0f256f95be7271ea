"""Errors for people: one sentence that says what was given, what was expected, where, and the likely fix."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class CatchmentError(Exception):
    """Every error that Catchment raises on purpose; its text is meant for a person."""

    exit_code = 1


class UserError(CatchmentError):
    """Something the user wrote or named cannot be used as it is."""

    exit_code = 2


class ExperimentError(UserError, ValueError):
    """An experiment file or a `--set` value is wrong."""


class DataError(UserError):
    """A data set is missing, damaged, or does not fit the experiment."""


class ModelError(UserError):
    """A model is unknown, or two models do not fit together."""


class RunError(CatchmentError):
    """A run could not go on; what it had finished is kept and can be resumed."""


class Diverged(RunError):
    """Training produced a loss that is not a number."""


class WireError(CatchmentError):
    """Bytes that should be a message are not one."""


class ProtocolError(CatchmentError):
    """A method used the fleet, a client or a payload in a way that cannot work on every transport."""


def printable(text: object, most: int = 300) -> str:
    """A text from another machine as one short line, without control characters, for a terminal or a log."""
    line = "".join(c if c.isprintable() else " " for c in str(text)[: 4 * most])
    line = " ".join(line.split())
    return line if len(line) <= most else line[: most - 3] + "..."


@contextmanager
def needs(what: str, extra: str) -> Iterator[None]:
    """Around imports of optional packages: a missing one becomes an error that names the extra to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        package = {"PIL": "pillow", "sklearn": "scikit-learn", "torch": "PyTorch"}.get(package, package)
        raise UserError(f"{what} needs the package {package}: pip install 'catchment-fl[{extra}]'") from error
