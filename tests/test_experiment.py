"""Experiment files: what they mean, that they come back, and one clear sentence for every mistake."""

import math
import sys
import tomllib

import pytest

from catchment.errors import CatchmentError, DataError, ExperimentError
from catchment.experiment import METHODS, Experiment, parse_setting
from catchment.methods.centralized import Centralized
from catchment.methods.fedavg import FedAvg
from catchment.methods.fedprox import FedProx
from catchment.optimizers import OptimizerSettings
from catchment.transports.devices import Device

EXAMPLE = """
name = "fedavg-digits"
seed = 0
rounds = 10
engine = "inprocess"
workers = 2
[method]
name = "fedavg"
client_epochs = 1
[data]
name = "digits"
clients = 8
train = 1200
test = 290
public = 0.5
partition = { name = "dirichlet", alpha = 0.5 }
[models]
client = "cnn"
server = "resnet19"
[optimizer.client]
name = "adam"
lr = 1e-3
weight_decay = 1e-4
batch_size = 32
[optimizer.server]
name = "adam"
lr = 1e-3
[participation]
fraction = 1.0
[devices]
profile = "phone"
[wire]
codecs = []
"""

SMALL = """
workers = 1
[method]
name = "fedprox"
client_epochs = 2
mu = 0.5
[data]
train = 100
test = 50
clients = 2
[models]
client = "mlp"
"""

WIDE = """
name = "says \\"é\\" 漢字"
threads = 2
strict = true
device = "cpu"
[method]
name = "centralized"
model = "server"
client_epochs = 3
server_epochs = 2
[data]
name = "cifar10"
root = "somewhere/else"
partition = { name = "table", counts = [[1, 2], [3, 4]], scale = true }
augment = ["crop", "flip"]
download = true
mean = [0.5]
std = [0.25, 0.25, 1]
[models]
client = ["cnn", "resnet8"]
server = "resnet(1,1,2)"
[optimizer.client]
name = "sgd"
momentum = 0.9
nesterov = true
[optimizer.server]
name = "adamw"
amsgrad = true
[participation]
fraction = 0.25
deadline = 30
[devices]
profile = ["mine", "phone"]
profiles.mine = { compute = 1e6, up = inf, latency = 1, availability = 0.5 }
[faults]
drop = 0.1
crash = 1
delay = 0.5
delay_seconds = 5
[evaluation]
every = 3
[checkpoint]
every = 7
"""


@pytest.fixture(autouse=True)
def _same_path_afterwards(monkeypatch):
    monkeypatch.setattr(sys, "path", sys.path.copy())


@pytest.fixture
def written(tmp_path):
    """Write an experiment file."""

    def write(text, name="experiment.toml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def own(tmp_path):
    """Write a module beside the experiment file and give its name, new in each test, as imports are cached."""

    def write(text):
        name = f"own_{tmp_path.name}"
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


def changed(text=EXAMPLE, **changes):
    """An experiment with dotted keys changed; `__` stands for the dot."""
    return Experiment.from_dict(tomllib.loads(text), {key.replace("__", "."): v for key, v in changes.items()})


def said(action):
    """The text of the error that an action raises: one sentence, no traceback's leftovers."""
    with pytest.raises(CatchmentError) as caught:
        action()
    text = str(caught.value)
    assert "\n" not in text
    return text


def load_error(key, value, text=EXAMPLE):
    return said(lambda: Experiment.from_dict(tomllib.loads(text), {key: value}))


def world_error(key, value):
    return said(lambda: Experiment.from_dict(tomllib.loads(SMALL), {key: value}).build_world())


# ---- what a file means ------------------------------------------------------------------------------------------


def test_the_example_means_what_it_says(written):
    path = written(EXAMPLE)
    experiment = Experiment.load(path)
    assert (experiment.name, experiment.seed, experiment.rounds) == ("fedavg-digits", 0, 10)
    assert (experiment.engine, experiment.workers, experiment.threads) == ("inprocess", 2, 1)
    assert (experiment.strict, experiment.device, experiment.path) == (False, "cpu", str(path.parent))
    assert experiment.method == {"name": "fedavg", "client_epochs": 1}
    assert experiment.build_method() == FedAvg(client_epochs=1)
    assert (experiment.data.name, experiment.data.clients, experiment.data.public) == ("digits", 8, 0.5)
    assert (experiment.data.train, experiment.data.test) == (1200, 290)
    assert experiment.data.partition == {"name": "dirichlet", "alpha": 0.5}
    assert (experiment.models.client, experiment.models.server) == ("cnn", "resnet19")
    assert experiment.optimizer.client == OptimizerSettings("adam", lr=1e-3, weight_decay=1e-4, batch_size=32)
    assert experiment.optimizer.server == OptimizerSettings("adam", lr=1e-3)
    assert (experiment.participation.fraction, experiment.participation.deadline) == (1.0, None)
    assert (experiment.devices.profile, experiment.wire.codecs) == ("phone", ())
    assert (experiment.evaluation.every, experiment.checkpoint.every) == (1, 1)


def test_the_example_becomes_a_world_and_a_transport(written):
    experiment = Experiment.load(written(EXAMPLE))
    world = experiment.build_world()
    assert world.method == FedAvg(client_epochs=1)
    assert world.clients == 8
    assert sum(len(rows) for rows in world.data.clients) == 600
    assert len(world.data.public) == 600
    assert len(world.data.test) == 145
    assert world.client_models == ("cnn",)
    assert world.server_architecture.name == "resnet19"
    assert world.client_optimizer == experiment.optimizer.client
    transport = experiment.build_transport(world)
    assert list(transport.roster(1)) == list(range(8))
    transport.close()


def test_every_other_setting_arrives_too():
    experiment = changed(WIDE)
    assert experiment.build_method() == Centralized("server", client_epochs=3, server_epochs=2)
    assert (experiment.threads, experiment.strict) == (2, True)
    assert experiment.data.augment == ("crop", "flip")
    assert (experiment.data.mean, experiment.data.std) == ((0.5,), (0.25, 0.25, 1.0))
    assert experiment.models.client == ("cnn", "resnet8")
    assert experiment.participation.deadline == 30.0
    assert experiment.devices.profile == ("mine", "phone")
    assert experiment.devices.profiles == {"mine": Device(1e6, math.inf, math.inf, 1.0, 0.5)}
    assert experiment.faults.crash == 1.0
    assert (experiment.evaluation.every, experiment.checkpoint.every) == (3, 7)


def test_an_empty_file_is_the_default_experiment(written):
    experiment = Experiment.load(written(""))
    assert (experiment.rounds, experiment.data.name, experiment.build_method()) == (10, "digits", FedAvg())
    assert experiment.workers >= 1


def test_numbers_given_whole_are_taken_where_any_number_is_expected():
    assert changed(participation__fraction=1).participation.fraction == 1.0
    assert type(changed(participation__fraction=1).participation.fraction) is float


def test_several_models_and_devices_are_dealt_in_turn():
    small = Experiment.from_dict(
        {**tomllib.loads(SMALL), "method": {"name": "standalone"}, "models": {"client": ["mlp", "mlp(8)"]}},
        {"data.clients": 3},
    )
    world = small.build_world()
    assert [world.client_architecture(client).name for client in range(3)] == ["mlp", "mlp(8)", "mlp"]


# ---- there and back ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [EXAMPLE, SMALL, WIDE], ids=["example", "small", "wide"])
def test_an_experiment_comes_back_from_its_own_file(written, text):
    experiment = Experiment.load(written(text))
    again = Experiment.load(written(experiment.to_toml(), "again.toml"))
    assert again == experiment
    assert again.to_toml() == experiment.to_toml()


@pytest.mark.parametrize("text", ["", '[method]\nname = "fedprox"\nmu = 1.0', '[method]\nname = "centralized"'])
def test_an_experiment_that_leaves_out_options_of_its_method_comes_back_equal(written, text):
    experiment = Experiment.load(written(text))
    assert Experiment.load(written(experiment.to_toml(), "again.toml")) == experiment


def test_the_written_file_holds_the_defaults_of_the_method():
    table = tomllib.loads(changed(method={"name": "fedprox"}).to_toml())
    assert table["method"] == {"name": "fedprox", "client_epochs": 1, "mu": 0.01}


def test_the_written_file_finds_the_users_modules_from_any_folder(written, own, tmp_path):
    module = own(OWN_METHOD)
    experiment = Experiment.load(written(f'[method]\nname = "{module}:Mine"'))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "again.toml").write_text(experiment.to_toml(), encoding="utf-8")
    assert Experiment.load(elsewhere / "again.toml").path == str(tmp_path)


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


# ---- mistakes in a file -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("round", 'did you mean "rounds"?'),
        ("data.client", 'did you mean "clients"?'),
        ("models.sever", 'did you mean "server"?'),
        ("optimizer.clent", 'did you mean "client"?'),
        ("optimizer.server.learning", "known: amsgrad, batch_size, lr, momentum, name, nesterov, weight_decay"),
        ("optimizer.client.weight_deacy", 'did you mean "weight_decay"?'),
        ("participation.fracton", 'did you mean "fraction"?'),
        ("devices.profil", 'did you mean "profile'),
        ("devices.profiles.mine.compte", 'did you mean "compute"?'),
        ("faults.dropp", 'did you mean "drop"?'),
        ("wire.codec", 'did you mean "codecs"?'),
        ("evaluation.evry", 'did you mean "every"?'),
        ("checkpoint.evry", 'did you mean "every"?'),
        ("method.client_epoch", 'did you mean "client_epochs"?'),
        ("method.zzz", "known: client_epochs"),
    ],
)
def test_an_unknown_key_at_any_level_is_named_in_full_with_the_nearest(key, hint):
    assert load_error(key, 1).startswith(f'unknown key "{key}"; {hint}')


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("rounds", "ten", 'rounds is the text "ten"; a whole number is expected'),
        ("rounds", 1.0, "rounds is 1.0; a whole number is expected"),
        ("rounds", True, "rounds is true; a whole number is expected"),
        ("rounds", [1], "rounds is [1]; a whole number is expected"),
        ("data.train", 1.5, "data.train is 1.5; a whole number is expected"),
        ("optimizer.client.lr", "fast", 'optimizer.client.lr is the text "fast"; a number is expected'),
        ("optimizer.client.lr", False, "optimizer.client.lr is false; a number is expected"),
        ("participation.deadline", "soon", 'participation.deadline is the text "soon"; a number is expected'),
        ("strict", "yes", 'strict is the text "yes"; true or false is expected'),
        ("strict", 1, "strict is 1; true or false is expected"),
        ("name", 5, "name is 5; text in quotes is expected"),
        ("data.root", 5, "data.root is 5; text in quotes is expected"),
        ("data.augment", "flip", 'data.augment is the text "flip"; a list is expected'),
        ("data.mean", [0.5, "x"], 'data.mean[1] is the text "x"; a number is expected'),
        ("data.partition", "iid", 'data.partition is the text "iid"; a table is expected'),
        ("models.client", 5, "models.client is 5; text in quotes is expected"),
        ("devices.profiles.mine", 5, "devices.profiles.mine is 5; a table is expected"),
        ("data", 5, "data is 5; a table is expected"),
        ("optimizer.client", "adam", 'optimizer.client is the text "adam"; a table is expected'),
        ("method", "fedavg", 'method is the text "fedavg"; a table is expected'),
        ("method.client_epochs", "two", 'method.client_epochs is the text "two"; a whole number is expected'),
        ("method.client_epochs", 1.5, "method.client_epochs is 1.5; a whole number is expected"),
        ("method.client_epochs", True, "method.client_epochs is true; a whole number is expected"),
        ("engine", "ray", 'engine is the text "ray"; expected one of inprocess, flower'),
    ],
)
def test_a_value_of_the_wrong_type_says_what_is_expected(key, value, text):
    assert load_error(key, value) == text


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("rounds", 0, "rounds is 0; at least 1 is expected"),
        ("rounds", -1, "rounds is -1; at least 1 is expected"),
        ("workers", 0, "workers is 0; at least 1 is expected"),
        ("threads", -2, "threads is -2; at least 1 is expected"),
        ("seed", -1, "seed is -1; at least 0 is expected"),
        ("data.clients", 0, "data.clients is 0; at least 1 is expected"),
        ("data.public", 0, "data.public is 0.0; a share between 0 and 1 is expected"),
        ("data.public", 1, "data.public is 1.0; a share between 0 and 1 is expected"),
        ("evaluation.every", 0, "evaluation.every is 0; at least 1 is expected"),
        ("checkpoint.every", -1, "checkpoint.every is -1; at least 1 is expected"),
        ("participation.fraction", 0, "participation.fraction is 0.0; a share above 0 up to 1 is expected"),
        ("participation.fraction", 1.5, "participation.fraction is 1.5; a share above 0 up to 1 is expected"),
        ("participation.fraction", math.nan, "participation.fraction is nan; a share above 0 up to 1 is expected"),
        ("optimizer.client.lr", -1, "[optimizer.client] optimizer lr is -1.0; a number above 0 is expected"),
        ("optimizer.server.batch_size", 0, "[optimizer.server] optimizer batch_size is 0; at least 1 is expected"),
        ("faults.drop", 1.5, "[faults] faults.drop is a chance from 0 to 1, not 1.5"),
        ("faults.crash", -0.5, "[faults] faults.crash is a chance from 0 to 1, not -0.5"),
        ("faults.delay_seconds", -1, "[faults] faults.delay_seconds is -1.0; at least 0 is expected"),
    ],
)
def test_a_number_out_of_range_says_the_range(key, value, text):
    assert load_error(key, value) == text


@pytest.mark.parametrize(
    ("key", "value"), [("compute", 0), ("up", -1), ("down", 0), ("latency", -1), ("availability", 2)]
)
def test_a_device_that_cannot_be_is_refused_with_its_place(key, value):
    assert load_error("devices.profiles.mine", {key: value}).startswith("[devices.profiles.mine] a device")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("participation.deadline", -1),
        ("optimizer.client.weight_decay", -1),
        ("data.train", 0),
        ("data.test", -5),
        ("models.client", []),
        ("devices.profile", []),
        ("method.client_epochs", 0),
        ("method.client_epochs", -1),
    ],
)
def test_a_file_that_cannot_run_is_refused_when_it_is_read(key, value):
    assert key.rpartition(".")[2] in load_error(key, value)


def test_a_wrong_item_of_a_list_is_named_where_a_text_is_possible_too():
    assert load_error("models.client", ["cnn", 5]) == "models.client[1] is 5; text in quotes is expected"


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("method.name", "fedvg", 'unknown method "fedvg"; did you mean "fedavg"?'),
        ("method.name", "zzz", f'unknown method "zzz"; known: {", ".join(sorted(METHODS))}'),
        ("optimizer.client.name", "adm", '[optimizer.client] unknown optimizer "adm"; did you mean "adam"?'),
        ("wire.codecs", ["*=int9"], 'codec rule "*=int9": unknown stage "int9"; did you mean "int8"?'),
    ],
)
def test_an_unknown_name_is_found_when_the_file_is_read(key, value, text):
    assert load_error(key, value) == text


@pytest.mark.parametrize("table", [{}, {"method": {}}, {"method": {"client_epochs": 1}}])
def test_a_method_without_a_name_is_fedavg(table):
    assert Experiment.from_dict(table).build_method() == FedAvg(client_epochs=1)
    assert Experiment.from_dict(table).to_dict()["method"] == {"name": "fedavg", "client_epochs": 1}


def test_a_method_without_a_name_is_fedavg_in_python_too():
    assert Experiment(method={"client_epochs": 2}).build_method() == FedAvg(client_epochs=2)


def test_a_methods_name_must_be_text():
    assert load_error("method.name", 5) == 'method.name is 5; text in quotes is expected, such as "fedavg"'


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("models.client", "mpl", 'unknown model "mpl"; did you mean "mlp"?'),
        ("data.name", "digit", 'unknown data set "digit" (not a folder or "module:function" either); did you mean'),
        ("data.partition", {"name": "dirchlet"}, 'unknown partition "dirchlet"; did you mean "dirichlet"?'),
        (
            "data.partition",
            {"name": "dirichlet", "alfa": 1},
            'partition "dirichlet" has no option "alfa"; did you mean',
        ),
        ("data.partition", {"alpha": 1}, "a partition needs a name; known: classes_per_client, dirichlet, iid"),
        ("data.clients", 500, "500 clients cannot share 100 training samples"),
        ("data.train", 10**6, "data.train = 1000000, but the train split has"),
        ("device", "gpu", 'device "gpu" cannot be used here: '),
    ],
)
def test_a_mistake_that_shows_only_with_data_and_models_is_found_before_training(key, value, text):
    assert world_error(key, value).startswith(text)


@pytest.mark.parametrize(
    ("profile", "hint"),
    [("fone", 'did you mean "phone"?'), (["phone", "fone"], 'did you mean "phone"?'), ("mein", 'did you mean "mine"?')],
)
def test_an_unknown_device_profile_is_compared_with_the_builtin_and_the_users(profile, hint):
    name = profile if isinstance(profile, str) else profile[-1]
    devices = {"profile": profile, "profiles": {"mine": {}}}
    assert said(lambda: Experiment.from_dict({"devices": devices})) == f'unknown devices.profile "{name}"; {hint}'


def test_an_unknown_server_model_is_found_before_training():
    assert world_error("models.server", "resnt19") == 'unknown model "resnt19"; did you mean "resnet19"?'


def test_an_unknown_augmentation_is_found_before_training():
    assert world_error("data.augment", ["flp"]) == 'unknown augmentation "flp"; did you mean "flip"?'


def test_methods_refuse_worlds_in_which_they_cannot_work():
    assert world_error("models.client", ["mlp", "cnn"]) == (
        "fedprox shares weights among clients, so all need one architecture; models.client lists cnn, mlp"
    )


def test_a_missing_data_set_says_where_it_was_looked_for(tmp_path):
    experiment = changed(SMALL, data__name="cifar10", data__root=str(tmp_path))
    with pytest.raises(
        DataError, match=r'data set "cifar10" is not at .*cifar10 \(no train.parquet or train.npz there\)'
    ):
        experiment.build_world()


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


# ---- users' own -------------------------------------------------------------------------------------------------

OWN_METHOD = """
from dataclasses import dataclass
from typing import Literal, Optional
from catchment import Method, Metrics

@dataclass(frozen=True)
class Mine(Method[int]):
    strength: float = 1.0
    rates: tuple[float, ...] = (0.5,)
    kind: Literal["soft", "hard"] = "soft"
    limit: int | None = None

    def __post_init__(self):
        if self.strength > 100:
            raise ValueError("strength is too great")

    def init(self, server): return 0
    def round(self, server, state, fleet): pass
    def evaluate(self, server, state, fleet): return Metrics(0.0)

@dataclass(frozen=True)
class Half(Method[int]):
    def init(self, server): return 0

@dataclass(frozen=True)
class Old(Mine):
    old: Optional[int] = None

class Plain(Method[int]):
    pass

def function(): pass
answer = 42
"""


def test_a_method_beside_the_file_is_found_and_its_options_are_checked(written, own):
    module = own(OWN_METHOD)
    text = f'[method]\nname = "{module}:Mine"\nstrength = 2\nrates = [1, 0.5]\nkind = "hard"\nlimit = 3'
    experiment = Experiment.load(written(text))
    method = experiment.build_method()
    assert (method.strength, method.rates, method.kind, method.limit) == (2.0, (1.0, 0.5), "hard", 3)
    assert tomllib.loads(experiment.to_toml())["method"] == {
        "name": f"{module}:Mine", "strength": 2.0, "rates": [1.0, 0.5], "kind": "hard", "limit": 3,
    }  # fmt: skip
    for key, value, text in (
        ("strenth", 1, 'unknown key "method.strenth"; did you mean "strength"?'),
        ("rates", [1, "x"], 'method.rates[1] is the text "x"; a number is expected'),
        ("kind", "medium", 'method.kind is the text "medium"; expected one of soft, hard'),
        ("limit", 1.5, "method.limit is 1.5; a whole number is expected"),
    ):
        table = {"method": {"name": f"{module}:Mine"}, "path": experiment.path}
        assert said(lambda: Experiment.from_dict(table, {f"method.{key}": value})) == text  # noqa: B023


def test_data_and_models_beside_the_file_are_found(written, own):
    module = own(
        "import torch\n"
        "from torch import nn\n"
        "from catchment import Dataset\n"
        "def data(seed):\n"
        "    labels = torch.arange(12) % 3\n"
        "    return Dataset.of(torch.zeros(12, 4, 4), labels, torch.zeros(12, 4, 4), labels)\n"
        "def model(channels, size, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size**2, classes))\n"
    )
    text = f'[data]\nname = "{module}:data"\nclients = 2\n[models]\nclient = "{module}:model"'
    world = Experiment.load(written(text)).build_world()
    assert world.classes == 3
    assert world.client_architecture(0).probe.parameters == 16 * 3 + 3


def test_a_missing_module_a_missing_attribute_and_something_else_than_a_method(written, own):
    module = own(OWN_METHOD)

    def error(name):
        return said(lambda: Experiment.load(written(f'[method]\nname = "{name}"')))

    assert error("no_such_module:Mine") == (
        'method "no_such_module:Mine": there is no module "no_such_module" beside the experiment file '
        "or on the Python path"
    )
    assert error(f"{module}:Mime") == (f'method "{module}:Mime": module {module} has no "Mime"; did you mean "Mine"?')
    for attribute in ("function", "answer", "Plain", "Metrics"):
        assert error(f"{module}:{attribute}") == (
            f'method "{module}:{attribute}" must be a subclass of catchment.Method and a dataclass'
        )
    assert error(f"{module}:Half").startswith("[method] Can't instantiate abstract class Half")


def test_a_module_that_fails_says_why(written, own):
    module = own("1 / 0")
    assert said(lambda: Experiment.load(written(f'[method]\nname = "{module}:Mine"'))) == (
        f'method "{module}:Mine": importing {module} failed: ZeroDivisionError: division by zero'
    )


def test_options_may_be_declared_optional_in_the_old_way(written, own):
    module = own(OWN_METHOD)
    assert Experiment.load(written(f'[method]\nname = "{module}:Old"\nold = 3')).build_method().old == 3


def test_a_method_that_refuses_its_options_is_an_experiment_error(written, own):
    module = own(OWN_METHOD)
    assert said(lambda: Experiment.load(written(f'[method]\nname = "{module}:Mine"\nstrength = 1000'))) == (
        "[method] strength is too great"
    )


def test_public_data_may_be_another_set(tmp_path):
    table = {"data": {"name": "digits", "clients": 2, "public": {"name": "digits", "train": 40}}}
    e = Experiment.from_dict(table)
    assert Experiment.from_dict(e.to_dict()) == e
    world = e.build_world()
    assert len(world.data.public) == 40
    assert sum(len(rows) for rows in world.data.clients) == len(world.data.dataset.train)


@pytest.mark.parametrize(
    ("public", "words"),
    [
        ({"name": "digits", "size": 3}, 'unknown key "data.public.size"'),
        ({"name": "digits", "train": 0}, "data.public.train is 0; at least 1 is expected"),
        ({"name": "digit"}, 'unknown data set "digit" .* did you mean "digits"'),
        (1.5, "data.public is 1.5; a share between 0 and 1 is expected"),
        ("digits", 'data.public is the text "digits"; a number is expected'),
    ],
)
def test_wrong_public_data_is_refused(public, words):
    with pytest.raises(ExperimentError, match=words):
        Experiment.from_dict({"data": {"public": public}}).build_world()
