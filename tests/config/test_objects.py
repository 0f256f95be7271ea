"""Experiments that are made from objects."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import catchment
from catchment import Dataset, Experiment
from catchment.config.settings import DataSettings
from catchment.errors import ExperimentError
from catchment.methods.fedprox import FedProx
from catchment.models.small import mlp
from catchment.names import name_of, resolve
from catchment.robust import LIE
from catchment.robust.aggregators import TrimmedMean


def dataset():
    images = np.zeros((40, 1, 4, 4), dtype=np.uint8)
    labels = np.arange(40) % 2
    images[labels == 1] = 200
    return Dataset.of(images[:30], labels[:30], images[30:], labels[30:])


def net(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(16, classes))


def test_objects_run_as_names_do():
    local = dataset()
    made = Experiment.of(
        rounds=4, workers=1, method=FedProx(mu=0.5), models={"client": net}, data={"name": local, "clients": 3},
        optimizer={"client": {"name": "adam", "lr": 0.05}},
    )  # fmt: skip
    assert made.method == {"name": "fedprox", "client_epochs": 1, "mu": 0.5}
    assert made.build_world().data.dataset.train.images is local.train.images
    assert catchment.run(made)["accuracy"] == 1.0


def test_a_module_stands_for_copies_of_itself():
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    made = Experiment.of(models={"client": model}, data={"name": dataset(), "clients": 2})
    first = made.build_world().client_architecture(0).build()
    assert first is not model
    assert torch.equal(first[1].weight, model[1].weight)


def test_what_others_can_import_has_its_own_name():
    made = Experiment.of(models={"client": mlp})
    assert made.models.client == "catchment.models.small:mlp"
    assert made.method["name"] == "fedavg"


def test_one_object_has_one_name():
    local = dataset()
    one, other = (Experiment.of(data={"name": local, "clients": 2}) for _ in range(2))
    assert one.data.name == other.data.name
    assert one.data.name != Experiment.of(data={"name": dataset(), "clients": 2}).data.name


def test_settings_attacks_and_aggregators_are_tables():
    made = Experiment.of(data=DataSettings(clients=5), attack=LIE(clients=2), aggregation=TrimmedMean(trim=0.4))
    assert made.data.clients == 5
    assert made.attack["name"] == "lie"
    assert made.aggregation == {"name": "trimmed_mean", "trim": 0.4}


def test_an_object_of_another_program_is_named_in_the_error():
    with pytest.raises(ExperimentError, match="only that program has it"):
        resolve("model", "given:net-99", {})


def test_a_local_function_is_known_in_this_process():
    def here():
        return 7

    assert resolve("model", name_of(here), {}) is here
