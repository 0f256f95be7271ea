"""Sheets of images for people to look at."""

import io

import pytest
import torch
from PIL import Image

from catchment.data import Normalisation
from catchment.data.pictures import sheet


def opened(images, normalise):
    return Image.open(io.BytesIO(sheet(images, normalise)))


def test_pixels_come_back_as_they_were_before_normalising():
    pixels = torch.arange(3 * 64 * 64).remainder(256).to(torch.uint8).reshape(1, 3, 64, 64)
    normalise = Normalisation(255, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    image = opened(normalise(pixels), normalise)
    assert (image.mode, image.size) == ("RGB", (64, 64))
    assert image.getpixel((5, 7)) == tuple(pixels[0, :, 7, 5].tolist())


def test_grey_images_lie_side_by_side_and_small_ones_are_enlarged():
    levels = torch.tensor([0.0, 0.2, 0.4, 0.6, 0.8])
    images = levels.view(5, 1, 1, 1).expand(5, 1, 8, 8)
    image = opened(images, Normalisation(16, (0.0,), (1.0,)))
    assert (image.mode, image.size) == ("L", (3 * 56 + 2 * 2, 2 * 56 + 2))
    assert [image.getpixel((58 * (n % 3), 58 * (n // 3))) for n in range(5)] == [0, 51, 102, 153, 204]
    assert image.getpixel((56, 0)) == 255  # between two images
    assert image.getpixel((2 * 58, 58)) == 255  # nothing there


def test_so_many_lie_in_a_row_as_asked_for():
    assert opened(torch.zeros(6, 1, 60, 60), Normalisation(255, (0.5,), (0.5,))).size == (3 * 62 - 2, 2 * 62 - 2)
    wide = sheet(torch.zeros(6, 1, 60, 60), Normalisation(255, (0.5,), (0.5,)), columns=6)
    assert Image.open(io.BytesIO(wide)).size == (6 * 62 - 2, 60)


@pytest.mark.parametrize(("value", "pixel"), [(-9.0, 0), (9.0, 255)])
def test_values_beyond_the_range_are_cut(value, pixel):
    assert opened(torch.full((1, 1, 60, 60), value), Normalisation(255, (0.5,), (0.5,))).getpixel((0, 0)) == pixel
