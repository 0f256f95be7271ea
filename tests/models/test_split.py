"""Models in two parts, and whether an edge model and a server half fit together."""

import pytest
import torch
from torch import nn

from catchment import models
from catchment.errors import ModelError

SHAPE = (1, 8, 8)


class Own(nn.Module):
    """A user's module with the two attributes and a forward that does something else on top."""

    def __init__(self):
        super().__init__()
        self.extractor = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(4 * 6 * 6, 10))

    def forward(self, images):
        return 2 * self.classifier(self.extractor(images))


class Counting(nn.Module):
    """Changes its buffers in evaluation mode too: one in place, one by assignment."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))
        self.register_buffer("asked", torch.zeros(1))

    def forward(self, images):
        self.seen += len(images)
        self.asked = self.asked + 1
        return images


def fit(edge, half, shape=SHAPE, classes=10):
    models.check_pair(edge, half, shape, classes, "small", "large")


def objection(*arguments, **named):
    with pytest.raises(ModelError) as caught:
        fit(*arguments, **named)
    return str(caught.value)


def test_forward_is_the_classifier_of_the_features():
    model = models.SplitModel(nn.Flatten(), nn.Linear(64, 10))
    images = torch.rand(3, *SHAPE)
    assert torch.equal(model(images), model.classifier(images.flatten(1)))
    assert [name for name, _ in model.named_children()] == ["extractor", "classifier"]


def test_what_is_split():
    assert models.is_split(models.build("resnet8", SHAPE, 10, seed=0))
    assert models.is_split(Own())
    assert not models.is_split(nn.Linear(3, 3))
    only_half = nn.Module()
    only_half.extractor = nn.Identity()
    assert not models.is_split(only_half)
    only_half.classifier = "not a module"
    assert not models.is_split(only_half)


def test_the_feature_shape_of_a_users_module():
    assert models.feature_shape(Own(), SHAPE) == (4, 6, 6)


def test_asking_for_the_feature_shape_changes_nothing():
    model = models.build("resnet8", SHAPE, 10, seed=0)
    model(torch.rand(4, *SHAPE))  # so that the running statistics are not zero and one
    model.train()
    model.extractor[1].eval()  # a frozen normalisation stays frozen
    modes = [part.training for part in model.modules()]
    before = {key: value.clone() for key, value in model.state_dict().items()}
    generator = torch.get_rng_state()
    assert models.feature_shape(model, SHAPE) == (16, 8, 8)
    assert [part.training for part in model.modules()] == modes
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_buffers_that_change_in_evaluation_mode_stay_too():
    model = models.SplitModel(Counting(), nn.Flatten())
    assert models.feature_shape(model, SHAPE) == SHAPE
    assert model.extractor.seen.item() == model.extractor.asked.item() == 0
    model(torch.rand(2, *SHAPE))
    assert model.extractor.seen.item() == 2  # the buffers are still the module's own


def test_the_mode_is_restored_after_a_failure():
    model = models.build("cnn", SHAPE, 10, seed=0)
    with pytest.raises(ModelError, match=r'the extractor of model "SplitModel" cannot take images of 3x8x8: '):
        models.feature_shape(model, (3, 8, 8))
    assert all(part.training for part in model.modules())


def test_the_image_has_the_type_of_the_model():
    assert models.feature_shape(models.build("cnn", SHAPE, 10, seed=0).double(), SHAPE) == (16, 4, 4)


def test_no_features_to_give():
    with pytest.raises(ModelError) as caught:
        models.feature_shape(nn.Linear(3, 3), SHAPE)
    assert str(caught.value) == (
        'model "Linear" has no extractor for features: let its function return '
        "catchment.models.SplitModel(extractor, classifier), or a module with these two attributes"
    )


@pytest.mark.parametrize("edge_name", ["resnet4", "resnet8", "cnn", "resnet11", "resnet8(16,2,1)"])
def test_pairs_that_fit(edge_name):
    """One half serves all of them, as their features all have 16 channels."""
    edge = models.build(edge_name, SHAPE, 10, seed=0)
    half = models.build("resnet10", (16, 8, 8), 10, seed=0)
    before = {key: value.clone() for key, value in half.state_dict().items()}
    fit(edge, half)
    assert edge.training
    assert all(part.training for part in half.modules())
    assert all(torch.equal(value, before[key]) for key, value in half.state_dict().items())


def test_a_half_for_other_channels():
    edge = models.build("resnet8", SHAPE, 10, seed=0)
    half = models.build("resnet10", (64, 8, 8), 10, seed=0)
    assert objection(edge, half) == (
        'models "small" and "large" do not fit: "small" turns images of 1x8x8 into features of 16x8x8, '
        'but "large" takes maps of 64 channels'
    )


def test_a_half_for_other_vectors():
    half = nn.Sequential(nn.Flatten(), nn.Linear(100, 10))
    assert objection(models.build("resnet8", SHAPE, 10, seed=0), half) == (
        'models "small" and "large" do not fit: "small" turns images of 1x8x8 into features of 16x8x8, '
        'but "large" cannot take them: '
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (1x1024 and 100x10)"
    )


def test_vectors_for_a_half_that_takes_maps():
    edge = models.build("mlp(32)", SHAPE, 10, seed=0)
    assert objection(edge, models.build("resnet10", (16, 8, 8), 10, seed=0)) == (
        'models "small" and "large" do not fit: "small" turns images of 1x8x8 into features of 32, '
        'but "large" takes maps of 16 channels'
    )


def test_other_numbers_of_logits():
    edge = models.build("resnet8", SHAPE, 10, seed=0)
    half = models.build("resnet10", (16, 8, 8), 100, seed=0)
    made = '"small" turns images of 1x8x8 into features of 16x8x8'
    assert objection(edge, half) == (
        f'models "small" and "large" do not fit: {made}, and "large" turns these into '
        "an output of shape (1, 100), but 10 classes need (1, 10)"
    )
    assert objection(edge, half, classes=100) == (
        f'models "small" and "large" do not fit: {made}, and "small" turns these into '
        "an output of shape (1, 10), but 100 classes need (1, 100)"
    )


def test_a_half_that_gives_no_tensor():
    class Twice(nn.Module):
        def forward(self, features):
            return features, features

    assert objection(models.build("cnn", SHAPE, 10, seed=0), Twice()) == (
        'models "small" and "large" do not fit: "small" turns images of 1x8x8 into features of 16x4x4, '
        'but "large" cannot take them: '
        "TypeError: the output should be one tensor, not an object of type tuple"
    )


def test_an_edge_model_without_features():
    assert objection(nn.Identity(), nn.Identity()).startswith('model "small" has no extractor for features: ')


def test_an_edge_model_for_other_images():
    edge = models.build("resnet8", (3, 8, 8), 10, seed=0)
    assert objection(edge, nn.Identity()).startswith(
        'the extractor of model "small" cannot take images of 1x8x8: RuntimeError: '
    )
