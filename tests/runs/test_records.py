"""What runs write is what their records say, to the byte."""

import dataclasses
import json
from pathlib import Path

import pytest
from worlds import TROUBLE, experiment

import catchment
from catchment.reading import read_json
from catchment.runs import records
from catchment.runs.journal import to_dict
from catchment.runs.records import LedgerRound, Result, Round


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("fedavg, lied to", {}),
        ("splitfed, label-flip", TROUBLE),
        ("standalone", {}),
        ("fedgkt", {"probe": {"inversion": True, "images": 20, "attacked": 10, "epochs": 1}}),
        ("fedgems", {}),
    ],
)
def test_files_are_their_records(name, more, tmp_path):
    observed = []
    result = catchment.run(experiment(name, **more), tmp_path, observe=observed.append)
    written = (tmp_path / "result.json").read_text()
    assert json.loads(written) == result
    assert json.dumps(to_dict(read_json(Result, written, "result")), indent=2) + "\n" == written
    for file, kind in (("rounds.jsonl", Round), ("ledger.jsonl", LedgerRound)):
        lines = (tmp_path / file).read_text().splitlines()
        assert len(lines) == 3
        for line in lines:
            assert json.dumps(to_dict(read_json(kind, line, file))) == line
    assert [json.dumps(record) for record in observed] == (tmp_path / "rounds.jsonl").read_text().splitlines()


def test_what_was_not_measured_is_not_in_a_round(tmp_path):
    catchment.run(experiment("fedavg", rounds=2, evaluation={"every": 2}), tmp_path)
    first, second = map(json.loads, (tmp_path / "rounds.jsonl").read_text().splitlines())
    assert list(first) == ["round", "bytes", "seconds", "spent", "virtual_seconds", "events"]
    measured = ["accuracy", "scores", "recall", "confusion", "server", "clients"]
    assert list(second) == ["round", *measured, *list(first)[1:]]


def test_the_page_names_every_field():
    page = (Path(__file__).parents[2] / "docs" / "runs.md").read_text()
    kinds = [kind for kind in vars(records).values() if dataclasses.is_dataclass(kind)]
    read_only = (
        records.Plan,
        records.DataNamed,
        records.EvaluationNamed,
        records.Named,
    )  # of the experiment's own page
    fields = {field.name for kind in kinds if kind not in read_only for field in dataclasses.fields(kind)}
    beside = {"others", "settings"}  # whose keys stand in the file in place of them
    assert {field for field in fields - beside if f"`{field}`" not in page} == set()
    assert {word for word in (*records.TROUBLES, *records.NEWS) if f"`{word}`" not in page} == set()
