"""Study files: what their rows are, at every scale."""

import pytest

from catchment.errors import ExperimentError
from catchment.studies.file import StudyFile

STUDY = """
title = "Two methods"
extends = "common.toml"
seeds = [0, 1]
reference = "IID, FedAvg"

[axes.split]
IID = {}
skewed = { experiment.data.partition = { name = "dirichlet", alpha = 0.5 } }

[axes.method]
FedAvg = { use = "fedavg" }
GKT = { experiment.method.name = "fedgkt", experiment.models = { client = "cnn", server = "resnet10" } }

[[when]]
axes = { split = "skewed", method = "GKT" }
experiment.method.server_epochs = 4
scale.small.experiment.method.server_epochs = 3

[[exclude]]
split = "skewed"
method = "FedAvg"

[paper.IID]
FedAvg = 88.1
GKT = "diverge"

[[row]]
label = "alone"
experiment.method.name = "standalone"
paper = 70
"""

COMMON = """
[experiment]
rounds = 200
data.clients = 16

[scale.small]
seeds = [7]
experiment = { rounds = 2 }

[group.fedavg.experiment]
method = { name = "fedavg", client_epochs = 20 }

[group.fedavg.scale.small.experiment]
method.client_epochs = 1
"""


@pytest.fixture
def study(tmp_path):
    (tmp_path / "common.toml").write_text(COMMON)
    path = tmp_path / "table1.toml"
    path.write_text(STUDY)
    return path


def test_rows_are_the_combinations_of_the_axes_and_then_those_written_out(study):
    file = StudyFile.load(study)
    assert [row.label for row in file.rows] == ["IID, FedAvg", "IID, GKT", "skewed, GKT", "alone"]
    assert [row.paper for row in file.rows] == [88.1, "diverge", None, 70]
    assert file.rows[1].values == {"split": "IID", "method": "GKT"}
    assert (file.seeds, file.reference) == ((0, 1), "IID, FedAvg")


def test_settings_are_merged_from_the_study_to_the_row(study):
    fedavg, gkt, skewed, alone = (row.settings for row in StudyFile.load(study).rows)
    assert fedavg == {
        "rounds": 200,
        "data": {"clients": 16},
        "method": {"name": "fedavg", "client_epochs": 20},
    }
    assert gkt["method"] == {"name": "fedgkt"}
    assert skewed["method"] == {"name": "fedgkt", "server_epochs": 4}
    assert skewed["data"] == {"clients": 16, "partition": {"name": "dirichlet", "alpha": 0.5}}
    assert alone == {"rounds": 200, "data": {"clients": 16}, "method": {"name": "standalone"}}


def test_a_scale_comes_after_everything_else(study):
    small = StudyFile.load(study, "small")
    assert small.seeds == (7,)
    assert [row.settings["rounds"] for row in small.rows] == [2, 2, 2, 2]
    assert small.rows[0].settings["method"] == {"name": "fedavg", "client_epochs": 1}
    assert small.rows[2].settings["method"]["server_epochs"] == 3
    assert StudyFile.scales(study) == ["paper", "small"]


def test_an_experiment_file_is_a_study_of_one_row(tmp_path):
    (tmp_path / "mine.toml").write_text('rounds = 3\nmethod.name = "fedavg"')
    file = StudyFile.load(tmp_path / "mine.toml")
    assert [(row.label, row.settings) for row in file.rows] == [("mine", {"rounds": 3, "method": {"name": "fedavg"}})]


def test_an_experiment_file_keeps_its_seed_and_what_it_extends(tmp_path):
    (tmp_path / "base.toml").write_text('seed = 5\nmethod = { name = "fedprox", mu = 1.0 }')
    (tmp_path / "mine.toml").write_text('extends = "base.toml"\nmethod.name = "fedavg"')
    file = StudyFile.load(tmp_path / "mine.toml")
    assert file.seeds == (5,)
    assert file.rows[0].settings == {"method": {"name": "fedavg"}}  # another name starts afresh


def test_settings_can_be_varied_without_a_file(tmp_path):
    (tmp_path / "mine.toml").write_text('rounds = 3\nmethod = { name = "fedprox", mu = 1.0 }')
    file = StudyFile.load(tmp_path / "mine.toml")
    varied = file.varied({"method.name": ["fedavg", "fedprox"], "data.clients": [2, 4], "seed": [0, 1, 2]})
    assert [row.label for row in varied.rows] == ["fedavg, 2", "fedavg, 4", "fedprox, 2", "fedprox, 4"]
    assert varied.rows[0].settings["method"] == {"name": "fedavg"}  # another name starts afresh
    assert varied.rows[2].settings["method"] == {"name": "fedprox", "mu": 1.0}
    assert varied.rows[1].settings["data"] == {"clients": 4}
    assert varied.seeds == (0, 1, 2)
    assert (varied.reference, varied.columns[1]) == ("fedavg, 2", "difference")
    assert "difference" not in file.varied({"data.clients": [2, 4]}).columns  # one seed has no interval


def test_values_that_give_a_row_twice_are_refused(study):
    with pytest.raises(ExperimentError, match='2 rows are called "IID, FedAvg, 2"'):
        StudyFile.load(study).varied({"data.clients": [2, 2]})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("colums = []\n[[row]]\nlabel = 'a'", 'unknown key "colums"; did you mean "columns"?'),
        ("[experiment]\nrounds = 1", "there are no rows"),
        ("[[row]]\nexperiment.rounds = 1", "row 1.label is missing"),
        ("[[row]]\nlabel = 'a'\n[[row]]\nlabel = 'a'", '2 rows are called "a"'),
        ("[[row]]\nlabel = 'a'\nrounds = 2", 'unknown key "row 1.rounds"'),
        ("[[row]]\nlabel = 'a'\nuse = 'gtk'\n[group.gkt]", 'use = "gtk" names no group; did you mean "gkt"?'),
        ("reference = 'b'\n[[row]]\nlabel = 'a'", 'reference is "b", which is no row'),
        ("across = 'x'\n[[row]]\nlabel = 'a'", 'across is "x", which is no axis'),
        ("[axes.data]\nA = {}\n[[exclude]]\nset = 'A'", 'there is no axis "set"'),
        ("[axes.data]\nA = 3", "axes.data.A is 3; a table is expected"),
        ("[[row]\n", "is not valid TOML"),
        ("extends = 'none.toml'\n[[row]]\nlabel = 'a'", "there is no study file"),
        ("extends = 'study.toml'\n[[row]]\nlabel = 'a'", "extend each other in a circle"),
        ("extends = 3\n[[row]]\nlabel = 'a'", "extends is 3 in"),
        ("[[row]]\nlabel = 'a'\nuse = 'x'\n[group]\nx.use = 'y'\ny.use = 'x'", "in a circle: x -> y -> x"),
        (
            "seeds = []\n[[row]]\nlabel = 'a'",
            "seeds is []; a list of whole numbers, such as",
        ),
        ("seeds = [0, 1, 0]\n[[row]]\nlabel = 'a'", "seeds has 0 2 times"),
        (
            "seeds = 3\n[[row]]\nlabel = 'a'",
            "seeds is 3; a list of whole numbers, such as seeds = [0, 1",
        ),
        ("columns = 'accuracy'\n[[row]]\nlabel = 'a'", 'columns is the text "accuracy"; a list of names'),
        ("columns = ['difference']\n[[row]]\nlabel = 'a'", 'the column "difference" needs a reference'),
        ("reference = 3\n[[row]]\nlabel = 'a'", "reference is 3; text in quotes is expected"),
        ("name = 'a/b'\n[[row]]\nlabel = 'a'", 'name is "a/b"; files are called by it'),
        ("[[row]]\nlabel = 3", "row 1.label is 3; text in quotes is expected"),
        ("[row]\nlabel = 'a'", "write [[row]] above each"),
        ("[[row]]\nlabel = 'a'\nuse = 3", "row 1.use is 3; text in quotes is expected"),
        ("[[row]]\nlabel = 'a'\nexperiment = 3", "row 1.experiment is 3; a table is expected"),
        ("[[row]]\nlabel = 'a'\nexperiment.seed = 3", "experiment.seed is 3; a study has a list"),
        ("[axes.data]\nA = {}\n[exclude]\ndata = 'A'", "write [[exclude]] above each"),
        ("[axes.data]\nA = {}\n[[exclude]]\ndata = 'AA'", 'data = the text "AA" is no value of that axis'),
        ("[axes.data]\nA = {}\n[[when]]\naxes.data = ['A', 'B']", 'data = the text "B" is no value of that axis'),
        ("[axes.data]\nA = {}\n[[exclude]]\ndata = 'A'", "[axes] leave no row"),
        ("[axes.data]\nA = {}\n[paper]\nAA = 3", 'paper has "AA", which is no value of axis data; did you mean "A"?'),
        ("axes = 'data'", 'axes is the text "data"; a table is expected'),
        ("group = 'x'\n[[row]]\nlabel = 'a'", 'group is the text "x"; a table is expected'),
        (
            "[scale.small]\ncolums = []\n[[row]]\nlabel = 'a'",
            'unknown key "scale.small.colums"; did you mean',
        ),
        ("[[row]]\nlabel = 'a'\nscale.smal = {}\n[scale.small]", 'scale "smal", which is none; did you mean "small"?'),
        (
            "[[row]]\nlabel = 'a'\nscale.small.rounds = 1\n[scale.small]",
            '"row 1.scale.small.rounds"; known: experiment',
        ),
        ("title = 'Nothing'", "there are no rows"),
    ],
)
def test_what_is_wrong_is_one_sentence_with_the_file(tmp_path, text, sentence):
    path = tmp_path / "study.toml"
    path.write_text(text)
    with pytest.raises(ExperimentError) as error:
        StudyFile.load(path)
    assert sentence in str(error.value)
    assert "study.toml" in str(error.value)


def test_an_unknown_scale_names_those_that_are_there(study):
    with pytest.raises(ExperimentError, match='there is no scale "smal"; did you mean "small"'):
        StudyFile.load(study, "smal")
