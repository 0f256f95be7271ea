"""From TOML to tables: files that extend others, changes by key, files that cannot be read."""

import tomllib

import pytest
from experiment_files import EXAMPLE, changed, load_error, said

from catchment.config.experiment import Experiment
from catchment.config.toml import parse_setting
from catchment.errors import ExperimentError
from catchment.learning.optimizers import OptimizerSettings
from catchment.methods.fedprox import FedProx

# ---- files that extend others -----------------------------------------------------------------------------------


def test_a_file_wins_over_those_it_extends_key_by_key_and_later_ones_over_earlier_ones(written):
    written("rounds = 1\nseed = 1\n[optimizer.client]\nlr = 0.1\nbatch_size = 8", "first.toml")
    written("seed = 2\nworkers = 2\n[optimizer.client]\nlr = 0.2", "second.toml")
    path = written('extends = ["first.toml", "second.toml"]\nworkers = 3\n[optimizer.client]\nweight_decay = 0.5')
    experiment = Experiment.load(path, {"threads": 4})
    assert (experiment.rounds, experiment.seed, experiment.workers, experiment.threads) == (1, 2, 3, 4)
    assert experiment.optimizer.client == OptimizerSettings(lr=0.2, batch_size=8, weight_decay=0.5)
    assert "extends" not in tomllib.loads(experiment.to_toml())


def test_extended_files_are_found_from_the_file_that_names_them_and_own_modules_beside_the_file_loaded(
    written, tmp_path
):
    (tmp_path / "below").mkdir()
    written("rounds = 7", "ground.toml")
    written('extends = "../ground.toml"\nseed = 5', "below/middle.toml")
    experiment = Experiment.load(written('extends = "below/middle.toml"'))
    assert (experiment.rounds, experiment.seed, experiment.path) == (7, 5, str(tmp_path))


@pytest.mark.parametrize(
    ("table", "earlier", "later", "expected"),
    [
        ("method", 'name = "fedprox"\nmu = 1.0', 'name = "fedavg"', {"name": "fedavg", "client_epochs": 1}),
        ("method", 'name = "fedprox"\nmu = 1.0', "mu = 2.0", {"name": "fedprox", "client_epochs": 1, "mu": 2.0}),
        ("method", "client_epochs = 2", 'name = "fedavg"', {"name": "fedavg", "client_epochs": 2}),
        ("data.partition", 'name = "dirichlet"\nalpha = 1', 'name = "iid"', {"name": "iid"}),
        ("data.partition", 'name = "dirichlet"\nalpha = 1', "alpha = 2", {"name": "dirichlet", "alpha": 2}),
    ],
)  # fmt: skip
def test_under_another_name_the_earlier_keys_are_dropped(written, table, earlier, later, expected):
    written(f"[{table}]\n{earlier}", "earlier.toml")
    resolved = Experiment.load(written(f'extends = "earlier.toml"\n[{table}]\n{later}')).to_dict()
    for key in table.split("."):
        resolved = resolved[key]
    assert resolved == expected


def test_another_optimiser_starts_afresh_and_another_data_set_does_not(written):
    written('[data]\nclients = 3\n[optimizer.server]\nname = "sgd"\nmomentum = 0.9\nlr = 0.5', "earlier.toml")
    path = written('extends = "earlier.toml"\n[data]\nname = "mnist"\n[optimizer.server]\nname = "adam"')
    experiment = Experiment.load(path)
    assert (experiment.data.name, experiment.data.clients) == ("mnist", 3)
    assert experiment.optimizer.server == OptimizerSettings()


def test_a_file_may_be_reached_twice_but_not_from_itself(written, tmp_path):
    written("rounds = 3", "ground.toml")
    written('extends = "ground.toml"', "left.toml")
    written('extends = "ground.toml"', "right.toml")
    assert Experiment.load(written('extends = ["left.toml", "right.toml"]')).rounds == 3
    written('extends = "experiment.toml"', "left.toml")
    circle = " -> ".join(str(tmp_path / name) for name in ("experiment.toml", "left.toml", "experiment.toml"))
    assert said(lambda: Experiment.load(tmp_path / "experiment.toml")) == (
        f"experiment files extend each other in a circle: {circle}"
    )


def test_a_missing_file_is_named_with_the_one_that_extends_it(written, tmp_path):
    path = written('extends = "ground.toml"')
    assert said(lambda: Experiment.load(path)) == (
        f"there is no experiment file {tmp_path / 'ground.toml'}, which {path} extends"
    )


@pytest.mark.parametrize(("value", "shown"), [("5", "5"), ('["a.toml", 5]', "['a.toml', 5]"), ("true", "true")])
def test_only_files_can_be_extended(written, value, shown):
    path = written(f"extends = {value}")
    assert said(lambda: Experiment.load(path)) == (
        f"extends is {shown} in {path}; a file or a list of files is expected"
    )


# ---- changes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rounds=3", ("rounds", 3)),
        ("seed=-1", ("seed", -1)),
        ("optimizer.client.lr=1e-3", ("optimizer.client.lr", 0.001)),
        ("strict=true", ("strict", True)),
        ("method.name=fedprox", ("method.name", "fedprox")),
        ('name="two words"', ("name", "two words")),
        ("name=two words", ("name", "two words")),
        ("models.client=resnet(1,1,2)", ("models.client", "resnet(1,1,2)")),
        ("data.root=/some/folder", ("data.root", "/some/folder")),
        ('models.client=["cnn", "mlp"]', ("models.client", ["cnn", "mlp"])),
        ('data.partition={name="dirichlet", alpha=0.1}', ("data.partition", {"name": "dirichlet", "alpha": 0.1})),
        (" rounds = 3 ", ("rounds", 3)),
        ("name=a=b", ("name", "a=b")),
        ("name=", ("name", "")),
    ],
)
def test_a_setting_is_toml_or_else_plain_text(text, expected):
    assert parse_setting(text) == expected


@pytest.mark.parametrize("text", ["rounds", "=3", " =3", ""])
def test_a_setting_without_key_or_value_is_refused(text):
    assert said(lambda: parse_setting(text)) == (
        f"--set {text}: expected key=value, such as --set method.client_epochs=2"
    )


def test_a_setting_of_two_lines_is_text_or_refused():
    try:
        key, value = parse_setting("name=1\nrounds=2")
    except ExperimentError:
        return
    assert (key, value) == ("name", "1\nrounds=2")


def test_changes_go_into_tables_that_are_there_and_tables_that_are_not():
    experiment = changed(data__partition__alpha=0.1, faults__drop=0.5, method__name="fedprox")
    assert experiment.data.partition == {"name": "dirichlet", "alpha": 0.1}
    assert experiment.faults.drop == 0.5
    assert experiment.build_method() == FedProx(client_epochs=1)


def test_changes_leave_the_given_table_alone():
    table = tomllib.loads(EXAMPLE)
    Experiment.from_dict(table, {"data.partition.alpha": 9.0, "rounds": 1})
    assert table == tomllib.loads(EXAMPLE)


def test_a_change_below_a_value_is_refused():
    assert load_error("rounds.x", 1) == "rounds.x cannot be set: rounds is a value, not a table"
    assert load_error("optimizer.client.lr.x", 1).startswith("optimizer.client.lr.x cannot be set: lr is a value")


def test_load_takes_changes_too(written):
    assert Experiment.load(written(EXAMPLE), {"rounds": 3}).rounds == 3


# ---- files that cannot be read ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["missing.toml", "", "experiment.toml/below"])
def test_no_file_there(written, tmp_path, name):
    written(EXAMPLE)
    path = tmp_path / name
    assert said(lambda: Experiment.load(path)) == f"there is no experiment file {path}"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("rounds = = 3", "line 1, column 10"),
        ("rounds = 1\nrounds = 2", "line 2, column 10"),
        ("\n[method", "line 2, column 8"),
        ("rounds = ten", "line 1, column 10"),
    ],
)
def test_broken_toml_says_where(written, text, place):
    path = written(text)
    message = said(lambda: Experiment.load(path))
    assert message.startswith(f"{path} is not valid TOML: ")
    assert place in message or "end of document" in message


def test_a_file_in_another_encoding(tmp_path):
    path = tmp_path / "latin.toml"
    path.write_bytes('name = "é"'.encode("latin-1"))
    assert said(lambda: Experiment.load(path)).startswith(f"{path} cannot be read: 'utf-8' codec can't decode byte")


def test_a_file_with_a_byte_order_mark_is_read(tmp_path):
    path = tmp_path / "marked.toml"
    path.write_text("rounds = 3", encoding="utf-8-sig")
    assert Experiment.load(path).rounds == 3
