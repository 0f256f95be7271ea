"""Sets with boxes on disk: COCO's JSON and Parquet, and what is wrong in them."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from catchment.cli.experiments import check
from catchment.data import describe, divide, load, own_division
from catchment.data.boxes import letterboxed
from catchment.errors import DataError
from catchment.tasks import DETECTION

ROOT = Path(os.environ.get("CATCHMENT_DATA", "nowhere"))


def jpeg(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((height, width, 3), 200, dtype=np.uint8)).save(file, format="JPEG")
    return file.getvalue()


# Boxes as [left, top, width, height] in images of 80 x 40 pixels.
OBJECTS = [
    ([[10, 10, 20, 20], [0, 0, 0, 5], [30, 5, 10, 10]], [0, 1, 1]),  # the second has no area
    ([], []),
    ([[70, 30, 30, 30], [90, 50, 5, 5], [-5, -5, 10, 10]], [1, 0, 0]),  # over the border, outside, over the border
    ([[5, 5, 10, 10]], [1]),  # of an image that cannot be decoded
]
FAULTS = {
    "train: images that cannot be decoded": 1,
    "train: images without boxes": 1,
    "train: boxes without area": 1,
    "train: boxes outside of the image": 1,
    "train: boxes cut at the border, by more than a pixel": 2,
    "test: boxes without area": 1,  # the first image again
}


def encoded() -> list[bytes]:
    return [jpeg(80, 40), jpeg(80, 40), jpeg(80, 40), jpeg(80, 40)[:200]]


def write_json(folder: Path, layout: str) -> None:
    for split, count in (("train", 4), ("test", 1)):
        name = {"coco": {"train": "train2017", "test": "val2017"}[split], "plain": split}[layout]
        images, annotations = [], []
        (folder / name).mkdir(parents=True)
        for number, (content, (boxes, kinds)) in enumerate(list(zip(encoded(), OBJECTS))[:count]):
            (folder / name / f"{number}.jpg").write_bytes(content)
            images.append({"id": 100 + number, "file_name": f"{number}.jpg"})
            annotations += [
                {"image_id": 100 + number, "bbox": box, "category_id": (7, 3)[kind], "area": 1.0, "iscrowd": 0}
                for box, kind in zip(boxes, kinds)
            ]
        table = {
            "images": images,
            "annotations": annotations,
            "categories": [{"id": 7, "name": "dog"}, {"id": 3, "name": "cat"}],  # numbered by their ids
        }
        file = folder / "annotations" / f"instances_{name}.json" if layout == "coco" else folder / f"{name}.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(table))


def write_parquet(folder: Path, names: list[str] | None = None) -> None:
    folder.mkdir(exist_ok=True)
    for split, count in (("train", 4), ("test", 1)):
        objects = [{"bbox": [list(map(float, b)) for b in boxes], "category": kinds} for boxes, kinds in OBJECTS]
        table = pa.table(
            {
                "image": pa.array([{"bytes": content, "path": ""} for content in encoded()[:count]]),
                "objects": pa.array(
                    objects[:count],
                    pa.struct({"bbox": pa.list_(pa.list_(pa.float32())), "category": pa.list_(pa.int64())}),
                ),
            }
        )
        if names is not None:
            features = {"objects": {"category": {"feature": {"names": names, "_type": "ClassLabel"}}}}
            table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
        pq.write_table(table, folder / f"{split}.parquet")


def read(folder: Path, **more):
    return load(f"{folder}/", None, **{"train": None, "test": None, "seed": 0, "size": 64, **more})


@pytest.mark.parametrize("layout", ["coco", "plain"])
def test_json(tmp_path, layout):
    write_json(tmp_path, layout)
    dataset = read(tmp_path)
    assert dataset.task is DETECTION
    assert dataset.classes == ("cat", "dog")  # by id
    assert dict(dataset.faults) == FAULTS
    assert dataset.train.images.shape == (3, 3, 64, 64)
    first = dataset.train.labels[0]
    assert first[0].tolist() == pytest.approx(
        [1, 8, 8, 24, 24, 1, 0, 0.8]
    )  # dog, at 64 / 80 of its size; area as given
    assert first[1, :5].tolist() == pytest.approx([0, 24, 4, 32, 12])
    assert first[2:, 0].unique().tolist() == [-1]
    assert dataset.train.labels[1, :, 0].unique().tolist() == [-1]
    assert dataset.train.labels[2, 0, :5].tolist() == pytest.approx([0, 56, 24, 64, 32])  # cut


def test_check_shows_what_is_wrong(tmp_path, capsys):
    write_json(tmp_path, "plain")
    (tmp_path / "boxes.toml").write_text(
        f'data = {{ name = "{tmp_path}/", clients = 2, size = 32 }}\nmodels.client = "yolox_nano"\n'
    )
    check(tmp_path / "boxes.toml")
    assert "train: images that cannot be decoded: 1" in capsys.readouterr().out


def test_parquet(tmp_path):
    write_parquet(tmp_path, ["dog", "cat"])
    dataset = read(tmp_path)
    assert dataset.classes == ("dog", "cat")
    assert dict(dataset.faults) == FAULTS
    assert dataset.train.labels[0, 0].tolist() == pytest.approx([0, 8, 8, 24, 24, 400, 0, 0.8])  # area of the box
    assert read(tmp_path, train=1).train.images.shape[0] == 1


def test_categories_without_names(tmp_path):
    write_parquet(tmp_path)
    with pytest.raises(DataError, match=r"does not name its categories; set data\.classes"):
        read(tmp_path)
    assert read(tmp_path, classes=["a", "b"]).classes == ("a", "b")


def test_a_device_reads_its_own_boxes_by_the_names_of_the_server(tmp_path):
    write_parquet(tmp_path / "device", ["dog", "cat"])
    write_json(tmp_path / "server", "plain")
    form = read(tmp_path / "server").form
    division = own_division(tmp_path / "device", form, 0, 2)
    assert division.dataset.task is DETECTION
    assert division.client(0).targets[0, :2, 0].tolist() == [1, 0]  # dog and cat, by the numbers of the server
    write_parquet(tmp_path / "device", ["dog", "bird"])
    with pytest.raises(DataError, match="has bird, but the classes are cat, dog"):
        own_division(tmp_path / "device", form, 0, 2)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"images": []}',
        '{"images": [], "categories": [], "annotations": [{"image_id": 1, "category_id": 1, "bbox": [0]}]}',
    ],
)
def test_a_wrong_json_file_is_refused(tmp_path, text):
    write_json(tmp_path, "plain")
    (tmp_path / "train.json").write_text(text)
    with pytest.raises(DataError, match=r"train\.json cannot be read as annotations of COCO's form"):
        read(tmp_path)


def test_a_set_without_a_usable_image_is_refused(tmp_path):
    write_json(tmp_path, "plain")
    for file in (tmp_path / "train").iterdir():
        file.write_bytes(b"nothing")
    with pytest.raises(DataError, match="has no image that can be used; 4 were read"):
        read(tmp_path)


def test_a_letterbox_keeps_proportions():
    image = torch.full((3, 20, 40), 200, dtype=torch.uint8)
    square, scale = letterboxed(image, 32)
    assert scale == 0.8
    assert square[:, :16].unique().tolist() == [200]
    assert square[:, 16:].unique().tolist() == [114]
    taller, scale = letterboxed(image.transpose(1, 2), 80)
    assert scale == 2
    assert taller[:, :, :40].unique().tolist() == [200]


@pytest.mark.skipif(not (ROOT / "bccd").is_dir(), reason="needs the data set")
def test_bccd_by_main_category():
    dataset = load("bccd", None, train=None, test=None, seed=0, size=64)
    assert (len(dataset.train), len(dataset.test)) == (205, 72)
    assert dict(dataset.faults) == {"train: boxes without area": 1}
    assert DETECTION.counts(dataset.train.targets, 3).sum() + DETECTION.counts(dataset.test.targets, 3).sum() > 3500
    division = divide(dataset, 4, {"name": "main_class"}, None, 0)
    kinds = [DETECTION.main_classes(dataset.train.targets, 3)[rows] for rows in division.clients]
    for client, own in enumerate(kinds):
        assert float((own == client % 3).float().mean()) == pytest.approx(0.8, abs=0.02)
    assert len(describe(division)) == 4
