"""The command line. Bad input ends in one sentence and exit code 2, a failed run in exit code 1, Ctrl-C in 130."""

from __future__ import annotations

import os
import sys

from catchment import process
from catchment.errors import CatchmentError


def main() -> None:
    """Entry point of the `catchment` command; what it writes, and what it starts writes, is for its owner alone."""
    process.set_up()  # before the commands import PyTorch
    from catchment.cli.app import app
    from catchment.cli.output import fail

    before = os.umask(0o077)
    try:
        app()
    except CatchmentError as error:
        fail(str(error))
        sys.exit(error.exit_code)
    except OSError as error:  # a full disk, a file that may not be written
        where = "" if error.filename is None else f"{error.filename}: "
        fail(f"{where}{error.strerror or error}")
        sys.exit(1)
    finally:
        os.umask(before)
