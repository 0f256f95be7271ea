"""Loading: digits, folders of Parquet files by name and by path, the user's own function, and everything damaged."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from catchment.data import Dataset, Normalisation, load
from catchment.data.sources import STATISTICS, WITH_BOXES
from catchment.errors import DataError, ExperimentError

Write = Callable[..., None]
Draw = Callable[..., list[np.ndarray]]


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CATCHMENT_DATA", raising=False)


def read(name: str | Path, root: Path | None = None, **options: Any) -> Dataset:
    return load(str(name), root, **{"train": None, "test": None, "seed": 0, **options})


def pixels(images: list[np.ndarray]) -> torch.Tensor:
    return torch.from_numpy(np.stack(images))


@pytest.fixture
def folder(tmp_path: Path, write_split: Write, random_images: Draw) -> Path:
    """A grey set of 20 + 8 images in three classes; label and pixels of row r are known."""
    write_split(tmp_path / "set/train.parquet", random_images(20), [r % 3 for r in range(20)], names="abc")
    write_split(tmp_path / "set/test.parquet", random_images(8, seed=1), [r % 3 for r in range(8)], names="abc")
    return tmp_path / "set"


# ---- digits


def test_digits_need_no_files_and_split_the_same_for_every_seed() -> None:
    dataset, other = read("digits", seed=0), read("digits", seed=1)
    assert dataset.shape == (1, 8, 8)
    assert dataset.classes == tuple("0123456789")
    assert (len(dataset.train), len(dataset.test)) == (1497, 300)  # about 5 : 1
    assert int(dataset.train.images.max()) == 16
    assert dataset.train.images.equal(other.train.images)
    normalised = dataset.normalise(dataset.train.images)
    assert abs(float(normalised.mean())) < 0.01
    assert abs(float(normalised.std()) - 1) < 0.01


def test_digits_have_every_image_of_scikit_learn_once() -> None:
    from sklearn.datasets import load_digits

    dataset, source = read("digits"), load_digits()
    ours = torch.cat([dataset.train.images, dataset.test.images]).flatten(1)
    labels = torch.cat([dataset.train.labels, dataset.test.labels])
    rows = sorted([*image, label] for image, label in zip(ours.tolist(), labels.tolist()))
    assert rows == sorted([*image, label] for image, label in zip(source.data.tolist(), source.target.tolist()))


# ---- folders


def test_a_folder_by_path(folder: Path, random_images: Draw) -> None:
    dataset = read(folder)
    assert dataset.shape == (1, 6, 5)
    assert dataset.classes == ("a", "b", "c")
    assert dataset.train.images.dtype == torch.uint8
    assert dataset.train.images[:, 0].equal(pixels(random_images(20)))
    assert dataset.test.images[:, 0].equal(pixels(random_images(8, seed=1)))
    assert dataset.train.targets.tolist() == [r % 3 for r in range(20)]
    assert dataset.train.ids.tolist() == list(range(20))
    assert dataset.normalise == Normalisation(255, (0.5,), (0.5,))


def test_a_folder_beside_the_working_directory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    assert len(read("set").train) == 20
    assert len(read("./set").train) == 20


@pytest.mark.parametrize("place", ["", "data"])
def test_sharded_files_are_read_in_order(tmp_path: Path, write_split: Write, random_images: Draw, place: str) -> None:
    images = random_images(30)
    for shard, rows in enumerate([range(0, 9), range(9, 22), range(22, 30)]):
        path = tmp_path / place / f"train-{shard:05d}-of-00003.parquet"
        write_split(path, [images[r] for r in rows], [r % 2 for r in rows])
    write_split(tmp_path / place / "test-00000-of-00001.parquet", images[:4], [0, 1, 0, 1])
    dataset = read(tmp_path)
    assert dataset.train.images[:, 0].equal(pixels(images))
    capped = read(tmp_path, train=12)
    found = [next(r for r in range(30) if (images[r] == image[0].numpy()).all()) for image in capped.train.images]
    assert found == sorted(found)
    assert capped.train.targets.tolist() == [r % 2 for r in found]
    write_split(tmp_path / place / "train-00001-of-00003.parquet", [*images[9:21], b"no image"], [0] * 13)
    (fault,) = read(tmp_path).faults
    assert re.search(r"the image in row 12 of .*train-00001-of-00003.parquet cannot be decoded", fault)
    (tmp_path / place / "train-00001-of-00003.parquet").unlink()
    with pytest.raises(DataError, match=r"has 2 of the 3 files of the train split; copy or download the others"):
        read(tmp_path)


def test_shards_must_have_the_same_columns(tmp_path: Path, write_split: Write, random_images: Draw) -> None:
    for shard, names in enumerate(["ab", "ba"]):
        path = tmp_path / f"train-{shard:05d}-of-00002.parquet"
        write_split(path, random_images(2), [0, 1], names=names)
    with pytest.raises(DataError, match=r"files of the train split in .* have different columns or class names"):
        read(tmp_path)


def test_colour_images(tmp_path: Path, write_split: Write, random_images: Draw) -> None:
    images = random_images(4, (6, 5, 3))
    for split in ("train", "test"):
        write_split(tmp_path / f"{split}.parquet", images, [0, 1, 0, 1], image="img")
    dataset = read(tmp_path, mean=(0.1, 0.2, 0.3), std=0.25)
    assert dataset.shape == (3, 6, 5)
    assert dataset.train.images.equal(pixels(images).permute(0, 3, 1, 2))
    assert dataset.train.images.is_contiguous()
    assert dataset.normalise == Normalisation(255, (0.1, 0.2, 0.3), (0.25, 0.25, 0.25))


def test_one_colour_image_makes_a_set_colour(tmp_path: Path, write_split: Write, random_images: Draw) -> None:
    grey, colour = random_images(3), random_images(1, (6, 5, 3))
    write_split(tmp_path / "train.parquet", [grey[0], *colour, grey[1]], [0, 1, 0])
    write_split(tmp_path / "test.parquet", [grey[2]], [1])
    dataset = read(tmp_path)
    assert dataset.shape == (3, 6, 5)
    assert dataset.train.images[1].equal(pixels(colour)[0].permute(2, 0, 1))
    for image, expected in ((dataset.train.images[0], grey[0]), (dataset.train.images[2], grey[1])):
        assert image.equal(torch.from_numpy(expected).expand(3, 6, 5))
    assert dataset.test.images[0].equal(torch.from_numpy(grey[2]).expand(3, 6, 5))


def test_other_kinds_of_images(tmp_path: Path, write_split: Write, random_images: Draw, encoded: Callable) -> None:
    import io

    image = random_images(1)[0]
    transparent, bits, deep = io.BytesIO(), io.BytesIO(), io.BytesIO()
    Image.merge("LA", [Image.fromarray(image)] * 2).save(transparent, "PNG")
    Image.fromarray(image > 127).save(bits, "PNG")
    Image.fromarray(image.astype(np.uint16) * 200).save(deep, "PNG")
    files = [encoded(image, "WEBP"), transparent.getvalue(), bits.getvalue()]
    write_split(tmp_path / "train.parquet", files[1:], [0, 1])
    write_split(tmp_path / "test.parquet", files[1:], [0, 1])
    dataset = read(tmp_path)
    assert dataset.train.images[0, 0].equal(torch.from_numpy(image))
    assert dataset.train.images[1, 0].equal(torch.from_numpy((image > 127) * np.uint8(255)))
    write_split(tmp_path / "test.parquet", [files[0]], [0])
    assert read(tmp_path).shape == (3, 6, 5)  # WebP is always colour
    write_split(tmp_path / "test.parquet", [files[1], deep.getvalue()], [0, 1])
    (fault,) = read(tmp_path).faults
    assert re.search(r'image in row 1 of .*test.parquet has pixels of kind "I;16"; only 8-bit', fault)


def test_without_a_test_split_validation_is_used(tmp_path: Path, write_split: Write, random_images: Draw) -> None:
    write_split(tmp_path / "train.parquet", random_images(4), [0, 1, 0, 1])
    with pytest.raises(DataError, match=r"has a train split but no test or validation split"):
        read(tmp_path)
    write_split(tmp_path / "validation.parquet", random_images(2), [0, 1])
    assert len(read(tmp_path).test) == 2
    write_split(tmp_path / "test.parquet", random_images(3), [0, 1, 1])
    assert len(read(tmp_path).test) == 3


@pytest.mark.parametrize(
    ("labels", "classes", "targets"),
    [
        ([5, 9, 5, 7], ("5", "7", "9"), [0, 2, 0, 1]),
        (["dog", "cat", "dog", "ant"], ("ant", "cat", "dog"), [2, 1, 2, 0]),
    ],
)
def test_labels_without_names_name_themselves(
    tmp_path: Path, write_split: Write, random_images: Draw, labels: list, classes: tuple, targets: list
) -> None:
    write_split(tmp_path / "train.parquet", random_images(4), labels)
    write_split(tmp_path / "test.parquet", random_images(1), labels[3:])
    dataset = read(tmp_path, train=4)
    assert dataset.classes == classes
    assert dataset.train.targets.tolist() == targets
    assert dataset.test.targets.tolist() == targets[3:]


def test_label_columns(tmp_path: Path, write_split: Write, random_images: Draw) -> None:
    def labels(label: str, extra: dict[str, list], names: str | None = None) -> list[int]:
        for split in ("train", "test"):
            path = tmp_path / f"{split}.parquet"
            write_split(path, random_images(2), [1, 0], label=label, extra=extra, names=names)
        return read(tmp_path).train.targets.tolist()

    assert labels("fine_label", {"coarse_label": [0, 1]}) == [1, 0]  # as in CIFAR-100
    assert labels("label", {"id": [0, 1], "text": ["a", "b"]}) == [1, 0]
    assert labels("species", {"id": [0, 1]}, names="ab") == [1, 0]  # the one with class names
    with pytest.raises(DataError, match=r"train.parquet has no label column: .*columns are image, species, id"):
        labels("species", {"id": [0, 1]})


# ---- limits


def test_limits_draw_that_many_rows_and_decode_only_these(
    folder: Path, random_images: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[object] = []
    opened = Image.open
    monkeypatch.setattr(Image, "open", lambda *arguments: decoded.append(1) or opened(*arguments))
    dataset = read(folder, train=6, test=3)
    assert len(decoded) == 9
    assert (len(dataset.train), len(dataset.test)) == (6, 3)
    assert dataset.train.images.shape[0] == 6
    assert dataset.train.ids.tolist() == list(range(6))
    everything = random_images(20)
    for image, label in zip(dataset.train.images, dataset.train.targets.tolist()):
        (row,) = [r for r in range(20) if (everything[r] == image[0].numpy()).all()]
        assert label == row % 3


def test_limits_of_a_long_file(tmp_path: Path, write_split: Write, encoded: Callable) -> None:
    # Longer than the pieces in which files are read; every image is its row number.
    cells = [encoded(np.array([[row // 256, row % 256]], dtype=np.uint8)) for row in range(2500)]
    for split in ("train", "test"):
        write_split(tmp_path / f"{split}.parquet", cells, [row % 7 for row in range(2500)], row_group_size=2000)
    dataset = read(tmp_path, train=300)
    rows = dataset.train.images[:, 0, 0, 0].long() * 256 + dataset.train.images[:, 0, 0, 1]
    assert (rows.diff() > 0).all()
    assert dataset.train.targets.equal(rows % 7)
    assert dataset.test.images[-1].flatten().tolist() == [2499 // 256, 2499 % 256]


@pytest.mark.parametrize("name", ["folder", "digits"])
def test_the_seed_decides_which_rows(folder: Path, name: str) -> None:
    def images(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        dataset = read(folder if name == "folder" else name, train=10, test=4, seed=seed)
        assert len(torch.unique(dataset.train.ids)) == 10
        return dataset.train.images[dataset.train.ids], dataset.test.images[dataset.test.ids]

    assert all(a.equal(b) for a, b in zip(images(1), images(1)))
    assert not any(a.equal(b) for a, b in zip(images(1), images(2)))


def test_limits_beyond_a_split_are_refused(folder: Path) -> None:
    with pytest.raises(DataError, match=r"data.train = 21, but the train split has 20 samples; take from 1 to 20"):
        read(folder, train=21)
    with pytest.raises(DataError, match=r"data.test = 301, but the test split has 300 samples"):
        read("digits", test=301)
    with pytest.raises(DataError, match=r"data.test = 0, but the test split has 8"):
        read(folder, test=0)


# ---- names, roots, users' functions


@pytest.mark.parametrize("name", sorted(STATISTICS.keys() - {"digits", *WITH_BOXES}))
def test_named_sets_are_folders_of_the_root(
    name: str, tmp_path: Path, write_split: Write, random_images: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    mean, std = STATISTICS[name]
    shape = (6, 5) if len(mean) == 1 else (6, 5, 3)
    label = "fine_label" if name == "cifar100" else "label"
    for split in ("train", "test"):
        write_split(tmp_path / name / f"{split}.parquet", random_images(3, shape), [0, 1, 2], label=label, names="xyz")
    dataset = read(name, tmp_path)
    assert dataset.classes == ("x", "y", "z")
    assert dataset.normalise == Normalisation(255, mean, std)
    monkeypatch.setenv("CATCHMENT_DATA", str(tmp_path))
    assert read(name).train.images.equal(dataset.train.images)
    with pytest.raises(DataError, match="elsewhere"):
        read(name, tmp_path / "elsewhere")  # the root that is given wins


def test_a_missing_set_says_where_it_was_looked_for(tmp_path: Path) -> None:
    text = (
        rf'data set "mnist" is not at {tmp_path}/mnist \(no train.parquet or train.npz there\): set data.root '
        r"or the environment variable CATCHMENT_DATA to the folder that has it, or fetch it with data.download = true"
    )
    with pytest.raises(DataError, match=text):
        read("mnist", tmp_path)
    with pytest.raises(DataError, match=r"no folder of data sets is given: set data.root or .* CATCHMENT_DATA"):
        read("mnist")
    with pytest.raises(
        DataError, match=rf"there is no folder or file {tmp_path}/nothing, which was given as a data set"
    ):
        read(tmp_path / "nothing")


def test_unknown_names_are_refused() -> None:
    text = r'unknown data set "cifar11" \(not a folder or "module:function" either\); did you mean "cifar10"\?'
    with pytest.raises(ExperimentError, match=text):
        read("cifar11")


def test_statistics_can_be_given(folder: Path) -> None:
    assert read(folder, mean=[0.2]).normalise == Normalisation(255, (0.2,), (0.5,))
    assert read("digits", std=(0.25,)).normalise == Normalisation(16, (0.3053,), (0.25,))
    with pytest.raises(DataError, match="normalisation has 3 means but 1 standard deviations"):
        read(folder, mean=[0.2, 0.3, 0.4])


def test_a_users_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_sets.py").write_text(
        "import numpy as np\n"
        "from catchment.data import Dataset\n"
        "seen = {}\n"
        "def shapes(root, seed):\n"
        "    seen.update(root=root, seed=seed)\n"
        "    images = np.arange(10 * 16, dtype=np.uint8).reshape(10, 4, 4)\n"
        "    return Dataset.of(images, np.arange(10) % 2, images, np.arange(10) % 2, ['round', 'square'])\n"
        "def nothing():\n"
        "    return [1]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    dataset = read("own_sets:shapes", tmp_path, seed=7, train=4, mean=0.25)
    import own_sets  # type: ignore[import-not-found]

    assert own_sets.seen == {"root": tmp_path, "seed": 7}
    assert dataset.classes == ("round", "square")
    assert (len(dataset.train), len(dataset.test)) == (4, 10)
    assert dataset.train.images.shape == (10, 1, 4, 4)  # a view: ids are rows of the user's images
    assert dataset.train.targets.tolist() == (dataset.train.ids % 2).tolist()
    assert dataset.normalise.mean == (0.25,)
    with pytest.raises(DataError, match=r'data set "own_sets:nothing" returned list, expected a catchment.Dataset'):
        read("own_sets:nothing")
    with pytest.raises(ExperimentError, match='data set "own_sets:shape": module own_sets has no "shape"'):
        read("own_sets:shape")


# ---- damage


@pytest.mark.parametrize("keep", [0, 3, 200, -5])
def test_a_truncated_file(folder: Path, keep: int) -> None:
    file = folder / "train.parquet"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"train.parquet is damaged or is not a Parquet file \(.+\); copy or download"):
        read(folder)


def test_damaged_pages(folder: Path) -> None:
    file = folder / "test.parquet"
    content = bytearray(file.read_bytes())
    start = pq.ParquetFile(file).metadata.row_group(0).column(0).data_page_offset
    content[start : start + 40] = bytes(40)
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"test.parquet"):
        read(folder)


def test_an_image_that_cannot_be_decoded(
    folder: Path, tmp_path: Path, write_split: Write, random_images: Draw, encoded: Callable
) -> None:
    images: list[Any] = random_images(12)
    for damage in (b"no image", encoded(images[9])[:50], b""):
        images[9] = damage
        write_split(folder / "test.parquet", images, [0] * 12, names="abc")
        dataset = read(folder)
        (fault,) = dataset.faults
        assert re.search(
            r"^test: images left out \(the image in row 9 of .*test.parquet cannot be decoded: .+\)$", fault
        )
        assert "object at" not in fault  # an address differs from run to run
        assert dataset.faults[fault] == 1
        assert dataset.test.images[:, 0].equal(pixels([*images[:9], *images[10:]]))
        images[9] = random_images(1)[0]
    write_split(folder / "test.parquet", [b"no image"] * 3, [0] * 3, names="abc")
    with pytest.raises(DataError, match=r"test.parquet has no image that can be read: the image in row 0 of"):
        read(folder)


def test_an_image_that_is_not_there(folder: Path, write_split: Write, random_images: Draw) -> None:
    write_split(folder / "test.parquet", [*random_images(2), None], [0, 1, 2], names="abc")
    (fault,) = read(folder).faults
    assert re.search(r"row 2 of .*test.parquet has no image bytes", fault)


def test_images_of_different_sizes(folder: Path, write_split: Write, random_images: Draw) -> None:
    images = [*random_images(8), *random_images(1, (6, 9))]
    write_split(folder / "train.parquet", images, [0] * 9, names="abc")
    with pytest.raises(DataError, match=r"the image in row 8 of .* is 9 x 6 pixels, those before it 5 x 6; all images"):
        read(folder)
    write_split(folder / "train.parquet", random_images(2, (9, 9)), [0, 1], names="abc")
    with pytest.raises(
        DataError, match=r"has train images 9 x 9, test images 5 x 6 pixels; .*set data\.size, such as 5"
    ):
        read(folder)
    assert read(folder, size=7).shape == (1, 7, 7)


def test_missing_columns(folder: Path, write_split: Write) -> None:
    file = folder / "train.parquet"
    whole = pq.read_table(file)
    pq.write_table(whole.drop_columns(["image"]), file)
    with pytest.raises(DataError, match=r"train.parquet has no image column, expected one .* its columns are label"):
        read(folder)
    pq.write_table(whole.append_column("second", whole.column("image")), file)
    with pytest.raises(DataError, match=r"train.parquet has 2 image columns, expected one"):
        read(folder)
    pq.write_table(whole.drop_columns(["label"]), file)
    with pytest.raises(DataError, match=r"train.parquet has no label column: .* its columns are image"):
        read(folder)


def test_wrong_labels(folder: Path, write_split: Write, random_images: Draw) -> None:
    write_split(folder / "test.parquet", random_images(3), [0, -1, 1], names="abc")
    with pytest.raises(DataError, match=r"row 1 of .*test.parquet has label -1, but 3 classes are numbered 0 to 2"):
        read(folder)
    write_split(folder / "test.parquet", random_images(3), [0, None, 1], names="abc")
    with pytest.raises(DataError, match=r"test.parquet has 1 rows without a label"):
        read(folder)
    write_split(folder / "test.parquet", random_images(3), ["a", "c", "b"])
    assert read(folder).test.targets.tolist() == [0, 2, 1]  # the train split has these names
    write_split(folder / "train.parquet", random_images(3), [0, 1, 2])
    with pytest.raises(DataError, match=r"labels are text in one of .* and numbers in the other"):
        read(folder)


@pytest.mark.parametrize(
    "said", ["{", "[]", '{"info": null}', '{"info": {"features": {"label": {"_type": "ClassLabel", "names": 5}}}}']
)
def test_columns_that_are_described_in_no_way_that_is_known(folder: Path, said: str) -> None:
    table = pq.read_table(folder / "train.parquet").replace_schema_metadata({"huggingface": said})
    pq.write_table(table, folder / "train.parquet")
    with pytest.raises(
        DataError, match=r"train\.parquet describes its columns in a way that cannot be read \(.*\); save"
    ):
        read(folder)


def test_descriptions_of_other_columns_may_be_anything(folder: Path) -> None:
    features = {
        "label": {"_type": "ClassLabel", "names": ["a", "b", "c", "d"]},
        "tags": [{"dtype": "string"}],
        "x": None,
    }
    for split in ("train", "test"):
        table = pq.read_table(folder / f"{split}.parquet")
        said = json.dumps({"info": {"features": features}})
        pq.write_table(table.replace_schema_metadata({"huggingface": said}), folder / f"{split}.parquet")
    assert read(folder).classes == ("a", "b", "c", "d")


def test_a_split_without_rows(folder: Path) -> None:
    file = folder / "train.parquet"
    pq.write_table(pq.read_table(file).slice(0, 0), file)
    with pytest.raises(DataError, match=r"train.parquet has no rows"):
        read(folder)
