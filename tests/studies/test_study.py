"""Studies as they run: what is missing is run once, whoever asks, and nothing is lost or mixed."""

import json
import threading

import pytest

from catchment.errors import ExperimentError
from catchment.studies import tables
from catchment.studies.study import Study

FILE = """
title = "Three methods"
seeds = [0, 1]
columns = ["accuracy", "difference", "bytes.up"]
reference = "FedAvg"

[experiment]
rounds = 2
workers = 1
data = { name = "digits", clients = 3, train = 120, test = 60 }
models.client = "mlp"

[[row]]
label = "FedAvg"

[[row]]
label = "FedProx"
experiment.method = { name = "fedprox", mu = 0.5 }
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(FILE)
    return path


def runs(folder):
    return sorted(path.name for path in (folder / "runs").iterdir() if path.is_dir())


def test_a_study_runs_every_row_with_every_seed(file, tmp_path):
    study = Study.load(file, out=tmp_path / "out")
    result = study.run()
    assert len(runs(tmp_path / "out")) == 4
    assert [(row["row"], row["seed"]) for row in result] == [
        ("FedAvg", 0),
        ("FedAvg", 1),
        ("FedProx", 0),
        ("FedProx", 1),
    ]
    assert json.loads(study.result_file.read_text())["title"] == "Three methods"
    assert "FedProx" in tables.markdown(result)


def test_what_is_there_is_not_run_again(file, tmp_path):
    first = Study.load(file, out=tmp_path / "out").run()
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "runs").glob("*/result.json")}
    again = Study.load(file, out=tmp_path / "out").run()
    assert times == {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "runs").glob("*/result.json")}
    assert again == first


def test_rows_that_are_equal_share_a_run_also_between_studies(file, tmp_path):
    Study.load(file, out=tmp_path / "out").run()
    other = tmp_path / "other.toml"
    other.write_text(FILE.replace('label = "FedProx"', 'label = "FedProx by another name"'))
    Study.load(other, out=tmp_path / "out").run()
    assert len(runs(tmp_path / "out")) == 4


def test_some_rows_and_seeds_can_be_chosen(file, tmp_path):
    result = Study.load(file, rows="*prox", seeds=[5], out=tmp_path / "out").run()
    assert [(row["row"], row["seed"]) for row in result] == [("FedProx", 5)]
    with pytest.raises(ExperimentError, match=r'no row of .* is like "gkt"; some rows: "FedAvg", "FedProx"'):
        Study.load(file, rows="gkt")


def test_wrong_settings_are_found_before_any_row_runs(file, tmp_path):
    file.write_text(FILE.replace("mu = 0.5", "mue = 0.5"))
    with pytest.raises(ExperimentError, match='row "FedProx"'):
        Study.load(file, out=tmp_path / "out").run()
    assert not (tmp_path / "out").exists()


def test_a_model_that_does_not_fit_is_found_before_any_row_runs(file, tmp_path):
    file.write_text(FILE.replace('{ name = "fedprox", mu = 0.5 }', '{ name = "fedgkt" }'))
    with pytest.raises(ExperimentError, match=r'row "FedProx": .*models.server'):
        Study.load(file, out=tmp_path / "out").run()
    assert not (tmp_path / "out" / "runs").exists()


def test_a_row_that_fails_says_why_and_the_others_go_on(file, tmp_path):
    file.write_text(FILE.replace("mu = 0.5 }", "mu = 0.5 }\nexperiment.optimizer.client = { name = 'sgd', lr = 1e30 }"))
    result = Study.load(file, out=tmp_path / "out").run()
    assert len(result.row("FedAvg").runs) == 2
    assert "loss" in result.row("FedProx").failed[0]


def test_rows_whose_data_are_missing_say_so_and_the_others_go_on(file, tmp_path, monkeypatch):
    monkeypatch.delenv("CATCHMENT_DATA", raising=False)
    file.write_text(FILE.replace("mu = 0.5 }", "mu = 0.5 }\nexperiment.data.name = 'cinic10'"))
    result = Study.load(file, out=tmp_path / "out").run()
    assert len(result.row("FedAvg").runs) == 2
    assert "cinic10" in result.row("FedProx").failed[1]


def test_a_changed_file_runs_what_changed_and_mixes_nothing(file, tmp_path):
    before = Study.load(file, out=tmp_path / "out").run()
    file.write_text(FILE.replace("mu = 0.5", "mu = 5.0"))
    after = Study.load(file, out=tmp_path / "out").run()
    assert after.row("FedAvg") == before.row("FedAvg")
    assert after.row("FedProx").runs[0].digest != before.row("FedProx").runs[0].digest
    assert len(runs(tmp_path / "out")) == 6


def test_a_run_that_another_holds_is_waited_for(file, tmp_path):
    study = Study.load(file, rows="FedAvg", seeds=[0], out=tmp_path / "out")
    (job,) = study.jobs()
    held = study.folder.claim(job)
    results = []
    waiting = threading.Thread(target=lambda: results.append(study.run()))
    waiting.start()
    waiting.join(0.2)
    assert not results
    assert not study.folder.finished(job)
    held.close()
    waiting.join(60)
    assert len(results[0].row("FedAvg").runs) == 1


def test_the_digest_knows_defaults_code_and_seed_but_not_where_and_how(file, tmp_path):
    jobs = Study.load(file, out=tmp_path / "out").jobs()
    assert len({job.digest for job in jobs}) == 4
    explicit = FILE.replace('label = "FedAvg"', 'label = "FedAvg"\nexperiment.method.client_epochs = 1')
    file.write_text(explicit.replace("workers = 1", "workers = 2"))
    assert Study.load(file, out=tmp_path / "elsewhere").jobs()[0].digest == jobs[0].digest
    own = tmp_path / "code_of_a_row.py"  # a name of its own: other tests import modules beside other files
    own.write_text("from catchment.methods.fedavg import FedAvg as Mine\n")
    file.write_text(FILE.replace('label = "FedAvg"', 'label = "FedAvg"\nexperiment.method.name = "code_of_a_row:Mine"'))
    before = Study.load(file).jobs()[0].digest
    own.write_text("from catchment.methods.fedavg import FedAvg as Mine  # changed\n")
    assert Study.load(file).jobs()[0].digest != before
