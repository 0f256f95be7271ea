"""The examples run, and are as short as the documentation says."""

from __future__ import annotations

from pathlib import Path

import catchment

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_a_method_a_model_and_a_data_set_of_ones_own():
    source = (EXAMPLES / "own" / "own.py").read_text()
    assert len([line for line in source.splitlines() if line.strip()]) < 42
    assert "from catchment import" in source
    assert "from catchment." not in source  # public names alone
    readme = (EXAMPLES.parent / "README.md").read_text()
    assert readme.partition("```python\n@dataclass")[2].partition("```")[0] in source
    assert len((EXAMPLES / "own" / "own.toml").read_text().splitlines()) == 3
    result = catchment.run(catchment.Experiment.load(EXAMPLES / "own" / "own.toml", {"workers": 1}))
    assert result["accuracy"] > 0.75


def test_a_codec_of_ones_own():
    file = EXAMPLES / "own" / "ternary.toml"
    plain = catchment.run(catchment.Experiment.load(file, {"workers": 1, "wire.codecs": []}))
    coded = catchment.run(catchment.Experiment.load(file, {"workers": 1}))
    assert coded["bytes"]["up"] < plain["bytes"]["up"] / 7
    assert coded["bytes"]["down"] == plain["bytes"]["down"]
    assert coded["accuracy"] > 0.9
    page = (EXAMPLES.parent / "docs" / "codecs.md").read_text()
    shown = page.split("```python\n")[1].split("```")[0]
    assert shown in (EXAMPLES / "own" / "ternary.py").read_text()
