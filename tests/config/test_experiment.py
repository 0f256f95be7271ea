"""Experiments: what a file means, that it comes back, and names of users."""

import math
import tomllib

import pytest
from experiment_files import EXAMPLE, SMALL, WIDE, changed, said

from catchment.config.experiment import Experiment
from catchment.errors import ExperimentError
from catchment.learning.optimizers import OptimizerSettings
from catchment.methods.centralized import Centralized
from catchment.methods.fedavg import FedAvg
from catchment.simulation.devices import DeviceProfile

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
    assert experiment.devices.profiles == {"mine": DeviceProfile(1e6, math.inf, math.inf, 1.0, 0.5)}
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


def test_a_setting_that_ended_may_have_the_one_value_that_still_holds(written):
    assert Experiment.load(written("batched = false")) == Experiment.load(written(""))
    with pytest.raises(ExperimentError, match=r"batched is true, which this version does not have; leave it out$"):
        Experiment.load(written("batched = true"))


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


@pytest.mark.parametrize(
    ("method", "client", "server"),
    [
        ("fedgkt", "resnet8", "resnet19"),
        ("splitfed", "cnn(8)", "resnet10"),
        ("fedgems", ["cnn", "resnet8"], "resnet20"),
        ("fedzkt", "mlp(16)", "resnet11"),
        ("fedgkt", "mlp", None),  # its features are no maps, so that the method says what is missing
        ("fedavg", "resnet8", None),
        ("dsfl", "resnet8", None),
        ("standalone", "resnet8", None),
    ],
)
def test_a_server_model_is_chosen_where_one_is_needed(method, client, server):
    table = {"method": {"name": method}, "models": {"client": client}}
    chosen = Experiment.from_dict(table)
    assert chosen.models.server == server
    assert chosen.to_dict()["models"].get("server") == server
    assert Experiment.from_toml(chosen.to_toml()) == chosen
    given = Experiment.from_dict({**table, "models": {"client": client, "server": "resnet55"}})
    assert given.models.server == "resnet55"


def test_the_written_file_finds_the_users_modules_from_any_folder(written, own, tmp_path):
    module = own(OWN_METHOD)
    experiment = Experiment.load(written(f'[method]\nname = "{module}:Mine"'))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "again.toml").write_text(experiment.to_toml(), encoding="utf-8")
    assert Experiment.load(elsewhere / "again.toml").path == str(tmp_path)


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
    assert world.client_architecture(0).facts.parameters == 16 * 3 + 3


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
