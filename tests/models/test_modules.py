"""How a network falls into modules."""

import pytest
import torch
from torch import Tensor, nn

from catchment import models

SHAPE = (3, 32, 32)


def modules(name: str) -> list[list[str]]:
    return models.modules_of(models.build(name, SHAPE, 10, seed=0), SHAPE)


@pytest.mark.parametrize("name", ["resnet18", "kgf(resnet18)"])
def test_resnet18_has_the_18_modules_of_the_paper(name):
    found = modules(name)
    assert len(found) == 18
    # A convolution with its normalisation has six tensors; a shortcut belongs to the second module of its block.
    assert [len(names) for names in found] == [6, 6, 6, 6, 6, 6, 12, 6, 6, 6, 12, 6, 6, 6, 12, 6, 6, 2]
    assert found[6] == [
        f"classifier.2.{part}"
        for part in (
            *(f"body.3.{name}" for name in ["weight"]),
            *(f"body.4.{name}" for name in NORM),
            *(f"shortcut.0.{name}" for name in ["weight"]),
            *(f"shortcut.1.{name}" for name in NORM),
        )
    ]


NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


@pytest.mark.parametrize(("name", "count"), [("lenet", 5), ("cnn", 3), ("mlp", 2), ("resnet8", 8), ("basic(16,1)", 10)])
def test_every_layer_begins_a_module(name, count):
    assert len(modules(name)) == count


@pytest.mark.parametrize("name", ["resnet18", "lenet", "resnet20", "kgf(cnn,8)"])
def test_every_tensor_is_in_exactly_one_module(name):
    names = [name for module in modules(name) for name in module]
    assert sorted(names) == sorted(models.build(name, SHAPE, 10, seed=0).state_dict())


class Odd(nn.Module):
    """Layers registered in another order than they work, weights of its own, and a layer that never works."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.last = nn.Linear(4, 2)
        self.first = nn.Conv2d(3, 4, 1)
        self.idle = nn.Linear(1, 1)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, images: Tensor) -> Tensor:
        return self.last(self.norm(self.first(images)).mean((2, 3)) * self.scale)


def test_modules_are_in_the_order_of_work_and_nothing_is_forgotten():
    first, last = models.modules_of(Odd(), (3, 2, 2))
    assert set(first) == {
        "scale", "first.weight", "first.bias", "idle.weight", "idle.bias", *(f"norm.{name}" for name in NORM)
    }  # fmt: skip
    assert last == ["last.weight", "last.bias"]


def test_a_model_without_layers_is_one_module():
    assert models.modules_of(nn.Sequential(nn.BatchNorm2d(3)), (3, 2, 2)) == [[f"0.{name}" for name in NORM]]
