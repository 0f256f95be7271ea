"""Augmentation of images with boxes: the boxes stay where the objects are."""

from __future__ import annotations

import pytest
import torch

from catchment.errors import ExperimentError
from catchment.tasks import DETECTION, Rows
from catchment.tasks.detection import COLUMNS, MOST
from catchment.tasks.mosaic import coloured, mirrored, window

SIDE = 32


def picture(left: int, top: int, right: int, bottom: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A white object on black, and its label."""
    image = torch.zeros(3, SIDE, SIDE, dtype=torch.uint8)
    image[:, top:bottom, left:right] = 255
    label = torch.zeros(MOST, COLUMNS)
    label[:, 0], label[:, 7] = -1, 0.5
    label[0, :5] = torch.tensor([1, left, top, right, bottom])
    return image, label


def pictures(count: int) -> Rows:
    made = [picture(2 + k % 5, 4 + k % 7, 20 + k % 9, 16 + k % 11) for k in range(count)]
    return Rows(
        torch.stack([image for image, _ in made]), torch.stack([label for _, label in made]), torch.arange(count)
    )


def bright(image: torch.Tensor) -> list[int]:
    """Where an image is white: left, top, right, bottom."""
    rows, columns = (image.float().mean(0) > 127).nonzero().unbind(1)
    return [int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1]


def test_a_mirrored_box_is_where_the_object_is():
    image, label = picture(2, 4, 20, 16)
    images, labels = mirrored(image[None], label[None])
    assert labels[0, 0, 1:5].tolist() == bright(images[0]) == [12, 4, 30, 16]
    assert labels[0, 1].tolist() == label[1].tolist()  # where there is no object, nothing moves


@pytest.mark.parametrize(
    ("size", "down", "right"), [(1.0, 0.5, 0.5), (0.0, 0.0, 0.0), (0.0, 0.0, 0.3), (0.5, 0.2, 0.1)]
)
def test_boxes_in_a_window_are_where_the_objects_are(size, down, right):
    image, label = picture(2, 4, 20, 16)
    black, nothing = torch.zeros_like(image), label.clone()
    nothing[:, 0], nothing[:, 1:5] = -1, 0
    made, table = window(
        torch.stack([image, black, black, black]), torch.stack([label, nothing, nothing, nothing]), size, down, right
    )
    assert table[:, 0].tolist() == [1] + [-1] * (MOST - 1)
    assert table[0, 1:5].tolist() == pytest.approx(bright(made), abs=1)
    assert table[:, 7].unique().tolist() == [0.5]


def test_a_box_of_which_little_is_left_goes():
    image, label = picture(0, 0, 20, 20)
    images, labels = image.expand(4, -1, -1, -1), label.expand(4, -1, -1)
    _, table = window(images, labels, 0.0, 0.5, 0.5)  # from 16 to 48 in both directions
    assert (table[:, 0] >= 0).sum() == 1  # of the last image; of the first 4 x 4 of 20 x 20 pixels are left, too little
    assert table[0, 1:5].tolist() == [16, 16, 32, 32]


def test_colours_keep_the_mean_grey_and_the_dtype():
    images = torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8)
    assert torch.equal(coloured(images, torch.ones(2, 3)), images)
    grey = coloured(images, torch.tensor([[1.0, 1.0, 0.0], [0.5, 1.0, 1.0]]))
    assert bool((grey[0] == grey[0, :1]).all())
    torch.testing.assert_close(grey[1].float(), images[1].float() / 2, rtol=0, atol=0.6)


@pytest.mark.parametrize("names", [("flip",), ("colour",), ("mosaic",), ("mosaic", "flip", "colour")])
def test_what_happens_depends_on_seed_and_id_alone(names):
    everything = pictures(12)
    images, labels = DETECTION.augment(everything, everything, names, 7)
    few = Rows(*(tensor[3:6] for tensor in everything))
    some, tables = DETECTION.augment(few, everything, names, 7)
    assert torch.equal(some, images[3:6])
    assert torch.equal(tables, labels[3:6])
    other, _ = DETECTION.augment(everything, everything, names, 8)
    assert not torch.equal(other, images)
    assert DETECTION.refuses(labels, 2) == ""
    assert torch.equal(everything.images, pictures(12).images)  # the data set is as it was


def test_normalised_images_are_refused():
    rows = pictures(2)
    with pytest.raises(ExperimentError, match="normalised already"):
        DETECTION.augment(rows._replace(images=rows.images.float()), rows, ("flip",), 0)
