"""From features back to images."""

import pytest
import torch
from torch import nn

from catchment.privacy.decoders import (
    convolutional_decoder,
    feature_maps,
    known_features,
    linear_decoder,
    standardised,
)
from catchment.privacy.likeness import correlation


def images(count, *shape, seed=0):
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed))


def test_a_linear_map_takes_mixed_channels_apart_again():
    mix = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, -1.0], [1.0, 0.0, 3.0]])
    own, private = images(40, 3, 6, 6), images(5, 3, 6, 6, seed=1)
    known, heard = (torch.einsum("ij,njhw->nihw", mix, batch) for batch in (own, private))
    assert torch.allclose(linear_decoder(known, own)(heard), private, atol=1e-2)


def test_a_linear_map_from_smaller_maps_gives_blocks_of_pixels():
    own, private = images(40, 1, 8, 8), images(5, 1, 8, 8, seed=1)
    known, heard = (torch.pixel_unshuffle(batch, 2) for batch in (own, private))
    assert known.shape == (40, 4, 4, 4)
    assert torch.allclose(linear_decoder(known, own)(heard), private, atol=1e-2)


@pytest.mark.parametrize("shape", [(16,), (1, 3, 3)])
def test_vectors_and_maps_that_do_not_fit_are_taken_as_a_whole(shape):
    own = images(60, 1, 4, 4)
    maps = feature_maps(images(60, *shape), own.shape[1:])
    assert maps.shape == (60, torch.Size(shape).numel(), 1, 1)
    vectors = own.flatten(1).flip(1)
    assert torch.allclose(
        linear_decoder(feature_maps(vectors, own.shape[1:]), own)(vectors[..., None, None]), own, atol=1e-2
    )


def test_a_decoder_learns_and_is_the_same_for_the_same_seed():
    own, private = images(100, 1, 4, 4), images(10, 1, 4, 4, seed=1)
    taught = convolutional_decoder(own.square(), own.abs(), 30, seed=3)(private.square())
    assert correlation(taught, private.abs()).mean() > 0.9
    assert torch.equal(taught, convolutional_decoder(own.square(), own.abs(), 30, seed=3)(private.square()))
    assert not torch.equal(taught, convolutional_decoder(own.square(), own.abs(), 30, seed=4)(private.square()))


@pytest.mark.parametrize("training", [True, False])
def test_features_are_made_in_the_mode_in_which_clients_made_theirs(training):
    extractor = nn.BatchNorm2d(2)
    with torch.no_grad():
        extractor.running_mean += 5
    own, private = images(60, 2, 4, 4), images(60, 2, 4, 4, seed=1)
    heard = private if training else private - 5
    found = known_features(extractor, own, heard)
    assert found.mean().item() == pytest.approx(0 if training else -5, abs=0.2)


def test_standardised_features_do_not_tell_how_an_extractor_scales_them():
    maps = images(20, 3, 4, 4)
    moved = maps * torch.tensor([1.0, 5.0, 0.1]).view(3, 1, 1) + 2
    assert torch.allclose(standardised(maps), standardised(moved), atol=1e-3)


def test_a_linear_decoder_of_one_number_is_ridge_regression():
    """Pixel = 2 x feature + 1 for features -1, 0, 1; the ridge is 1e-4 of the mean square of a patch, of 2 and 3."""
    known = torch.tensor([-1.0, 0.0, 1.0]).view(3, 1, 1, 1)
    found = linear_decoder(known, 2 * known + 1)(torch.tensor([3.0]).view(1, 1, 1, 1)).item()
    ridge = 1e-4 * (2 + 3) / 2
    assert found == pytest.approx(3 * 4 / (2 + ridge) + 3 / (3 + ridge))


def test_maps_whose_size_divides_that_of_the_image_stay_maps():
    maps = images(2, 5, 2, 4)
    assert feature_maps(maps, torch.Size((1, 4, 8))) is maps
