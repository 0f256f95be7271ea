"""benchmarks/tables.py: what it runs, what it leaves, and the table that comes of it."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

import catchment
from catchment.errors import RunError, UserError

FILE = Path(__file__).parents[1] / "benchmarks" / "tables.py"

COMMON = """
rounds = 1
workers = 1
[data]
clients = 2
train = 300
test = 40
[models]
client = "mlp(16)"
[optimizer.client]
lr = 0.01
"""
DECLARED = """
[tiny]
head = "digits"
columns = ["accuracy, %", "up, MB", "paper, %"]
rows = [
  ["averaged", "averaged", "90.1"],
  ["alone", "alone"],
]
[twin]
head = "digits"
seeds = [0, 1]
columns = ["best, %", "clients, %"]
rows = [["the same again", "again"]]
"""
PAGE = "before\n<!-- tiny -->\nold\n<!-- /tiny -->\nbetween\n<!-- twin -->\n<!-- /twin -->\nafter\n"


@pytest.fixture(scope="module")
def tables():
    """The script as a module; dataclasses look their module up by name."""
    spec = importlib.util.spec_from_file_location("benchmarks_tables", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture
def root(tmp_path, tables, monkeypatch):
    """A project with two tables, whose runs are counted in `root.runs`."""
    for folder in ("benchmarks/results", "experiments", "docs"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "benchmarks" / "tables.toml").write_text(DECLARED)
    (tmp_path / "docs" / "results.md").write_text(PAGE)
    experiments = tmp_path / "experiments"
    (experiments / "common.toml").write_text(COMMON)
    (experiments / "averaged.toml").write_text('extends = "common.toml"')
    (experiments / "alone.toml").write_text('extends = "common.toml"\n[method]\nname = "standalone"')
    (experiments / "again.toml").write_text('extends = "alone.toml"\nname = "another name"\nworkers = 2')
    monkeypatch.setattr(tables, "MEASURED", {})
    return tmp_path


@pytest.fixture
def runs(monkeypatch):
    """The directories in which a run was started, in order."""
    started = []
    real = catchment.run

    def run(experiment, out):
        started.append(Path(out).name)
        return real(experiment, out)

    monkeypatch.setattr(catchment, "run", run)
    return started


def results(root, name="tiny"):
    return json.loads((root / "benchmarks" / "results" / f"{name}.json").read_text())["rows"]


def place(root, name="tiny"):
    page = (root / "docs" / "results.md").read_text()
    return page.split(f"<!-- {name} -->\n")[1].split(f"<!-- /{name} -->")[0].splitlines()


def test_rows_are_run_once_and_their_results_are_kept_and_shown(tables, root, runs, capsys):
    assert tables.main(["tiny"], root) == 0
    assert runs == ["averaged-0", "alone-0"]
    averaged, alone = results(root)["averaged"]["0"], results(root)["alone"]["0"]
    result = json.loads((root / "runs" / "tables" / "tiny" / "averaged-0" / "result.json").read_text())
    assert averaged["accuracy"] == averaged["best"] == result["accuracy"] > 0.1
    assert averaged["bytes"] == result["bytes"]
    assert averaged["clients"] == dict.fromkeys(("min", "max", "mean"), result["accuracy"])
    assert averaged["server"] == result["accuracy"]
    up, down = result["bytes"]["up"], result["bytes"]["down"]
    assert averaged["curve"] == [[up + down, result["accuracy"], up]]
    assert averaged.keys() == alone.keys()
    assert alone["clients"]["min"] < alone["accuracy"] < alone["clients"]["max"]
    assert place(root) == [
        "| digits | accuracy, % | up, MB | paper, % |",
        "| --- | ---: | ---: | ---: |",
        f"| averaged | {100 * averaged['accuracy']:.1f} | 0.0 | 90.1 |",
        f"| alone | {100 * alone['accuracy']:.1f} | 0.0 |  |",
    ]
    page = (root / "docs" / "results.md").read_text()
    assert page.startswith("before\n")
    assert page.endswith("<!-- /tiny -->\nbetween\n<!-- twin -->\n<!-- /twin -->\nafter\n")
    assert "tiny alone seed 0: " in capsys.readouterr().out
    assert tables.main(["tiny"], root) == 0
    assert runs == ["averaged-0", "alone-0"]


def test_a_row_whose_settings_changed_is_not_shown_and_run_again(tables, root, runs, capsys):
    tables.main(["tiny"], root)
    (root / "experiments" / "averaged.toml").write_text('extends = "common.toml"\nrounds = 2')
    tables.main([], root)
    assert place(root)[2].startswith("| alone |")
    assert place(root)[3:] == ["", "1 of 2 rows are not run yet."]
    capsys.readouterr()
    tables.main(["tiny", "--list"], root)
    assert capsys.readouterr().out.splitlines() == [
        "tiny averaged seed 0: changed since it was run",
        "tiny alone seed 0: done",
    ]
    tables.main(["tiny"], root)
    assert runs == ["averaged-0", "alone-0", "averaged-0"]
    kept = catchment.Experiment.load(root / "runs" / "tables" / "tiny" / "averaged-0" / "experiment.toml")
    assert kept.rounds == 2


def test_what_does_not_change_results_does_not_count_as_a_change(tables, root, runs):
    tables.main(["tiny"], root)
    text = 'extends = "common.toml"\nname = "other"\nworkers = 2\nthreads = 1\n[checkpoint]\nevery = 9'
    (root / "experiments" / "averaged.toml").write_text(text)
    tables.main(["tiny"], root)
    assert runs == ["averaged-0", "alone-0"]


def test_again_runs_what_is_done(tables, root, runs):
    tables.main(["tiny"], root)
    tables.main(["tiny", "--again", "--only", "alone"], root)
    assert runs == ["averaged-0", "alone-0", "alone-0"]


def test_a_row_that_fails_is_reported_and_the_others_run(tables, root, runs, capsys):
    (root / "experiments" / "averaged.toml").write_text('extends = "common.toml"\nround = 3')
    assert tables.main(["tiny"], root) == 1
    assert runs == ["alone-0"]
    assert 'tiny averaged seed 0: failed: unknown key "round"; did you mean "rounds"?' in capsys.readouterr().out
    assert list(results(root)) == ["alone"]
    assert place(root)[2].startswith("| alone |")
    assert place(root)[3:] == ["", "1 of 2 rows are not run yet."]


def test_an_interrupted_run_is_resumed(tables, root, monkeypatch):
    table = tables.declared(root)["tiny"]
    job = next(table.jobs(only="averaged"))

    def stop(record):
        raise RunError("stopped")

    directory = root / "runs" / "tables" / "tiny" / "averaged-0"
    with pytest.raises(RunError):
        catchment.run(job.experiment, directory, observe=stop)
    assert not (directory / "result.json").exists()
    monkeypatch.setattr(catchment, "run", None)
    assert tables.main(["tiny", "--only", "averaged"], root) == 0
    assert (directory / "result.json").exists()


def test_a_row_of_another_table_with_the_same_settings_counts_and_seeds_are_averaged(tables, root, runs):
    tables.main(["tiny"], root)
    tables.main(["twin"], root)
    assert runs == ["averaged-0", "alone-0", "again-1"]
    seeds = results(root, "twin")["again"]
    assert seeds["0"] == results(root)["alone"]["0"]
    for seed, best, least, most in (("0", 0.25, 0.2, 0.3), ("1", 0.35, 0.1, 0.4)):
        seeds[seed].update(best=best, clients={"min": least, "max": most})
    file = root / "benchmarks" / "results" / "twin.json"
    file.write_text(json.dumps({"rows": {"again": seeds}}))
    tables.main([], root)
    assert place(root, "twin")[-1] == "| the same again | 30.0 ± 7.1 | 10.0 to 40.0 |"  # 10 / sqrt(2)
    file.write_text(json.dumps({"rows": {"again": {"1": seeds["1"]}}}))
    tables.main([], root)
    assert place(root, "twin")[-1] == "| the same again | 35.0 (1 of 2 seeds) | 10.0 to 40.0 |"


def test_a_row_without_its_data_is_left_out(tables, root, runs, capsys, monkeypatch):
    monkeypatch.setenv("CATCHMENT_DATA", "elsewhere")
    (root / "experiments" / "averaged.toml").write_text('extends = "common.toml"\n[data]\nname = "cinic10"')
    assert tables.main(["tiny", "--data", str(root)], root) == 0
    assert runs == ["alone-0"]
    assert "tiny averaged seed 0: not run, there is no data set cinic10" in capsys.readouterr().out
    tables.main(["tiny", "--list"], root)
    assert "tiny averaged seed 0: not run, there is no data set cinic10" in capsys.readouterr().out


def test_mistakes_are_said(tables, root):
    with pytest.raises(UserError, match='unknown table "tinny"; did you mean "tiny"'):
        tables.main(["tinny"], root)
    with pytest.raises(UserError, match="--only averagd: there is no such row in tiny"):
        tables.main(["tiny", "--only", "averagd"], root)
    (root / "docs" / "results.md").write_text("nothing")
    with pytest.raises(UserError, match="has no place for tiny: <!-- tiny -->"):
        tables.main([], root)
    declared = root / "benchmarks" / "tables.toml"
    declared.write_text(DECLARED.replace("best, %", "bestt, %"))
    with pytest.raises(UserError, match='twin has an unknown column "bestt, %"; did you mean "best, %"'):
        tables.main([], root)
    declared.write_text(DECLARED.replace('"averaged", "averaged"', '"averaged", "alone"'))
    with pytest.raises(UserError, match="tiny has several rows alone"):
        tables.main([], root)


# ---- the tables that are declared --------------------------------------------------------------------------------


def test_the_declared_tables_have_their_experiments_and_their_place(tables):
    page = (tables.ROOT / "docs" / "results.md").read_text()
    for name, table in tables.declared(tables.ROOT).items():
        assert f"<!-- {name} -->" in page
        for row in table.rows:
            assert row.file.is_file()
            assert row.name.endswith("-small")


def test_the_tables_on_the_page_are_those_of_their_files(tables):
    page = (tables.ROOT / "docs" / "results.md").read_text()
    expected = {name: tables.shown(tables.ROOT, table) for name, table in tables.declared(tables.ROOT).items()}
    for name, show in tables.MEASURED.items():
        measured = json.loads((tables.ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
        expected[name] = show(measured)
    for name, text in expected.items():
        assert f"<!-- {name} -->\n{text}\n<!-- /{name} -->" in page, "rewrite it: python benchmarks/tables.py"


def test_accuracy_by_model_and_of_the_global_model(tables):
    records = [{"models": {"mlp": 0.5, "cnn": 0.7}, "server": 0.6}, {"models": {"mlp": 0.6, "cnn": 0.8}, "server": 0.8}]
    assert tables.by_model(records) == "mlp 55.0, cnn 75.0"
    assert tables.servers(records) == "70.0 ± 14.1"
    before = [{"more": {}}]  # results of before these were kept
    assert (tables.by_model(before), tables.servers(before)) == ("", "")


def test_a_row_without_its_public_set_is_left_out(tables, tmp_path, monkeypatch):
    monkeypatch.setenv("CATCHMENT_DATA", str(tmp_path))
    public = {"data": {"name": "digits", "public": {"name": "mnist"}}}
    assert tables.lacks_data(catchment.Experiment.from_dict(public)) == "mnist"
    assert tables.lacks_data(catchment.Experiment.from_dict({"data": {"public": 0.5}})) == ""


def test_one_model_for_all_clients_has_no_worst_and_best(tables):
    assert tables.worst_and_best_client([{"clients": {"min": 0.5, "max": 0.5}}, {"clients": None}]) == ""
    assert tables.worst_and_best_client([{"clients": {"min": 0.5, "max": 0.625}}]) == "50.0 to 62.5"


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        # 16 x 32 x 32 features and 10 or 100 logits of 4 bytes, images, rounds
        ("table1/cifar10-iid-resnet56-fedgkt", 4 * (16_384 + 10) * 50_000 * 200),
        ("table1/cifar100-iid-resnet56-fedgkt", 4 * (16_384 + 100) * 50_000 * 200),
        ("table1/cinic10-iid-resnet56-fedgkt", 4 * (16_384 + 10) * 90_000 * 200),
        ("figure5/cifar10-split", 4 * 2 * 16_384 * 50_000 * 200),
    ],
)
def test_bytes_by_equations_12_and_13_of_fedgkt(tables, file, expected):
    assert tables.equation_bytes(tables.ROOT / "experiments" / "fedgkt" / f"{file}.toml") == expected


def test_bytes_by_equation_are_of_the_images_and_rounds_that_a_file_says(tables, tmp_path):
    row = tables.ROOT / "experiments" / "fedgkt" / "figure5" / "cifar10-split.toml"
    file = tmp_path / "less.toml"
    file.write_text(f'extends = "{row}"\nrounds = 3\n[data]\ntrain = 7\n[method]\nclient_epochs = 2')
    assert tables.equation_bytes(file) == 4 * 2 * 16_384 * 7 * 6


def test_the_top_is_that_of_the_curve(tables):
    assert tables.FROM_RUNS["top, %"]([{"curve": [[1e3, 0.3, 1e2], [2e3, 0.6, 2e2], [3e3, 0.5, 3e2]]}]) == "60.0"


def test_columns_of_servers_and_clients_are_empty_for_methods_without(tables):
    alone = {"server": None, "clients": {"min": 0.1, "max": 0.3, "mean": 0.25}}
    central = {"server": 0.75, "clients": None}
    assert [tables.FROM_RUNS[c]([alone]) for c in ("server, %", "clients' mean, %")] == ["", "25.0"]
    assert [tables.FROM_RUNS[c]([central]) for c in ("server, %", "clients' mean, %")] == ["75.0", ""]


@pytest.mark.parametrize(
    ("file", "kib"),
    [
        ("figure4/public-5000-fedmd", 3125.0),
        ("figure4/public-10000-fedgem", 6250.0),
        ("figure4/public-15000-fedmd", 9375.0),
        ("figure4/public-20000-fedgem", 12500.0),
        ("table2/cifar10-homo-fedgem", 15625.0),
        ("table2/cifar10-hetero-fedmd", 15625.0),
        ("table2/cifar10-homo-cronus", 15625.0),
        ("table2/cifar10-homo-dsfl", 15625.0),
        ("table2/cifar10-homo-fedgems", None),
    ],
)
def test_table_6_of_fedgems_comes_from_the_full_size_files(tables, file, kib):
    assert tables.logits_up(tables.ROOT / "experiments" / "fedgems" / f"{file}.toml") == kib


def test_the_paths_of_a_selection_are_shown_for_every_doubling_of_rounds(tables):
    first = {"notes": [{"self_training": n} for n in (1, 2, 3, 4, 5)]}
    second = {"notes": [{"self_training": n} for n in (3, 4, 5, 6, 7)]}
    column = tables.FROM_RUNS["self-training, rounds 1, 2, 4, ..."]
    assert column([first, second]) == "2, 3, 5"
    assert column([first, {}]) == ""


def test_experiments_side_by_side_with_their_change(tables, root, runs):
    """30 % after 40 % is a relative change of -25 %."""
    (root / "benchmarks" / "tables.toml").write_text(
        '[tiny]\nhead = "digits"\nacross = ["mean", "median"]\nrows = [["FedAvg", ["averaged", "robust"]]]\n'
    )
    (root / "experiments" / "robust.toml").write_text('extends = "averaged.toml"\n[aggregation]\nname = "median"')
    table = tables.declared(root)["tiny"]
    assert tables.shown(root, table).endswith("2 of 2 runs are not done yet.")
    for job, accuracy in zip(table.jobs(), (0.4, 0.3)):
        tables.keep(root, table, job, {"digest": job.digest, "accuracy": accuracy})
    lines = ["| digits | mean | median |", "| --- | ---: | ---: |", "| FedAvg | 40.0 | 30.0 / -25.0 |"]
    assert tables.shown(root, table).splitlines() == lines


def test_every_row_of_experiments_side_by_side_has_all_of_them(tables, root):
    (root / "benchmarks" / "tables.toml").write_text(
        '[tiny]\nhead = "digits"\nacross = ["mean", "median"]\nrows = [["FedAvg", ["averaged"]]]\n'
    )
    with pytest.raises(UserError, match="every row of tiny needs 2 experiments"):
        tables.declared(root)


def test_an_attack_and_an_aggregation_count_as_settings(tables, root):
    load = catchment.Experiment.load
    file = root / "experiments" / "averaged.toml"
    plain = tables.digest(load(file))
    assert tables.digest(load(file, {"attack.name": "none"})) == plain
    lies, default = ({"attack.name": "paf", **more} for more in ({}, {"attack.strength": 10.0}))
    assert tables.digest(load(file, lies)) == tables.digest(load(file, default)) != plain
    assert tables.digest(load(file, {"aggregation.name": "median"})) != plain


# ---- bytes and time ---------------------------------------------------------------------------------------------


def record(curve, seconds=20.0, link=10.0):
    *_, (moved, accuracy, up) = curve
    return {"accuracy": accuracy, "bytes": {"up": up, "down": moved - up}, "virtual_seconds": seconds, "rounds": 4,
            "curve": curve, "link": link}  # fmt: skip


SLOW = record([[3e6, 0.1, 1e6], [6e6, 0.25, 2e6]])
FAST = record([[8e6, 0.3, 3e6], [16e6, 0.28, 6e6]], seconds=40.0)


@pytest.mark.parametrize(
    ("column", "shown"),
    [
        ("MB to 20 %", "7.0"),  # 6 and 8
        ("kB to 20 %", "7,000.0"),
        ("MB up to 20 %", "2.5"),  # 2 and 3
        ("MB to 30 %", "8.0 (1 of 2 seeds)"),
        ("MB to 31 %", "never"),
        ("up a round, MB", "1.000"),  # 2 and 6 in four rounds
        ("down a round, MB", "1.750"),
        ("s a round, 10 Mbit/s", "7.50"),  # 5 and 10
        ("s a round, 1 Mbit/s", "75.00"),
        ("s a round, 100 Mbit/s", "0.75"),
    ],
)
def test_columns_of_bytes_and_time(tables, column, shown):
    assert tables.from_runs(column)([SLOW, FAST]) == shown


def test_a_run_leaves_its_curve_and_its_link(tables, root):
    (root / "experiments" / "averaged.toml").write_text(
        'extends = "common.toml"\nrounds = 4\nevaluation.every = 2\ndevices.profile = "10mbit"'
    )
    tables.main(["tiny"], root)
    averaged, alone = results(root)["averaged"]["0"], results(root)["alone"]["0"]
    up, down = averaged["bytes"]["up"], averaged["bytes"]["down"]
    assert averaged["rounds"] == 4
    assert averaged["curve"][-1] == [up + down, averaged["accuracy"], up]
    assert [averaged["curve"][0][0], averaged["curve"][0][2]] == [(up + down) / 2, up / 2]
    assert averaged["link"] == 10
    assert alone["link"] is None  # ideal devices


def test_time_of_devices_that_compute_is_not_that_of_a_link(tables):
    def link(profile):
        return tables.link(catchment.Experiment.from_dict({"devices": {"profile": profile}}))

    assert link("1mbit") == 1
    assert link("phone") is None
    assert link(["1mbit", "10mbit"]) is None
