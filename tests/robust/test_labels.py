"""Wrong labels."""

import pytest
import torch
from worlds import experiment

from catchment.errors import ExperimentError
from catchment.reading import read_table
from catchment.robust import LabelFlip


def labels_of(world, client):
    return world.data.client(client).targets


def test_an_attackers_labels_are_mirrored_and_nobody_elses():
    """Ten digits: y becomes 9 - y."""
    honest = experiment("fedavg").build_world()
    world = experiment("fedavg", attack={"name": "label-flip", "clients": [3]}).build_world()
    assert torch.equal(labels_of(world, 3), 9 - labels_of(honest, 3))
    for client in (0, 1, 2, 4):
        assert torch.equal(labels_of(world, client), labels_of(honest, client))
    assert torch.equal(world.data.test.targets, honest.data.test.targets)


def test_a_share_of_the_labels():
    honest = experiment("fedavg").build_world()
    world = experiment("fedavg", attack={"name": "label-flip", "clients": [3], "share": 0.25}).build_world()
    wrong = int((labels_of(world, 3) != labels_of(honest, 3)).sum())
    assert wrong == round(len(labels_of(honest, 3)) / 4)


def test_impossible_shares():
    for share in (0.0, 1.5):
        with pytest.raises(ExperimentError, match="a share above 0 up to 1"):
            read_table(LabelFlip, {"share": share})
