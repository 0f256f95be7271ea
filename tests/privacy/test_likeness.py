"""How much images are like others."""

import pytest
import torch

from catchment.privacy.likeness import correlation, correlations, structural_similarity


def test_correlation_knows_neither_scale_nor_brightness():
    image = torch.tensor([[[[1.0, 2.0], [3.0, 5.0]]]])
    assert correlation(image, 3 * image - 7).item() == pytest.approx(1)
    assert correlation(image, -image).item() == pytest.approx(-1)
    other = torch.tensor([[[[1.0, 1.0], [-1.0, -1.0]]]])  # (-1.75 - 0.75 - 0.25 - 2.25) / sqrt(8.75 * 4)
    assert correlation(image, other).item() == pytest.approx(-5 / 35**0.5)
    assert correlations(image, torch.cat([image, other]))[0].tolist() == pytest.approx([1, -5 / 35**0.5])


def test_structural_similarity_of_flat_images_is_that_of_their_brightness():
    dark, light = torch.full((1, 1, 8, 8), 0.2), torch.full((1, 1, 8, 8), 0.6)
    assert structural_similarity(dark, light).item() == pytest.approx((0.24 + 1e-4) / (0.04 + 0.36 + 1e-4), rel=1e-3)
    noise = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0)).sigmoid()
    assert structural_similarity(noise, noise).item() == pytest.approx(1)
    assert structural_similarity(noise, 1 - noise).item() < 0


def test_a_flat_image_is_like_no_other():
    flat, other = torch.ones(1, 1, 2, 2), torch.tensor([[[[1.0, 2.0], [3.0, 5.0]]]])
    assert correlation(flat, other).item() == 0


def test_structural_similarity_is_a_number_per_image_and_takes_images_smaller_than_its_window():
    first, second = torch.full((1, 1, 2, 2), 0.2), torch.full((1, 1, 2, 2), 0.6)
    found = structural_similarity(torch.cat([first, first]), torch.cat([first, second]))
    assert found.tolist() == pytest.approx([1, (0.24 + 1e-4) / (0.04 + 0.36 + 1e-4)], rel=1e-3)
