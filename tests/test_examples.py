"""The examples run, and are as short as the documentation says."""

from __future__ import annotations

from pathlib import Path

import catchment

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_a_method_a_model_and_a_data_set_of_ones_own():
    assert len([line for line in (EXAMPLES / "own" / "own.py").read_text().splitlines() if line.strip()]) < 30
    assert len((EXAMPLES / "own" / "own.toml").read_text().splitlines()) == 3
    result = catchment.run(catchment.Experiment.load(EXAMPLES / "own" / "own.toml", {"workers": 1}))
    assert result["accuracy"] > 0.75


def test_the_demo_experiments_can_run():
    demo = Path(__file__).parents[1] / "experiments" / "demo"
    files = sorted(demo.glob("*.toml"))
    assert len(files) >= 3
    for file in files:
        catchment.Experiment.load(file).build_world()
