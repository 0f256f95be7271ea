"""The command line as a person uses it: real processes, their output and exit codes."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from catchment.cli import main
from catchment.errors import RunError

SMALL = """
name = "small"
rounds = 3
workers = 1
[data]
clients = 4
train = 200
test = 100
[models]
client = "mlp(16)"
"""


def catchment(*arguments, cwd=None, env=None, timeout=120):
    return subprocess.run(
        [sys.executable, "-m", "catchment", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=timeout,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160", **(env or {})},
    )


@pytest.fixture
def here(monkeypatch, capsys):
    """The command in this process: quicker where only words and exit codes matter."""

    def call(*arguments, cwd):
        monkeypatch.chdir(cwd)
        monkeypatch.setattr(sys, "argv", ["catchment", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, stop.value.code, out, err)

    return call


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run, and what its command printed."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "small.toml").write_text(SMALL)
    done = catchment("run", "small.toml", "--out", "out", "--set", "method.client_epochs=2", cwd=folder)
    return folder, done


def test_run_writes_a_directory_and_shows_a_table_and_the_report(finished):
    folder, done = finished
    assert done.returncode == 0, done.stderr
    result = json.loads((folder / "out" / "result.json").read_text())
    assert f"{result['accuracy']:.1%}"[:-1] in done.stdout
    assert "report: out/report.html" in done.stdout
    assert "small" in (folder / "out" / "report.html").read_text()
    assert "client_epochs = 2" in (folder / "out" / "experiment.toml").read_text()


def test_output_is_quiet_when_it_is_not_a_terminal(finished):
    _, done = finished
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    assert "━" * 20 not in done.stdout.split("accuracy")[0]


def test_run_without_out_finds_a_free_directory(finished, here):
    folder, _ = finished
    for expected in ("runs/small", "runs/small-2"):
        assert not here("run", "small.toml", "--set", "rounds=1", cwd=folder).returncode
        assert (folder / expected / "result.json").exists()


@pytest.mark.parametrize("command", [("run",), ("server", "--insecure", "--port", "0")])
def test_a_name_never_leads_out_of_the_folder_of_runs(tmp_path, here, command):
    (tmp_path / "here").mkdir()
    (tmp_path / "x.toml").write_text('name = "../../x"')
    done = here(command[0], "../x.toml", *command[1:], cwd=tmp_path / "here")
    assert done.returncode == 2
    assert re.sub(r"\s+", " ", done.stderr).startswith('error: name is "../../x"; files are called by it')
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["here", "x.toml"]


def test_report_compares_runs(finished, here):
    folder, _ = finished
    here("run", "small.toml", "--out", "prox", "--set", "method.name=fedprox", "--set", "name=prox", cwd=folder)
    done = here("report", "out", "prox", "--out", "both.html", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "small" in done.stdout
    assert "prox" in done.stdout
    page = (folder / "both.html").read_text()
    assert "fedavg" in page
    assert "fedprox" in page


def test_export_writes_a_model_and_says_how_large_it_is(finished, here):
    folder, _ = finished
    done = here("export", "out", "--client", "3", "--out", "three.safetensors", cwd=folder)
    assert done.returncode == 0, done.stderr
    # (64 + 1) * 16 + (16 + 1) * 10 = 1,210 parameters, 4 bytes each, and a header
    assert re.fullmatch(
        r"three\.safetensors: model of client 3 after round 3 of 3, 1,210 parameters, 5\.\d\d KiB\n"
        r"card: three\.safetensors\.md\n",
        done.stdout,
    )
    done = here("export", "out", cwd=folder)
    assert done.stdout.startswith("out/model.safetensors: global or server model after round 3 of 3, 1,210 parameters")
    three, whole = (load_file(folder / name) for name in ("three.safetensors", "out/model.safetensors"))
    assert sum(tensor.numel() for tensor in three.values()) == 1210
    assert all(torch.equal(tensor, whole[name]) for name, tensor in three.items())


def test_export_replaces_a_file_only_by_force(finished, here):
    folder, _ = finished
    (folder / "mine.safetensors").write_text("mine")
    done = here("export", "out", "--out", "mine.safetensors", cwd=folder)
    assert done.returncode == 2
    assert done.stderr.startswith("error: mine.safetensors is there already; choose another file")
    assert (folder / "mine.safetensors").read_text() == "mine"
    assert here("export", "out", "--out", "mine.safetensors", "--force", cwd=folder).returncode == 0
    assert (folder / "mine.safetensors").stat().st_size > 4 * 1210


def test_list_names_what_can_be_used():
    done = catchment("list")
    for word in ("fedavg", "fedprox", "standalone", "centralized", "resnet8", "resnet110", "dirichlet", "table",
                 "cifar10", "digits", "phone", "adam", "crop", "krum", "ofom"):  # fmt: skip
        assert re.search(rf"\b{word}\b", done.stdout), word


def test_check_says_what_would_run_and_trains_nothing(finished, here):
    folder, _ = finished
    done = here("check", "small.toml", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "1,210" in done.stdout  # (64 + 1) * 16 + (16 + 1) * 10 parameters
    assert "What a device sends, such as client 0 with mlp(16)" in done.stdout
    assert "4.73 KiB" in done.stdout  # 1,210 weights
    assert "This experiment can run" in done.stdout
    assert not (folder / "runs" / "check").exists()


def test_check_says_which_server_model_was_chosen(finished, here):
    folder, _ = finished
    chosen = ("check", "small.toml", "--set", "method.name=fedgkt", "--set", "models.client=resnet4")
    done = here(*chosen, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "models.server is not set: resnet10, which goes with resnet4\n"
    assert "resnet10" in done.stdout
    assert "models.server" not in here(*chosen, "--set", "models.server=resnet19", cwd=folder).stderr


def test_check_says_which_models_a_method_is_meant_for(finished, here):
    folder, _ = finished
    chosen = ("check", "small.toml", "--set", "method.name=fedkgf", "--set")
    done = here(*chosen, "models.client=resnet11", cwd=folder)
    said = "fedkgf trains resnet11 as it is; it is meant for models such as kgf(resnet11)\n"
    assert (done.returncode, done.stderr) == (0, said)
    assert here(*chosen, "models.client=kgf(resnet11)", cwd=folder).stderr == ""


def test_plan_says_what_a_run_will_send_and_trains_nothing(finished, here):
    folder, _ = finished
    done = here("plan", "small.toml", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    planned, result = json.loads(done.stdout), json.loads((folder / "out" / "result.json").read_text())
    for way in ("up", "down"):
        assert planned[way]["low"] == planned[way]["high"] == result["bytes"][way]
    done = here("plan", "small.toml", cwd=folder)
    assert "1,210" in done.stdout  # (64 + 1) * 16 + (16 + 1) * 10 parameters
    assert "Devices send weights, counts, metrics" in done.stdout
    assert "No device has limits." in done.stdout


def test_plan_says_why_it_cannot_be_made(finished, here):
    folder, _ = finished
    own = ("--set", "engine=flower", "--set", "data.partition.name=own")
    done = here("plan", "small.toml", *own, cwd=folder)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


CUT = "cut.parquet"
BAD = {
    "unknown key": (
        ["--set", "method.client_epoch=2"],
        r'unknown key "method.client_epoch"; did you mean "client_epochs"\?',
    ),
    "unknown table": (["--set", "datta.clients=2"], r'unknown key "datta"; did you mean "data"\?'),
    "wrong type": (["--set", 'rounds="many"'], r'rounds is the text "many"; a whole number is expected'),
    "no value": (["--set", "rounds"], r"--set rounds: expected key=value"),
    "unknown method": (["--set", "method.name=fedavgg"], r'unknown method "fedavgg"; did you mean "fedavg"\?'),
    "unknown model": (["--set", "models.client=resnet9"], r'unknown model "resnet9"; did you mean "resnet\d+"\?'),
    "unknown device": (["--set", "devices.profile=fone"], r'unknown devices.profile "fone"; did you mean "phone"\?'),
    "unknown codec": (["--set", 'wire.codecs=["features=int9"]'], r'unknown stage "int9"'),
    "unknown augmentation": (["--set", 'data.augment=["flop"]'], r'has "flop", .* did you mean "flip"\?'),
    "too many clients": (["--set", "data.clients=201"], r"201 clients.*200"),
    "too many samples": (["--set", "data.train=5000"], r"data.train = 5000.*1497"),
    "missing data": (
        ["--set", "data.name=cifar10", "--set", "data.root=/nowhere"],
        r'"cifar10" is not at /nowhere/cifar10',
    ),
    "no such device": (["--set", "device=cuda:7"], r'device "cuda:7" cannot be used here'),
    "mixed models": (["--set", 'models.client=["mlp", "cnn"]'], r"fedavg shares weights"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_exit_code_2(case, finished, here):
    folder, _ = finished
    settings, expected = BAD[case]
    done = here("run", "small.toml", "--out", f"bad-{case}", *settings, cwd=folder)
    assert done.returncode == 2
    assert re.search(expected, done.stderr), done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr + done.stdout
    assert not (folder / f"bad-{case}").exists()


def test_missing_and_broken_files_are_one_sentence(finished, here):
    folder, _ = finished
    (folder / "broken.toml").write_text("rounds = = 3")
    (folder / "study.toml").write_text('[[row]]\nlabel = "one"')
    for arguments, expected in (
        (["run", "nowhere.toml"], "there is no experiment file nowhere.toml"),
        (["run", "broken.toml"], "broken.toml is not valid TOML"),
        (["run", "small.toml", "--out", "out"], "out already holds a run"),
        (["resume", "nowhere"], "nowhere holds no run to resume"),
        (["report", "nowhere"], "nowhere"),
        (["check", "nowhere.toml"], "there is no experiment file"),
        (["plan", "study.toml"], "study.toml is a study; run it with: catchment study study.toml"),
        (["export", "nowhere"], "nowhere holds no run"),
        (
            ["export", "out", "--client", "4", "--out", "four.safetensors"],
            "out has no client 4; its clients are 0 to 3",
        ),
    ):
        done = here(*arguments, cwd=folder)
        assert done.returncode == 2, arguments
        assert expected in done.stderr
        assert "Traceback" not in done.stderr
        assert "what was finished is kept" not in done.stderr


def test_a_parquet_file_cut_in_half_is_one_sentence(finished, here):
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    folder, _ = finished
    buffer = io.BytesIO()
    Image.new("L", (8, 8)).save(buffer, "PNG")
    rows = pa.table({"image": [{"bytes": buffer.getvalue(), "path": None}] * 40, "label": [0, 1] * 20})
    (folder / "halved").mkdir(exist_ok=True)
    for split in ("train", "test"):
        pq.write_table(rows, folder / "halved" / f"{split}.parquet")
    whole = (folder / "halved" / "train.parquet").read_bytes()
    (folder / "halved" / "train.parquet").write_bytes(whole[: len(whole) // 2])
    done = here("run", "small.toml", "--set", "data.name=./halved", "--set", "data.train=20", cwd=folder)
    assert done.returncode == 2
    assert "train.parquet" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_run_that_fails_has_exit_code_1_and_says_how_to_go_on(finished, here):
    folder, _ = finished
    wild = ["--set", "optimizer.client.name=sgd", "--set", "optimizer.client.lr=1e30", "--set", "rounds=9"]
    done = here("run", "small.toml", "--out", "wild", *wild, cwd=folder)
    assert done.returncode == 1
    assert "the loss is" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_that_fails_in_the_middle_says_how_to_go_on(finished, here, monkeypatch):
    folder, _ = finished

    def fail(experiment, directory, observe, tell):
        (directory / "checkpoints").mkdir(parents=True)
        raise RunError("all clients are gone")

    monkeypatch.setattr("catchment.launch.run", fail)
    done = here("run", "small.toml", "--out", "gone", cwd=folder)
    assert done.returncode == 1
    assert done.stderr == "error: all clients are gone; what was finished is kept: catchment resume gone\n"


def test_a_refused_resume_is_one_sentence_that_does_not_say_to_resume(finished, here):
    folder, _ = finished
    shutil.copytree(folder / "out", folder / "spoiled")
    (folder / "spoiled" / "result.json").unlink()
    for file in (folder / "spoiled" / "checkpoints").iterdir():
        file.write_bytes(b"no")
    done = here("resume", "spoiled", cwd=folder)
    assert done.returncode == 1
    assert "the run is left as it is" in done.stderr
    assert "catchment resume" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_what_the_system_refuses_is_one_sentence(finished, here, monkeypatch):
    folder, _ = finished

    def full(experiment, directory, observe, tell):
        raise OSError(28, "No space left on device", "runs/small/rounds.jsonl")

    monkeypatch.setattr("catchment.launch.run", full)
    done = here("run", "small.toml", "--out", "full", cwd=folder)
    assert done.returncode == 1
    assert done.stderr == "error: runs/small/rounds.jsonl: No space left on device\n"


def slow_experiment(folder: Path) -> None:
    (folder / "long.toml").write_text(SMALL.replace("rounds = 3", "rounds = 400").replace("mlp(16)", "resnet8"))


def wait_for_rounds(path: Path, number: int) -> None:
    until = time.monotonic() + 60
    while not (path.exists() and path.read_bytes().count(b"\n") >= number):
        assert time.monotonic() < until, "the run makes no progress"
        time.sleep(0.02)


def test_control_c_leaves_a_run_that_can_be_resumed(tmp_path, here):
    slow_experiment(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-m", "catchment", "run", "long.toml", "--out", "out"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    wait_for_rounds(tmp_path / "out" / "rounds.jsonl", 2)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 130
    assert stderr == "stopped; go on with: catchment resume out\n"
    text = (tmp_path / "out" / "experiment.toml").read_text()
    (tmp_path / "out" / "experiment.toml").write_text(text.replace("rounds = 400", "rounds = 8"))
    done = here("resume", "out", cwd=tmp_path)
    assert not done.returncode, done.stderr
    assert json.loads((tmp_path / "out" / "result.json").read_text())["rounds"] == 8


def test_a_terminal_sees_a_progress_bar_with_accuracy_bytes_and_time_left(tmp_path):
    (tmp_path / "small.toml").write_text(SMALL.replace("rounds = 3", "rounds = 30"))
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "catchment", "run", "small.toml", "--out", "out"],
        cwd=tmp_path, stdout=slave, stderr=slave, stdin=slave,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm", "COLUMNS": "140"},
    )  # fmt: skip
    os.close(slave)
    seen = b""
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:
            break
        if not chunk:
            break
        seen += chunk
    assert process.wait(timeout=60) == 0
    text = seen.decode()
    assert re.search(r"\d+/30", text)
    assert re.search(r"accuracy \d+\.\d%", text)
    assert re.search(r"[KM]iB", text)
    assert re.search(r"\d+:\d\d", text)
