"""Models for servers whose experiment names none."""

import pytest

from catchment import models
from catchment.models.servers import HALVES, LARGER

SHAPE = (3, 32, 32)


def example(name):
    """A model by a name in the tables: a member of the family where the name is that of one."""
    return models.build(
        {"shufflenetv2": "shufflenetv2(0.5)", "mobilenetv2": "mobilenetv2(1)"}.get(name, name), SHAPE, 10, 0
    )


@pytest.mark.parametrize("name", HALVES)
def test_a_half_takes_the_features_of_its_clients(name):
    edge, half = example(name), models.server_for([name], half=True)
    server = models.build(half, models.feature_shape(edge, SHAPE), 10, 0)
    models.check_pair(edge, server, SHAPE, 10, name, half)


@pytest.mark.parametrize("name", LARGER)
def test_a_larger_model_takes_images_and_is_larger(name):
    server = models.server_for([name], half=False)
    assert not models.is_half(server)
    if name != "mlp":  # whose size is that of the images
        assert models.parameters(models.build(server, SHAPE, 10, 0)) > models.parameters(example(name))


def test_of_several_clients_the_largest_counts():
    assert models.server_for(["cnn(8)", "resnet8(8,2)"], half=True) == "resnet19"
    assert models.server_for(["resnet20", "cnn"], half=False) == "resnet56"


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("name", ["own:net", "resnet18", "kgf(cnn)", "yolox_tiny"])
def test_for_other_models_there_is_none(name, half):
    assert models.server_for(["cnn", name], half=half) is None


def test_vectors_are_no_features_for_a_half():
    assert models.server_for(["mlp(16)"], half=True) is None
