"""Detection: boxes with classes, the loss of YOLOX, average precision by COCO's rules.

The label of an image is a table of 100 rows: class (-1: no object), left, top, right, bottom in pixels of the image as
the model sees it, the area in pixels of the file, whether it is a crowd, and how much smaller than in its file the
image is. The last one stands in all rows. Crowds are not learned, and finding them is neither right nor wrong.

A model gives one row per place where it looks: middle of the place (x, y), stride, box (left, top, right, bottom), the
logit that there is an object, and one logit per class.

Departures from YOLOX: no L1 loss in the last epochs; colours and mosaic are simpler (`catchment.tasks.mosaic`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from catchment.tasks import mosaic
from catchment.tasks.assignment import Places, assign
from catchment.tasks.boxes import Found, overlaps, suppressed
from catchment.tasks.coco import average_precision
from catchment.tasks.drawing import with_boxes
from catchment.tasks.task import Label, Rows, Score, Task

MOST = 100  # objects per image, as in COCO's rules
CLASS, BOX, AREA, CROWD, SCALE = 0, slice(1, 5), 5, 6, 7  # columns of a label
COLUMNS = 8
FIRST_LOGITS = 8  # columns of an output before the logits of classes
BOX_WEIGHT = 5.0
SHOWN_SCORE = 0.3  # of boxes that are drawn
LEAST_SCORE = 0.01  # of boxes that count as found
MOST_OVERLAP = 0.65  # of two boxes of one class
MOST_BEFORE = 1000  # boxes per image that suppression looks at


class Detection(Task):
    """Labels are tables of boxes, outputs are rows of `8 + C` numbers."""

    name: ClassVar[str] = "detection"
    augmentations: ClassVar[tuple[str, ...]] = mosaic.AUGMENTATIONS
    evaluation_batch: ClassVar[int] = 16

    def label(self, classes: int) -> Label:
        """A table of boxes."""
        return Label((MOST, COLUMNS), torch.float32, -1e5, 1e10)

    def refuses(self, labels: Tensor, classes: int) -> str:
        """Classes must be numbers of classes, boxes must have an area."""
        why = super().refuses(labels, classes)
        if why:
            return why
        kinds, boxes = labels[..., CLASS], labels[..., BOX]
        if bool(((kinds != kinds.round()) | (kinds < -1) | (kinds >= classes)).any()):
            return f"classes of boxes are not among those numbered 0 to {classes - 1}"
        if bool(((boxes[..., 2:] <= boxes[..., :2]).any(-1) & (kinds >= 0)).any()):
            return "there are boxes without area"
        return "" if bool((labels[..., SCALE] > 0).all()) else "there are images whose scale is not above 0"

    def refuses_model(self, outputs: tuple[int, ...], classes: int) -> str:
        """A row has eight numbers before the logits of classes."""
        expected = FIRST_LOGITS + classes
        fits = len(outputs) == 3 and outputs[2] == expected
        return "" if fits else f"outputs have shape {list(outputs)}, expected [N, places, {expected}]; use YOLOX"

    def main_classes(self, labels: Tensor, classes: int) -> Tensor:
        """The class of whose boxes an image has the largest share of all; without boxes, its number modulo classes.

        Counting boxes alone, the most frequent class would be the main one nearly everywhere. Ties go to the rarer
        class.
        """
        kinds = labels[..., CLASS].long()
        boxes = F.one_hot(kinds + 1, classes + 1).sum(1)[:, 1:].double()  # [N, C], how many of each
        total = boxes.sum(0)
        by_rarity = total.argsort(stable=True)
        share = (boxes / total.clamp(min=1))[:, by_rarity]
        in_turn = torch.arange(len(labels)) % classes
        return torch.where(boxes.sum(1) > 0, by_rarity[share.argmax(1)], in_turn)

    def counts(self, labels: Tensor, classes: int) -> Tensor:
        """How many boxes of each class there are."""
        kinds = labels[..., CLASS].long().flatten()
        return torch.bincount(kinds + 1, minlength=classes + 1)[1:]

    def augment(self, batch: Rows, everything: Rows, names: Sequence[str], seed: int) -> tuple[Tensor, Tensor]:
        """Mosaics, flips and colours, with the boxes."""
        return mosaic.augmented(batch, everything, names, seed)

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Boxes, objectness and classes, each summed over the batch and divided by the number of places that learn."""
        outputs = outputs.float()
        objectness = outputs[..., 7].contiguous()
        is_object = torch.zeros_like(objectness)
        box_loss = class_loss = objectness.sum() * 0
        learning = 0
        for number, (rows, label) in enumerate(zip(outputs, labels)):
            truth = label[(label[:, CLASS] >= 0) & (label[:, CROWD] == 0)]
            if not len(truth):
                continue
            kinds = truth[:, CLASS].long()
            assigned = assign(_places(rows), truth[:, BOX], kinds)
            chosen = rows[assigned.places]
            is_object[number, assigned.places] = 1
            learning += len(chosen)
            box_loss = box_loss + (1 - overlaps(chosen[:, 3:7], truth[assigned.objects, BOX]).square()).sum()
            logits = chosen[:, FIRST_LOGITS:]
            wanted = F.one_hot(kinds[assigned.objects], logits.shape[1]) * assigned.overlaps[:, None]
            class_loss = class_loss + F.binary_cross_entropy_with_logits(logits, wanted, reduction="sum")
        object_loss = F.binary_cross_entropy_with_logits(objectness, is_object, reduction="sum")
        return (BOX_WEIGHT * box_loss + object_loss + class_loss) / max(learning, 1)

    def drawn(self, images: Tensor, outputs: Tensor, labels: Tensor) -> Tensor | None:
        """Boxes in the colours of their classes: all true ones, and those found with some confidence."""
        true, found = [], []
        for image, rows, label in zip(images.cpu(), outputs, labels):
            truth = label[label[:, CLASS] >= 0]
            true.append(with_boxes(image, truth[:, BOX], truth[:, CLASS]))
            one = find(rows)
            sure = one.scores >= SHOWN_SCORE
            found.append(with_boxes(image, one.boxes[sure], one.classes[sure]))
        return torch.stack(true + found)

    def score(self, results: Iterable[tuple[Tensor, Tensor]], classes: Sequence[str]) -> Score:
        """Mean average precision, and its parts, in pixels of the files."""
        found: list[Found] = []
        truths: list[Tensor] = []
        loss = 0.0
        for outputs, labels in ((outputs.cpu(), labels.cpu()) for outputs, labels in results):
            loss += float(self.loss(outputs, labels)) * len(labels)
            for rows, label in zip(outputs, labels):
                one = find(rows)
                found.append(Found(one.boxes / label[0, SCALE], one.scores, one.classes))
                truth = label[label[:, CLASS] >= 0].clone()
                truth[:, BOX] /= label[0, SCALE]
                truths.append(truth)
        measured = average_precision(truths, found, classes)
        return Score(measured.pop("mAP"), loss / max(len(truths), 1), len(truths), measured)


def find(rows: Tensor) -> Found:
    """The objects in the outputs `[A, 8 + C]` of one image."""
    rows = rows.float()
    best, classes = rows[:, FIRST_LOGITS:].sigmoid().max(1)
    scores = best * rows[:, 7].sigmoid()
    order = scores.argsort(descending=True, stable=True)[:MOST_BEFORE]
    order = order[scores[order] >= LEAST_SCORE]
    boxes, scores, classes = rows[order, 3:7], scores[order], classes[order]
    stay = suppressed(boxes, scores, classes, MOST_OVERLAP)[:MOST]
    return Found(boxes[stay], scores[stay], classes[stay])


def _places(rows: Tensor) -> Places:
    return Places(rows[:, :2], rows[:, 2], rows[:, 3:7], rows[:, 7], rows[:, FIRST_LOGITS:])


DETECTION = Detection()
