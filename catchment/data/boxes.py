"""Images with boxes: COCO's JSON files, and Parquet files with a column `objects`.

COCO's layout is `annotations/instances_train2017.json` with the folder `train2017`, or `train.json` with the folder
`train`. In Parquet, `objects` is a struct of lists: `bbox` [left, top, width, height], `category`, and maybe `area` and
`iscrowd`. Images of all sizes are put into one square, at its top left, and the rest is grey.

What cannot be used is left out, and counted: images that cannot be decoded, boxes without area or outside of the image.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from catchment.data.annotations import Annotated, BoxSplit, open_json
from catchment.data.decoding import decoded
from catchment.data.samples import Samples
from catchment.data.splits import parquet_files
from catchment.errors import DataError
from catchment.tasks.boxes import areas
from catchment.tasks.detection import AREA, BOX, CLASS, COLUMNS, CROWD, MOST, SCALE

GREY = 114  # around an image that does not fill the square, as in YOLOX
COCO_NAMES = {"train": ("train2017",), "test": ("val2017",), "validation": ("val2017",)}


def find_boxes(folder: Path, split: str) -> BoxSplit | None:
    """A split with boxes in a folder, if there is one."""
    for name in (split, *COCO_NAMES.get(split, ())):
        for file in (folder / f"{name}.json", folder / "annotations" / f"instances_{name}.json"):
            if file.is_file():
                return open_json(file, folder / name)
    for place in (folder, folder / "data"):
        if files := parquet_files(place, split):
            from catchment.data.box_parquet import open_box_parquet  # needs packages that not every install has

            return open_box_parquet(files)
    return None


def read_boxes(
    split: BoxSplit, rows: NDArray[np.int64], classes: Sequence[str], side: int
) -> tuple[Samples, Counter[str]]:
    """The images of some rows in squares of this side, with their boxes; and how often something was wrong."""
    numbers = _numbers(split, classes)
    faults: Counter[str] = Counter()
    images, labels = [], []
    for one in split.read(rows):
        try:
            pixels = torch.tensor(decoded(one.encoded, one.place))
        except DataError:
            faults["images that cannot be decoded"] += 1
            continue
        image, scale = letterboxed(pixels.expand(3, -1, -1), side)
        label = _label(one, numbers, pixels.shape[1:], scale, faults)
        images.append(image)
        labels.append(label)
    if not images:
        raise DataError(f"{split.files[0]} has no image that can be used; {len(rows)} were read")
    return Samples(torch.stack(images), torch.stack(labels), torch.arange(len(images))), faults


def letterboxed(pixels: Tensor, side: int) -> tuple[Tensor, float]:
    """An image `[C, H, W]` at the top left of a square of this side, and by how much it was scaled."""
    height, width = pixels.shape[1:]
    scale = side / max(height, width)
    tall, wide = max(1, round(height * scale)), max(1, round(width * scale))
    square = torch.full((len(pixels), side, side), GREY, dtype=torch.uint8)
    scaled = F.interpolate(pixels[None].float(), (tall, wide), mode="bilinear", antialias=True)[0]
    square[:, :tall, :wide] = scaled.round().clamp(0, 255).byte()
    return square, scale


def _label(one: Annotated, numbers: Sequence[int], size: Sequence[int], scale: float, faults: Counter[str]) -> Tensor:
    """The label of one image, from boxes that are cut at its border."""
    height, width = size
    corners = torch.tensor(one.boxes, dtype=torch.float64).reshape(-1, 4)
    flat = (corners[:, 2:] <= 0).any(1) | ~corners.isfinite().all(1)
    corners[:, 2:] += corners[:, :2]
    cut = torch.minimum(corners.clamp(min=0), torch.tensor([width, height, width, height]))
    outside = ~flat & (areas(cut) <= 0)
    stays = ~(flat | outside)
    faults["boxes without area"] += int(flat.sum())
    faults["boxes outside of the image"] += int(outside.sum())
    faults["boxes cut at the border, by more than a pixel"] += int((stays & ((cut - corners).abs() > 1).any(1)).sum())
    faults["images without boxes"] += int(not stays.any())
    faults[f"boxes beyond the first {MOST} of an image"] += max(0, int(stays.sum()) - MOST)
    kept = stays.nonzero()[:MOST, 0].tolist()
    label = torch.zeros(MOST, COLUMNS)
    label[:, CLASS], label[:, SCALE] = -1, scale
    for place, number in enumerate(kept):
        label[place, CLASS] = numbers[one.categories[number]]
        label[place, BOX] = (cut[number] * scale).float()
        label[place, AREA] = float(areas(cut[number])) if one.areas is None else one.areas[number]
        label[place, CROWD] = 0 if one.crowds is None else one.crowds[number]
    return label


def _numbers(split: BoxSplit, classes: Sequence[str]) -> list[int]:
    """The number among `classes` of each of the split's categories."""
    names = split.names or tuple(classes)
    strange = sorted(set(names) - set(classes))
    if strange:
        raise DataError(f"{split.files[0]} has {', '.join(strange[:4])}, but the classes are {', '.join(classes)}")
    return [list(classes).index(name) for name in names]
