"""Which version began a run, and which may go on with it."""

import json
import sys
import tomllib

import pytest
import tomli_w
from worlds import experiment

import catchment
from catchment.errors import ExperimentError, UserError
from catchment.files import FileLock
from catchment.report import html_report
from catchment.runs import directory
from catchment.runs.directory import begin, load_experiment
from catchment.runs.reading import RunFiles
from catchment.watching.status import details

OLD = """\
name = "old"
rounds = 3

[method]
name = "fedavg"

[data]
name = "digits"
clients = 3

[flower]
database = "state.db"
"""  # as version 0.1.0 wrote it, with a key that later ones do not know


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def old_run(make_run):
    """A run of version 0.1.0 that was stopped: no line says who wrote it."""
    folder = make_run("old", result=None)
    (folder / "experiment.toml").write_text(OLD)
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "round-000003.safetensors").write_bytes(b"of another time")
    return folder


def test_a_run_says_which_version_began_it(tmp_path):
    begin(experiment("fedavg"), tmp_path / "run")
    first, *rest = (tmp_path / "run" / "experiment.toml").read_text().splitlines(keepends=True)
    assert first == f"# Written by Catchment {catchment.__version__}\n"
    assert "".join(rest) == experiment("fedavg").to_toml()
    assert load_experiment(tmp_path / "run") == experiment("fedavg")


def test_of_two_that_begin_a_run_at_once_one_writes(tmp_path):
    with FileLock(tmp_path, "running it"), pytest.raises(UserError, match="is in use: another process is running it"):
        begin(experiment("fedavg"), tmp_path)
    assert not list(tmp_path.iterdir())
    begin(experiment("fedavg"), tmp_path)
    before = contents(tmp_path)
    with pytest.raises(UserError, match="already holds a run"):
        begin(experiment("fedprox"), tmp_path)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("act", [catchment.resume, lambda folder: catchment.Run(folder).model()])
def test_a_run_of_version_0_1_0_is_refused_and_left_untouched(old_run, act):
    before = contents(old_run)
    with pytest.raises(UserError) as refused:
        act(old_run)
    assert str(refused.value) == (
        f"{old_run} was written by Catchment 0.1.0, whose runs this version cannot go on with; it is left untouched: "
        "use Catchment 0.1.0 for it, or start over in another directory"
    )
    assert contents(old_run) == before


def test_a_run_of_version_0_1_0_can_be_read_and_reported(old_run):
    run = catchment.Run(old_run)
    assert [record["round"] for record in run.rounds] == [1, 2, 3]
    assert run.result is None
    assert "unfinished: 3 of 3 rounds" in html_report([RunFiles.read(old_run)])


def test_a_finished_run_of_version_0_1_0_is_its_result(make_run):
    folder = make_run("old")
    (folder / "experiment.toml").write_text(OLD)
    assert catchment.resume(folder) == json.loads((folder / "result.json").read_text())


@pytest.mark.parametrize(("writer", "reader", "goes_on"), [("1.2.0", "1.2.9", True), ("1.2.0", "1.3.0", False)])
def test_a_run_is_resumed_by_versions_with_the_same_minor_number(tmp_path, monkeypatch, writer, reader, goes_on):
    monkeypatch.setattr(directory, "__version__", writer)
    begin(experiment("fedavg"), tmp_path / "run")
    monkeypatch.setattr(directory, "__version__", reader)
    if goes_on:
        assert load_experiment(tmp_path / "run") == experiment("fedavg")
    else:
        with pytest.raises(UserError, match=r"was written by Catchment 1\.2\.0, whose runs this version cannot"):
            load_experiment(tmp_path / "run")


def test_no_run_to_resume(tmp_path):
    with pytest.raises(UserError, match=r"holds no run to resume \(it has no experiment\.toml\)"):
        catchment.resume(tmp_path)


def test_a_directory_is_begun_once(tmp_path):
    begin(experiment("fedavg"), tmp_path)
    with pytest.raises(UserError, match="already holds a run; resume it, or choose another --out"):
        begin(experiment("fedavg"), tmp_path)


def strangers_run(folder, **settings):
    """A finished run whose experiment looks for modules in a folder where each of them leaves a trace."""
    catchment.run(experiment("fedavg", rounds=1), out=folder / "run")
    (folder / "code").mkdir()
    for name in ("planted_method", "onnx", "onnxscript"):
        (folder / "code" / f"{name}.py").write_text(f"import pathlib; pathlib.Path({str(folder / 'ran')!r}).touch()")
    file = folder / "run" / "experiment.toml"
    table = tomllib.loads(file.read_text()) | {"path": str(folder / "code")} | settings
    file.write_text(f"{file.read_text().splitlines()[0]}\n{tomli_w.dumps(table)}")
    return folder / "run"


def test_nothing_that_a_strangers_run_names_is_imported_without_trust(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])  # trust adds the folder, whose onnx other tests would find
    place = strangers_run(tmp_path, method={"name": "planted_method:X"})
    html_report([RunFiles.read(place)])
    details(place)
    with pytest.raises(
        UserError, match=r"names code of its own \(planted_method:X\), which would run here; .* --trust"
    ):
        catchment.Run(place).export(tmp_path / "model.safetensors")
    assert not (tmp_path / "ran").exists()
    assert str(tmp_path / "code") not in sys.path
    with pytest.raises(ExperimentError, match='has no "X"'):
        catchment.Run(place, trust=True).model()
    assert (tmp_path / "ran").exists()


def test_the_folder_of_a_strangers_run_is_not_searched_for_modules_of_ours(tmp_path):
    place = strangers_run(tmp_path)
    catchment.Run(place).export(tmp_path / "model.safetensors")
    assert str(tmp_path / "code") not in sys.path
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"method": {"name": "a:B"}, "models": {"client": ["mlp", "kgf(c:d)"]}}, ["a:B", "kgf(c:d)"]),
        ({"wire": {"codecs": ["up:weights/*=update+own_stage:Half(3)+zstd"]}}, ["own_stage:Half"]),
        ({"data": {"name": "e:f", "root": "/x:y", "classes": ["a: b"]}, "flower": {"host": "::"}}, ["e:f"]),
        ({"models": {"client": "given:net-1"}}, []),
        ({"models": {"client": "kgf(given:net-1,os:abort)"}}, ["kgf(given:net-1,os:abort)"]),
    ],
)
def test_code_that_an_experiment_names_is_found(tmp_path, settings, found):
    (tmp_path / "experiment.toml").write_text(tomli_w.dumps(settings))
    assert directory.code_of(tmp_path) == found
