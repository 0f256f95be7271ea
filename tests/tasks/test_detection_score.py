"""Average precision: hand-made cases, in pixels of the files."""

from __future__ import annotations

import pytest
import torch

from catchment.tasks import DETECTION
from catchment.tasks.detection import COLUMNS, MOST

pytest.importorskip("faster_coco_eval")


def label(*objects: tuple, scale: float = 1.0) -> torch.Tensor:
    """Objects as (class, left, top, right, bottom, area in the file, crowd)."""
    table = torch.zeros(MOST, COLUMNS)
    table[:, 0], table[:, 7] = -1, scale
    for row, one in zip(table, objects):
        row[:7] = torch.tensor(one, dtype=torch.float32)
    return table


def row(kind: int, box: tuple, confidence: float) -> tuple:
    return (0, 0, 8, *box, confidence, *(9 if kind == other else -9 for other in range(2)))


def score(images: list[tuple[list[tuple], torch.Tensor]], classes=("cat", "dog")):
    most = max(len(rows) for rows, _ in images)
    nothing = row(0, (0, 0, 1, 1), -20)
    outputs = torch.tensor([rows + [nothing] * (most - len(rows)) for rows, _ in images], dtype=torch.float32)
    return DETECTION.score([(outputs, torch.stack([truth for _, truth in images]))], classes)


def test_all_found_is_one():
    box = (10, 10, 60, 60)
    found = score([([row(0, box, 9)], label((0, *box, 2500, 0)))])
    assert found.accuracy == pytest.approx(1)
    assert found.more["AP50"] == pytest.approx(1)
    assert found.more["AP of cat"] == pytest.approx(1)
    assert "AP of dog" not in found.more  # there is none to find
    assert set(found.more) == {"AP50", "AP75", "APM", "AP of cat"}  # of middle size, 32 to 96 pixels wide


def test_half_found_is_half():
    cat, dog = (10, 10, 60, 60), (100, 100, 160, 160)
    found = score([([row(0, cat, 9)], label((0, *cat, 2500, 0), (1, *dog, 3600, 0)))])
    assert found.accuracy == pytest.approx(0.5)
    assert (found.more["AP of cat"], found.more["AP of dog"]) == (pytest.approx(1), 0)


def test_a_better_wrong_answer_costs_precision():
    cat = (10, 10, 60, 60)
    found = score([([row(0, cat, 2), row(0, (200, 200, 250, 250), 9)], label((0, *cat, 2500, 0)))])
    assert found.accuracy == pytest.approx(0.5)


def test_a_box_counts_from_the_overlap_on():
    truth, shorter = (0, 0, 100, 100), (0, 0, 100, 72)  # overlap 0.72: right at 0.5, 0.55 ... 0.7, wrong above
    found = score([([row(0, shorter, 9)], label((0, *truth, 10000, 0)))])
    assert found.more["AP50"] == pytest.approx(1)
    assert found.more["AP75"] == 0
    assert found.accuracy == pytest.approx(0.5)


def test_sizes_are_those_of_the_files():
    box = (1, 1, 11, 11)  # ten pixels here, 40 in a file of four times the size
    found = score([([row(0, box, 9)], label((0, *box, 1600, 0), scale=0.25))])
    assert "APM" in found.more
    assert "APS" not in found.more


def test_a_crowd_is_neither_right_nor_wrong():
    cat, crowd = (10, 10, 60, 60), (100, 100, 300, 300)
    rows = [row(0, cat, 5), row(0, (120, 120, 160, 160), 9)]
    assert score([(rows, label((0, *cat, 2500, 0), (0, *crowd, 40000, 1)))]).accuracy == pytest.approx(1)
    assert score([(rows, label((0, *cat, 2500, 0)))]).accuracy == pytest.approx(0.5)


def test_nothing_found_and_nothing_to_find():
    cat = (10, 10, 60, 60)
    silent = score([([row(0, cat, -20)], label((0, *cat, 2500, 0)))])
    assert (silent.accuracy, silent.more["AP of cat"]) == (0, 0)
    empty = score([([row(0, cat, 9)], label())])
    assert empty.accuracy == 0
    assert empty.samples == 1
