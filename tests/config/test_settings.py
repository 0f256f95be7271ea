"""One clear sentence for every mistake in a file."""

import math

import pytest
from experiment_files import SMALL, changed, load_error, said, world_error

from catchment.config.experiment import Experiment
from catchment.errors import DataError
from catchment.methods import METHODS
from catchment.methods.fedavg import FedAvg


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("round", 'did you mean "rounds"?'),
        ("data.client", 'did you mean "clients"?'),
        ("models.sever", 'did you mean "server"?'),
        ("optimizer.clent", 'did you mean "client"?'),
        (
            "optimizer.server.learning",
            "known: amsgrad, batch_size, lr, momentum, name, nesterov, schedule, weight_decay",
        ),
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
        ("data.public", 0, "data.public is 0; a share between 0 and 1 is expected"),
        ("data.public", 1, "data.public is 1; a share between 0 and 1 is expected"),
        ("evaluation.every", 0, "evaluation.every is 0; at least 1 is expected"),
        ("checkpoint.every", -1, "checkpoint.every is -1; at least 1 is expected"),
        ("participation.fraction", 0, "participation.fraction is 0; a share above 0 up to 1 is expected"),
        ("participation.fraction", 1.5, "participation.fraction is 1.5; a share above 0 up to 1 is expected"),
        ("participation.fraction", math.nan, "participation.fraction is nan; a share above 0 up to 1 is expected"),
        ("optimizer.client.lr", -1, "optimizer.client.lr is -1; a number above 0 is expected"),
        ("optimizer.server.batch_size", 0, "optimizer.server.batch_size is 0; at least 1 is expected"),
        ("faults.drop", 1.5, "faults.drop is 1.5; a chance from 0 to 1 is expected"),
        ("faults.crash", -0.5, "faults.crash is -0.5; a chance from 0 to 1 is expected"),
        ("faults.delay_seconds", -1, "faults.delay_seconds is -1; at least 0 is expected"),
    ],
)
def test_a_number_out_of_range_says_the_range(key, value, text):
    assert load_error(key, value) == text


@pytest.mark.parametrize(
    ("key", "value"), [("compute", 0), ("up", -1), ("down", 0), ("latency", -1), ("availability", 2)]
)
def test_a_device_that_cannot_be_is_refused_with_its_place(key, value):
    assert load_error("devices.profiles.mine", {key: value}).startswith(f"devices.profiles.mine.{key} is {value}; ")


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
        ("optimizer.client.name", "adm", 'optimizer.client.name is the text "adm"; expected one of adam, adamw, sgd'),
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
        ("device", "gpu", 'PyTorch device "gpu" cannot be used here: '),
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
    assert world_error("data.augment", ["flp"]) == (
        'data.augment has "flp", which is none of classification; did you mean "flip"?'
    )


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
