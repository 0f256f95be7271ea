"""Overlaps, suppression, SimOTA and the loss, on hand-made cases and against slow versions."""

from __future__ import annotations

import math

import pytest
import torch

from catchment.tasks import DETECTION
from catchment.tasks.assignment import Places, assign
from catchment.tasks.boxes import all_overlaps, areas, suppressed
from catchment.tasks.detection import COLUMNS, MOST, find
from catchment.tasks.drawing import COLOURS, with_boxes


def label(*objects: tuple, scale: float = 1.0) -> torch.Tensor:
    """Objects as (class, left, top, right, bottom) or with (..., area, crowd) after them."""
    table = torch.zeros(MOST, COLUMNS)
    table[:, 0], table[:, 7] = -1, scale
    for row, one in zip(table, objects):
        row[: len(one)] = torch.tensor(one, dtype=torch.float32)
        if len(one) == 5:
            row[5] = areas(row[1:5]) / scale**2
    return table


def outputs(*rows: tuple, classes: int = 2) -> torch.Tensor:
    """Rows as (x, y, stride, left, top, right, bottom, objectness, *logits)."""
    table = torch.tensor(rows, dtype=torch.float32)
    assert table.shape[1] == 8 + classes
    return table[None]


# ---- overlaps and suppression -----------------------------------------------------------------------------------


def test_overlap_is_shared_area_over_joint_area():
    boxes = torch.tensor([[0.0, 0, 2, 2], [1, 1, 3, 3], [5, 5, 6, 6], [0, 0, 0, 0]])
    found = all_overlaps(boxes, boxes)
    assert found[0].tolist() == pytest.approx([1, 1 / 7, 0, 0])
    assert found[3, 3] == 0  # nothing overlaps nothing


def slowly_suppressed(boxes, scores, classes, most):
    left = sorted(range(len(boxes)), key=lambda number: -scores[number])
    stay = []
    while left:
        best = left.pop(0)
        stay.append(best)
        left = [
            other
            for other in left
            if classes[other] != classes[best] or float(all_overlaps(boxes[[best]], boxes[[other]])) <= most
        ]
    return stay


@pytest.mark.parametrize("seed", range(20))
def test_suppression_equals_a_slow_loop(seed):
    generator = torch.Generator().manual_seed(seed)
    corners = torch.rand(60, 2, generator=generator) * 20
    boxes = torch.cat([corners, corners + 1 + torch.rand(60, 2, generator=generator) * 10], 1)
    scores = (torch.rand(60, generator=generator) * 20).round() / 20  # with ties
    classes = torch.randint(0, 3, (60,), generator=generator)
    found = suppressed(boxes, scores, classes, 0.4).tolist()
    assert found == slowly_suppressed(boxes, scores.tolist(), classes.tolist(), 0.4)


def test_found_objects_are_the_best_of_their_class():
    rows = outputs(
        (0, 0, 8, 0, 0, 10, 10, 5, 5, -9),
        (0, 0, 8, 0, 0, 10, 9, 4, 5, -9),  # nearly the same box, worse: goes
        (0, 0, 8, 0, 0, 10, 9, 4, -9, 5),  # the same of another class: stays
        (0, 0, 8, 0, 0, 10, 10, -9, 5, 5),  # no object
    )[0]
    found = find(rows)
    assert found.classes.tolist() == [0, 1]
    assert found.boxes.tolist() == [[0, 0, 10, 10], [0, 0, 10, 9]]
    assert found.scores[0] == pytest.approx((1 / (1 + math.exp(-5))) ** 2, rel=1e-5)


# ---- SimOTA -----------------------------------------------------------------------------------------------------


def grid(boxes: torch.Tensor, side: int = 4, stride: float = 8.0, classes: int = 2) -> Places:
    """Places of a grid; all predict these boxes, and nothing of objects and classes."""
    steps = (torch.arange(side) + 0.5) * stride
    middles = torch.stack([steps.repeat(side), steps.repeat_interleave(side)], 1)
    count = side**2
    return Places(middles, torch.full((count,), stride), boxes, torch.zeros(count), torch.zeros(count, classes))


def test_an_object_gets_as_many_places_as_its_best_overlaps_sum_to():
    truth = torch.tensor([[8.0, 8, 24, 24]])
    boxes = torch.zeros(16, 4)
    for place, share in {5: 1.0, 6: 0.75, 9: 0.5}.items():  # inside the object; overlaps 1, 0.75 and 0.5
        boxes[place] = torch.tensor([8, 8, 24, 8 + 16 * share])
    found = assign(grid(boxes), truth, torch.tensor([0]))
    assert found.places.tolist() == [5, 6]  # the sum is 2.25
    assert found.overlaps.tolist() == [1.0, 0.75]


def test_an_object_that_nothing_overlaps_still_gets_a_place_near_its_middle():
    found = assign(grid(torch.zeros(16, 4)), torch.tensor([[9.0, 9, 15, 15]]), torch.tensor([1]))
    assert found.places.tolist() == [5]  # the only place that is both inside and near


def test_a_place_that_two_objects_want_learns_the_cheaper_one():
    boxes = torch.zeros(16, 4)
    boxes[5] = torch.tensor([8.0, 8, 16, 16])
    truth = torch.tensor([[8.0, 8, 16, 16], [8, 8, 16, 15]])
    found = assign(grid(boxes), truth, torch.tensor([0, 0]))
    assert found.objects[found.places == 5].tolist() == [0]


def test_the_class_decides_between_equal_boxes():
    places = grid(torch.tensor([8.0, 8, 24, 9.6]).repeat(16, 1))  # overlap 0.1, so that the object gets one place
    logits = torch.zeros(16, 2)
    logits[10, 1], logits[5, 0] = 5, 5
    found = assign(places._replace(classes=logits), torch.tensor([[8.0, 8, 24, 24]]), torch.tensor([1]))
    assert found.places.tolist() == [10]


def test_objects_where_nobody_looks_are_left_out():
    found = assign(grid(torch.zeros(16, 4)), torch.tensor([[200.0, 200, 201, 201]]), torch.tensor([0]))
    assert found.places.tolist() == []


# ---- the loss ---------------------------------------------------------------------------------------------------


def bce(logit: float, target: float) -> float:
    p = 1 / (1 + math.exp(-logit))
    return -(target * math.log(p) + (1 - target) * math.log(1 - p))


def test_the_loss_by_hand():
    rows = outputs((4, 4, 8, 0, 0, 8, 6, 1.0, 2.0, -1.0), (100, 100, 8, 96, 96, 104, 104, -2.0, 0.0, 0.0))
    truth = label((0, 0.0, 0.0, 8.0, 8.0))[None]
    overlap = 48 / 64
    expected = 5 * (1 - overlap**2) + bce(1.0, 1) + bce(-2.0, 0) + bce(2.0, overlap) + bce(-1.0, 0)
    assert float(DETECTION.loss(rows, truth)) == pytest.approx(expected, rel=1e-5)


def test_an_image_without_boxes_teaches_that_there_is_nothing():
    rows = outputs((4, 4, 8, 0, 0, 8, 6, 1.0, 2.0, -1.0)).requires_grad_()
    loss = DETECTION.loss(rows, label()[None])
    assert loss.item() == pytest.approx(bce(1.0, 0), rel=1e-5)
    loss.backward()
    assert rows.grad[0, 0].nonzero()[:, 0].tolist() == [7]  # objectness alone


def test_crowds_are_not_learned():
    rows = outputs((4, 4, 8, 0, 0, 8, 6, 1.0, 2.0, -1.0))
    crowd = label((0, 0, 0, 8, 8, 64, 1))[None]
    assert torch.equal(DETECTION.loss(rows, crowd), DETECTION.loss(rows, label()[None]))


def test_a_step_against_the_gradient_lowers_the_loss():
    generator = torch.Generator().manual_seed(0)
    boxes = torch.rand(16, 4, generator=generator) * 8
    places = grid(torch.cat([boxes[:, :2], boxes[:, :2] + 8 + boxes[:, 2:]], 1))
    columns = [places.middles, places.strides[:, None], places.boxes, torch.randn(16, 3, generator=generator)]
    rows = torch.cat(columns, 1)[None].requires_grad_()
    truth = label((0, 2, 2, 14, 14), (1, 10, 12, 30, 28))[None]
    before = DETECTION.loss(rows, truth)
    before.backward()
    with torch.no_grad():
        assert float(DETECTION.loss(rows - 0.01 * rows.grad, truth)) < before.item()


# ---- what labels and models must look like ----------------------------------------------------------------------


def test_labels_that_cannot_be_used_are_refused():
    assert DETECTION.refuses(label((1, 0, 0, 2, 2))[None], 2) == ""
    assert "numbered 0 to 1" in DETECTION.refuses(label((2, 0, 0, 2, 2))[None], 2)
    assert "numbered 0 to 1" in DETECTION.refuses(label((0.5, 0, 0, 2, 2))[None], 2)
    assert "without area" in DETECTION.refuses(label((1, 2, 0, 2, 2))[None], 2)
    assert "scale" in DETECTION.refuses(label(scale=0.0)[None], 2)
    assert "expected float32 of shape [N, 100, 8]" in DETECTION.refuses(torch.zeros(3, dtype=torch.int64), 2)
    assert "expected [N, places, 10]" in DETECTION.refuses_model((2, 2), 2)


def test_the_main_class_is_the_one_with_the_largest_share_of_its_boxes():
    a, b = (0, 0, 0, 2, 2), (1, 0, 0, 2, 2)
    labels = torch.stack([label(a, a, a, b), label(a, a, a, a), label(), label(a, a, b)])
    # 9 boxes of class 0, 2 of class 1: the first and the last image have half of class 1, and less of class 0
    assert DETECTION.main_classes(labels, 2).tolist() == [1, 0, 0, 1]  # without boxes: number 2 modulo 2
    assert DETECTION.counts(labels, 3).tolist() == [9, 2, 0]


# ---- pictures ---------------------------------------------------------------------------------------------------


def test_a_drawn_box_is_a_frame_in_the_colour_of_its_class():
    image = with_boxes(torch.ones(3, 12, 12), torch.tensor([[2.0, 3, 10, 11], [-5, -5, 40, 40]]), torch.tensor([9, 0]))
    assert torch.equal(image[:, 3, 5], COLOURS[1])  # class 9 of eight colours
    assert image[:, 6, 6].tolist() == [1, 1, 1]
    assert torch.equal(image[:, 0, 0], COLOURS[0])  # a box beyond the image ends with it
