"""The notebook in examples/ runs from its first cell to its last."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import catchment

pytestmark = pytest.mark.docs
NOTEBOOK = Path(catchment.__file__).parents[1] / "examples" / "first_steps.ipynb"


def test_every_cell_runs(tmp_path):
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(code) > 4
    assert not any(cell.get("outputs") for cell in cells)  # outputs grow old
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(code)], capture_output=True, text=True, cwd=tmp_path, timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(NOTEBOOK.parents[1])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "leaves the devices: features" in done.stdout
