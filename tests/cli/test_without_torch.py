"""What the command does where PyTorch is not installed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

WITHOUT = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, Hidden())
from catchment.cli import main
sys.argv[0] = "catchment"
main()
"""


def catchment(folder, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT, *arguments],
        cwd=folder, env={**os.environ, "COLUMNS": "200"}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [["list"], ["list", "methods"], ["show", "fedgkt"], ["key", "device.key"], ["report", "--help"], ["--help"]],
    ids=" ".join,
)
def test_a_command_that_needs_no_pytorch_works(tmp_path, arguments):
    done = catchment(tmp_path, *arguments)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("command", "extra"), [("run", "research"), ("server", "server")])
def test_a_command_that_needs_it_says_so_in_one_sentence(tmp_path, command, extra):
    done = catchment(tmp_path, command, "x.toml")
    said = " ".join(done.stderr.split())
    assert done.returncode == 2
    assert said == f"error: catchment {command} needs the package PyTorch: pip install 'catchment-fl[{extra}]'"
