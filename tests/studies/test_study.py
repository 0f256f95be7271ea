"""Studies as they run: what is missing is run once, whoever asks, and nothing is lost or mixed."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from catchment.errors import ExperimentError, RunError, UserError
from catchment.runs.directory import begin
from catchment.studies import tables
from catchment.studies.results import StudyResult
from catchment.studies.study import Study
from catchment.studies.work import work

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


def test_what_a_result_file_has_is_not_run_again(file, tmp_path):
    study = Study.load(file, rows="FedAvg", out=tmp_path / "out")
    first = study.run()
    for place in (tmp_path / "out", study.result_file):
        again = Study.load(file, rows="FedAvg", out=tmp_path / "elsewhere", known=place).run()
        assert list(again) == list(first)
    assert not runs(tmp_path / "elsewhere")
    Study.load(file, seeds=1, out=tmp_path / "elsewhere", known=tmp_path / "out").run()
    assert len(runs(tmp_path / "elsewhere")) == 1  # the other row


def test_a_known_run_with_another_headline_is_run_for_its_curve(file, tmp_path):
    Study.load(file, rows="FedAvg", seeds=1, out=tmp_path / "out").run()
    file.write_text(FILE.replace("rounds = 2", 'rounds = 2\nevaluation.headline = "macro_f1"'))
    Study.load(file, rows="FedAvg", seeds=1, out=tmp_path / "elsewhere", known=tmp_path / "out").run()
    assert runs(tmp_path / "elsewhere") == runs(tmp_path / "out")


@pytest.mark.parametrize(("name", "sentence"), [("", "has no results of studies"), ("x.json", "cannot be read")])
def test_a_place_without_known_results_is_refused(file, tmp_path, name, sentence):
    with pytest.raises(UserError, match=sentence):
        Study.load(file, known=tmp_path / name)


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


def test_results_on_the_disk_keep_the_rows_that_were_not_chosen(file, tmp_path):
    Study.load(file, out=tmp_path / "out").run()
    study = Study.load(file, rows="*prox", seeds=[5], out=tmp_path / "out")
    study.run()
    kept = StudyResult.read(study.result_file)
    assert [(row["row"], row["seed"]) for row in kept] == [
        ("FedAvg", 0), ("FedAvg", 1), ("FedProx", 0), ("FedProx", 1), ("FedProx", 5),
    ]  # fmt: skip


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


def test_rows_of_methods_that_measure_different_things_are_one_table(file, tmp_path):
    gkt = '{ name = "fedgkt" }\nexperiment.models = { client = "cnn", server = "resnet10" }'
    text = FILE.replace('"bytes.up"]', '"edge_accuracy"]').replace('{ name = "fedprox", mu = 0.5 }', gkt)
    file.write_text(text.replace("rounds = 2", "rounds = 1"))
    result = Study.load(file, seeds=1, out=tmp_path / "out").run()
    assert not any(row.failed for row in result.rows)
    assert tables.markdown(result).splitlines()[2].endswith("| \N{EN DASH} |")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"seeds": 0}, "seeds is an empty list"),
        ({"seeds": [1, 1]}, "seeds has 1 2 times"),
        ({"trackers": ["tensorbord"]}, 'unknown tracker "tensorbord"; did you mean "tensorboard"?'),
    ],
)
def test_wrong_choices_are_found_at_once(file, options, sentence):
    with pytest.raises(ExperimentError, match=re.escape(sentence)):
        Study.load(file, **options)


def test_a_misspelt_column_is_found_before_any_row_runs(file):
    file.write_text(FILE.replace('"accuracy", ', '"acuracy", '))
    with pytest.raises(ExperimentError, match='unknown column "acuracy"; did you mean "accuracy"'):
        Study.load(file)


@pytest.mark.parametrize("jobs", [0, -1])
def test_there_is_at_least_one_process(file, tmp_path, jobs):
    with pytest.raises(UserError, match=f"jobs is {jobs}; at least 1"):
        Study.load(file, out=tmp_path / "out").run(jobs)


def test_a_label_with_brackets_can_be_chosen(file):
    file.write_text(FILE.replace('label = "FedProx"', 'label = "FedProx [0.5]"'))
    (row,) = Study.load(file, rows="fedprox [0.5]").file.rows
    assert row.label == "FedProx [0.5]"


def test_an_error_of_a_row_of_ones_own_code_stops_no_other(file, tmp_path):
    own = "from catchment.methods.fedavg import FedAvg\n\n\nclass Broken(FedAvg):\n    def evaluate(self, *_):\n"
    (tmp_path / "broken_row.py").write_text(own + "        raise ZeroDivisionError('no samples')\n")
    file.write_text(FILE.replace('label = "FedAvg"', 'label = "FedAvg"\nexperiment.method.name = "broken_row:Broken"'))
    result = Study.load(file, seeds=1, out=tmp_path / "out").run()
    assert result.row("FedAvg").failed == {0: "ZeroDivisionError: no samples (broken_row.py, line 6)"}
    assert len(result.row("FedProx").runs) == 1


def test_code_that_was_changed_since_the_study_began_is_not_mixed_with_it(file, tmp_path):
    own = tmp_path / "code_that_changes.py"
    own.write_text("from catchment.methods.fedavg import FedAvg as Mine\n")
    file.write_text(
        FILE.replace('label = "FedAvg"', 'label = "FedAvg"\nexperiment.method.name = "code_that_changes:Mine"')
    )
    study = Study.load(file, rows="FedAvg", seeds=1, out=tmp_path / "out")
    jobs = study.jobs()
    own.write_text("from catchment.methods.fedprox import FedProx as Mine\n")
    work(study.folder, jobs)
    assert "was changed while the study was running" in study.folder.failure(jobs[0])


def test_a_damaged_result_fails_its_run_alone_and_says_what_to_delete(file, tmp_path):
    study = Study.load(file, out=tmp_path / "out")
    study.run()
    directory = study.folder.directory(study.jobs()[0])
    (directory / "result.json").write_text("{")
    result = study.run()
    assert [run.seed for run in result.row("FedAvg").runs] == [1]
    assert result.row("FedAvg").failed[0].endswith(f"; delete {directory} to run it again")
    shutil.rmtree(directory)
    assert len(study.run().row("FedAvg").runs) == 2


def test_results_that_cannot_be_written_in_between_fail_no_run(file, tmp_path, monkeypatch):
    study = Study.load(file, seeds=1, out=tmp_path / "out")
    writes = []

    def fail_once(self, result):
        writes.append(result)
        if len(writes) == 2:
            raise RunError("the disk is full")

    monkeypatch.setattr(Study, "write", fail_once)
    assert not any(row.failed for row in study.run().rows)


def test_two_processes_write_the_results_one_after_the_other(file, tmp_path):
    study = Study.load(file, seeds=1, out=tmp_path / "out")
    result = study.result()
    with study.folder.writing(study.result_file.name):
        writing = threading.Thread(target=study.write, args=(result,))
        writing.start()
        writing.join(1.0)
        assert not study.result_file.exists()
    writing.join(60)
    assert study.result_file.exists()


def test_a_run_is_resumed_with_data_that_were_moved(file, tmp_path, monkeypatch):
    study = Study.load(file, rows="FedAvg", seeds=1, out=tmp_path / "out")
    (job,) = study.jobs()
    begin(replace(job.experiment, data=replace(job.experiment.data, name="cinic10")), study.folder.directory(job))
    assert not study.run().row("FedAvg").failed


@pytest.mark.parametrize("victim", ["one process", pytest.param("the command", marks=pytest.mark.slow)])
def test_a_process_of_several_can_be_killed(file, tmp_path, victim):
    file.write_text(FILE.replace("rounds = 2", "rounds = 60"))
    command = [sys.executable, "-m", "catchment", "study", str(file), "--out", str(tmp_path / "out"), "--jobs", "2"]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def done():
        return sum(path.read_bytes().count(b"\n") for path in (tmp_path / "out").glob("runs/*/rounds.jsonl"))

    while done() < 5:
        assert parent.poll() is None
        time.sleep(0.05)
    if victim == "the command":
        parent.kill()
        parent.communicate(timeout=60)  # its processes have the same pipe: it closes when they have ended
        assert done() < 240
    else:
        tasks = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        workers = [int(task) for task in tasks if b"spawn_main" in Path(f"/proc/{task}/cmdline").read_bytes()]
        os.kill(workers[0], signal.SIGKILL)
        assert b"FedProx" in parent.communicate(timeout=300)[0]
        assert parent.returncode == 0


def test_ctrl_c_stops_all_processes_with_one_sentence(file, tmp_path):
    file.write_text(FILE.replace("rounds = 2", "rounds = 2000"))
    command = [sys.executable, "-m", "catchment", "study", str(file), "--out", str(tmp_path / "out"), "--jobs", "2"]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    while not list((tmp_path / "out").glob("runs/*/rounds.jsonl")):
        assert parent.poll() is None
        time.sleep(0.05)
    os.killpg(parent.pid, signal.SIGINT)
    said, _ = parent.communicate(timeout=60)
    assert parent.returncode == 130
    assert len(said.splitlines()) == 1


def test_the_digest_knows_modules_that_own_code_imports(file, tmp_path):
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "__init__.py").write_text("from .method import Mine\n")
    (tmp_path / "own_package" / "method.py").write_text(
        "import own_helper\nfrom catchment.methods.fedavg import FedAvg as Mine\n"
    )
    helper = tmp_path / "own_helper.py"
    helper.write_text("MU = 1\n")
    file.write_text(FILE.replace('label = "FedAvg"', 'label = "FedAvg"\nexperiment.method.name = "own_package:Mine"'))
    before = Study.load(file).jobs()[0].digest
    helper.write_text("MU = 2\n")
    assert Study.load(file).jobs()[0].digest != before
