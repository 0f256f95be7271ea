"""The pages of results are as the committed results have them."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from catchment import Study
from catchment.studies.results import RowResult, RunResult, StudyResult

ROOT = Path(__file__).parents[2]


@pytest.fixture
def pages(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("pages")


def row(label, *accuracies, results=1):
    runs = [RunResult(seed, "d", {"accuracy": value}, [], results) for seed, value in enumerate(accuracies)]
    return RowResult(label, None, {}, runs)


def study(*rows, **settings):
    return StudyResult("s", "small", "A study", (0, 1), ("accuracy",), list(rows), **settings)


def test_no_page_and_no_picture_is_behind_its_results(pages):
    assert [path.relative_to(ROOT).as_posix() for path, _ in pages.behind()] == []


def test_every_committed_result_of_a_study_stands_in_a_page(pages):
    names = {match[2] for page in ROOT.glob("docs/**/*.md") for match in pages.PLACE.finditer(page.read_text())}
    names |= {match[2] for match in pages.PLACE.finditer((ROOT / "README.md").read_text())}
    assert {path.stem for path in (ROOT / "experiments" / "results").glob("*.json")} - names == set()


def test_a_table_has_the_rows_that_were_run_and_says_where_they_are_from(pages):
    result = study(
        row("IID, a", 0.5, 0.52), row("IID, b", 0.4, results=2), row("IID, c"), row("other", 0.1), note="Few."
    )
    assert pages.study_table(result, "IID, *").splitlines() == [
        "|  | accuracy, % |",
        "| --- | ---: |",
        "| a | 51.0 ± 1.4 |",
        "| b | 40.0 |",
        "",
        "Few. Scale small; mean and standard deviation over 2 seeds, one seed where no ± stands; "
        "version 1 and 2 of results.",
    ]


def test_differences_are_paired_by_seed(pages):
    result = study(row("x, a", 0.50, 0.52), row("x, b", 0.40, 0.44), row("x, c", 0.4))
    lines = pages.differences(result, "x, ", [("accuracy", "a", "b")]).splitlines()
    assert lines[2:] == ["| accuracy: a over b | +9.0 | -3.7 to +21.7 | no |"]  # 12.7062 * 1.4142 / sqrt(2)
    with pytest.raises(ValueError, match="x, a and x, c"):
        pages.differences(result, "x, ", [("accuracy", "a", "c")])


def test_what_another_script_makes_is_left_alone(pages):
    text = "<!-- somebody -->\nelse\n<!-- /somebody -->"
    assert pages.made(text) == text


@pytest.mark.parametrize("scale", ["paper", "small"])
def test_the_study_of_the_docs_is_one(scale, tmp_path):
    block = re.search(r"```toml\n(.*?)```", (ROOT / "docs" / "studies.md").read_text(), re.DOTALL)
    (tmp_path / "partitions.toml").write_text(block[1])
    study = Study.load(tmp_path / "partitions.toml", scale=scale)
    assert len(study.jobs()) == 12
    assert [row.label for row in study.file.rows] == [
        "FedAvg, IID", "FedAvg, Dirichlet(0.1)", "FedProx, Dirichlet(0.1)", "each client alone",
    ]  # fmt: skip
