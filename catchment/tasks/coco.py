"""Average precision by COCO's rules, which faster-coco-eval knows."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from catchment.errors import needs
from catchment.tasks.boxes import Found

MEASURES = ("mAP", "AP50", "AP75", "APS", "APM", "APL")  # the first of COCO's twelve numbers


def average_precision(truths: Sequence[Tensor], found: Sequence[Found], classes: Sequence[str]) -> dict[str, float]:
    """COCO's numbers by name, and "AP of ..." for each class; those without an object to find are left out.

    Truths are rows of labels per image. Without any object, mAP is 0.
    """
    with needs("measuring detection", "detection"):
        from faster_coco_eval import COCO, COCOeval_faster
    logging.getLogger("faster_coco_eval").setLevel(logging.WARNING)
    objects = [_object(number, row) for number, truth in enumerate(truths) for row in truth.tolist()]
    for number, one in enumerate(objects):
        one["id"] = number + 1
    answers = [answer for number, one in enumerate(found) for answer in _answers(number, one)]
    if not objects or not answers:
        present = {one["category_id"] for one in objects if not one["iscrowd"]}
        return {"mAP": 0.0, "AP50": 0.0, "AP75": 0.0} | {f"AP of {classes[k]}": 0.0 for k in sorted(present)}
    images = [{"id": number, "width": 1, "height": 1} for number in range(len(truths))]
    truth = COCO(
        {
            "images": images,
            "annotations": objects,
            "categories": [{"id": number, "name": name} for number, name in enumerate(classes)],
        }
    )
    evaluator = COCOeval_faster(truth, truth.loadRes(answers), "bbox", print_function=lambda *_: None)
    evaluator.evaluate()
    evaluator.accumulate()
    evaluator.summarize()
    measured = {name: float(value) for name, value in zip(MEASURES, evaluator.stats) if value >= 0}
    precision: Any = np.asarray(evaluator.eval["precision"])[:, :, :, 0, -1]  # [overlaps, recalls, classes]
    for number, name in enumerate(classes):
        own = precision[:, :, number]
        if (own > -1).any():
            measured[f"AP of {name}"] = float(own[own > -1].mean())
    return {"mAP": 0.0, **measured}


def _object(image: int, row: Sequence[float]) -> dict[str, Any]:
    kind, left, top, right, bottom, area, crowd, _ = row
    return {
        "image_id": image,
        "category_id": int(kind),
        "bbox": [left, top, right - left, bottom - top],
        "area": area,
        "iscrowd": int(crowd),
    }


def _answers(image: int, found: Found) -> list[dict[str, Any]]:
    return [
        {"image_id": image, "category_id": kind, "bbox": [left, top, right - left, bottom - top], "score": score}
        for (left, top, right, bottom), score, kind in zip(
            found.boxes.tolist(), found.scores.tolist(), found.classes.tolist()
        )
    ]
