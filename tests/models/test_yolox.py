"""YOLOX: its sizes, and where its outputs say that boxes are."""

from __future__ import annotations

import pytest
import torch

from catchment.errors import ModelError
from catchment.models import build, parameters


@pytest.mark.parametrize(("size", "count"), [("nano", 912_159), ("tiny", 5_055_855), ("s", 8_968_255)])
def test_it_has_as_many_parameters_as_published(size, count):
    assert parameters(build(f"yolox_{size}", (3, 64, 64), 80, 0)) == count


def test_outputs_are_rows_of_three_grids():
    model = build("yolox_nano", (3, 64, 96), 3, 0).eval()
    with torch.no_grad():
        rows = model(torch.rand(2, 3, 64, 96))
    assert rows.shape == (2, 8 * 12 + 4 * 6 + 2 * 3, 8 + 3)
    assert rows[0, :2, :3].tolist() == [[4, 4, 8], [12, 4, 8]]  # middle and stride of the first two places
    assert rows[0, 12, :3].tolist() == [4, 12, 8]  # the next row of the finest grid
    assert rows[1, 96, :3].tolist() == [8, 8, 16]
    assert rows[1, -1, :3].tolist() == [80, 48, 32]


def test_a_box_is_decoded_from_its_place_and_stride():
    model = build("yolox_nano", (3, 64, 64), 3, 0).eval()
    head = model.heads[1]  # of stride 16
    with torch.no_grad():
        head.boxes.weight.zero_()
        head.boxes.bias.copy_(torch.tensor([0.5, 0.25, 0.0, 1.0]))  # right, down, width and height
        row = model(torch.rand(1, 3, 64, 64))[0, 64 + 5]  # row 1, column 1 of a grid of 4 x 4
    middle, size = torch.tensor([1.5, 1.25]) * 16, torch.tensor([1.0, torch.e]) * 16
    torch.testing.assert_close(row[3:7], torch.cat([middle - size / 2, middle + size / 2]))


def test_every_weight_is_trained_and_objects_are_rare_at_first():
    model = build("yolox_nano", (3, 64, 64), 3, 0)
    rows = model(torch.rand(2, 3, 64, 64))
    assert rows[..., 7].sigmoid().mean().item() == pytest.approx(0.01, abs=0.01)
    rows.square().mean().backward()
    assert all(bool(weight.grad.abs().sum() > 0) for weight in model.parameters())


def test_sides_are_multiples_of_32():
    with pytest.raises(ModelError, match="multiples of 32, not 64 x 80"):
        build("yolox_s", (3, 64, 80), 3, 0)
    with pytest.raises(ModelError, match="from 32x32 upward"):
        build("yolox_s", (3, 16, 16), 3, 0)
