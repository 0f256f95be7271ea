"""The list of the papers' tables and figures, and what says which of them are not measured."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from catchment.studies.file import StudyFile
from catchment.studies.results import RowResult, RunResult, StudyResult

ROOT = Path(__file__).parents[2]
ROMAN = {"I": 1, "II": 2, "III": 3, "IV": 4, "V": 5}
IN_PAPERS = {  # tables and figures, as their captions number them
    "fedgkt": (12, 7),
    "fedgems": (13, 7),
    "fedkgf": (4, 8),
    "fedzkt": (5, 7),
}


@pytest.fixture
def missing(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    return importlib.import_module("missing")


def test_every_table_and_figure_of_every_paper_is_there_once(missing):
    papers, _ = missing.papers()
    found = {
        paper: Counter((word, ROMAN.get(number) or int(number)) for word, number in map(str.split, settings["items"]))
        for paper, settings in papers.items()
    }
    assert found == {
        paper: Counter([("Table", n + 1) for n in range(tables)] + [("Figure", n + 1) for n in range(figures)])
        for paper, (tables, figures) in IN_PAPERS.items()
    }
    assert [sum(counts) for counts in zip(*IN_PAPERS.values())] == [34, 29]


def test_results_name_studies_and_rows_that_exist(missing):
    papers, absent = missing.papers()
    labels = set()
    for paper, settings in papers.items():
        assert (ROOT / settings["page"]).exists()
        for item, facts in settings["items"].items():
            assert facts["kind"] in missing.KINDS, (paper, item)
            assert (facts["kind"] == "result") == bool(facts.get("measured")), (paper, item)
            for measured in map(missing.Measured.of, facts.get("measured", ())):
                if measured.name not in missing.studies():
                    assert (ROOT / "benchmarks" / f"{measured.name}.py").exists(), (paper, item)
                    continue
                path, scale = missing.studies()[measured.name]
                rows = [row.label for row in StudyFile.load(path, scale).rows]
                assert any(fnmatchcase(label, measured.rows) for label in rows), (paper, item)
                labels |= set(rows)
    assert all(any(fnmatchcase(label, pattern) for label in labels) for pattern in absent)


STUDY = """
name = "few"
title = "A study of few rows"
seeds = [0, 1, 2]
row = [{ label = "a" }, { label = "b" }, { label = "c, not here" }, { label = "d" }]
experiment.data.name = "digits"
"""


def test_what_is_missing_is_said(missing, tmp_path):
    for folder in ("experiments/results", "benchmarks/results", "docs"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "experiments" / "few.toml").write_text(STUDY)
    (tmp_path / "experiments" / "papers.toml").write_text(
        'absent = ["*not here"]\n[p]\npage = "docs/p.md"\n[p.items]\n'
        '"Table 1" = { kind = "result", measured = ["few"] }\n'
        '"Table 2" = { kind = "setting" }\n'
        '"Figure 1" = { kind = "result", measured = ["counted", "few; rows: a"] }\n'
    )
    (tmp_path / "docs" / "p.md").write_text("## Table 10: other\n\n### Figure 1: counts\n")
    assert list(missing.missing(tmp_path)) == [
        "p, Table 1: docs/p.md has no heading that begins with it",
        "p, Table 1: experiments/results/few.json is not there",
        "p, Figure 1: benchmarks/results/counted.json is not there",
        "p, Figure 1: experiments/results/few.json is not there",
    ]

    (tmp_path / "docs" / "p.md").write_text("## Table 1: accuracy\n\n### Figure 1: counts\n")
    (tmp_path / "benchmarks" / "results" / "counted.json").write_text("{}")
    rows = [RowResult(label, runs=[RunResult(seed, "d", {}, []) for seed in range(count)])
            for label, count in (("a", 3), ("b", 1), ("d", 0))]  # fmt: skip
    StudyResult("few", "paper", "A study", (0, 1, 2), ("accuracy",), rows).write(
        tmp_path / "experiments" / "results" / "few.json"
    )
    assert list(missing.missing(tmp_path)) == [
        "p, Table 1: few.json: 1 of 3 rows were not run: d",
        "p, Table 1: few.json: not all seeds of [0, 1, 2]: b",
    ]


def test_captions_of_the_list_are_short(missing):
    shown = [facts["shows"] for settings in missing.papers()[0].values() for facts in settings["items"].values()]
    assert all(re.fullmatch(r"[^.]{3,70}", text) for text in shown)
