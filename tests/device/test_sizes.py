"""Sizes of models that are not built yet."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from catchment import Experiment
from catchment.data import Form, Normalisation
from catchment.device import sizes
from catchment.device.policy import Refusal
from catchment.device.sizes import model_sizes

FORM = Form((1, 4, 4), ("cat", "dog"), Normalisation(255, (0.5,), (0.5,)))
MLP = 16 * 3 + 3 + 3 * 2 + 2  # of mlp(3): from 16 pixels to 3 units to 2 classes


def experiment(method: str = "fedavg", **models: Any) -> Experiment:
    return Experiment.from_dict({"method": {"name": method}, "models": models})


def test_parameters_are_counted_by_model() -> None:
    found = model_sizes(experiment(client=["mlp(3)", "mlp(4)"]), FORM, math.inf)
    assert found.parameters == {"mlp(3)": MLP, "mlp(4)": 16 * 4 + 4 + 4 * 2 + 2}


def test_a_server_half_is_measured_on_the_features_of_the_clients() -> None:
    found = model_sizes(experiment("fedgkt", client="resnet4", server="resnet10"), FORM, math.inf)
    assert found.features == {"resnet4": 16 * 4 * 4}
    assert list(found.parameters) == ["resnet4", "resnet10"]


def test_a_model_that_is_too_large_is_refused_at_the_parameter_that_is_too_many() -> None:
    assert model_sizes(experiment(client="mlp(3)"), FORM, MLP).parameters == {"mlp(3)": MLP}
    with pytest.raises(Refusal, match=rf'"mlp\(3\)" has at least {MLP} parameters in 4 tensors; .* is {MLP - 1}'):
        model_sizes(experiment(client="mlp(3)"), FORM, MLP - 1)


def test_a_model_of_too_many_tensors_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "MOST_TENSORS", 3)
    with pytest.raises(Refusal, match="in at most 3 tensors"):
        model_sizes(experiment(client="mlp(3)"), FORM, math.inf)


def test_no_memory_is_taken_for_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(sizes.models, "build", lambda *_, **__: seen.append(torch.empty(1).device.type) or nn.Flatten())
    model_sizes(experiment(client="mlp(3)"), FORM, math.inf)
    assert seen == ["meta"]


def test_a_model_that_does_not_exist_is_refused_in_one_sentence() -> None:
    with pytest.raises(Refusal) as refusal:
        model_sizes(experiment(client="resnet7777"), FORM, math.inf)
    assert refusal.value.to_server == "the model cannot be built on this device"
