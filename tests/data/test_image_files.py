"""People's own images: folders of classes, lists in CSV files, files of MedMNIST; sizes, colours, damage, devices."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from catchment.data import Dataset, Form, Normalisation, load, own_division
from catchment.data.fitting import Fit
from catchment.errors import DataError, ExperimentError

HALVES = Normalisation(255, (0.5,), (0.5,))


def read(place: Path, **options: Any) -> Dataset:
    return load(str(place), None, **{"train": None, "test": None, "seed": 0, **options})


def save(file: Path, level: int, shape: tuple[int, ...] = (6, 5)) -> None:
    """An image of one level of grey."""
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full(shape, level, dtype=np.uint8)).save(file)


def levels(images: torch.Tensor) -> list[int]:
    return images[:, 0, 0, 0].tolist()


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes, divided: the level of an image is its own, odd for dogs."""
    for level, name in (
        (3, "train/dog/a.png"),
        (1, "train/dog/b/a.bmp"),
        (2, "train/cat/z.PNG"),
        (4, "train/cat/b.png"),
    ):
        save(tmp_path / "set" / name, level)
    for level, name in ((6, "test/cat/a.png"), (7, "test/dog/a.png")):
        save(tmp_path / "set" / name, level)
    return tmp_path / "set"


# ---- folders of classes


def test_files_and_classes_are_in_the_order_of_their_names(folder: Path) -> None:
    for name in ("train/.hidden/a.png", "train/dog/.a.png", "__MACOSX/dog/a.png", "train/dog/.b/a.png"):
        save(folder / name, 9)
    write(folder / "train/dog/notes.txt", "of no interest")
    dataset = read(folder)
    assert dataset.classes == ("cat", "dog")
    assert levels(dataset.train.images) == [4, 2, 3, 1]
    assert dataset.train.targets.tolist() == [0, 0, 1, 1]
    assert levels(dataset.test.images) == [6, 7]
    assert (dataset.shape, dataset.normalise, dataset.faults) == ((1, 6, 5), HALVES, {})


def test_a_validation_folder_may_be_called_val(folder: Path) -> None:
    (folder / "test").rename(folder / "val")
    assert levels(read(folder).test.images) == [6, 7]


def test_classes_that_are_numbers_are_in_the_order_of_numbers(tmp_path: Path) -> None:
    for number in (10, 9, 0):
        save(tmp_path / f"train/{number}/a.png", number)
        save(tmp_path / f"test/{number}/a.png", number)
    assert read(tmp_path).classes == ("0", "9", "10")
    assert levels(read(tmp_path).train.images) == [0, 10, 9]  # by name
    assert read(tmp_path).train.targets.tolist() == [0, 2, 1]


def test_what_is_not_divided_is_divided_with_the_seed(tmp_path: Path) -> None:
    for name, count in (("cat", 10), ("dog", 40), ("owl", 1), ("yak", 2)):
        for number in range(count):
            save(tmp_path / f"{name}/{number:02}.png", number)
    dataset = read(tmp_path)
    assert dataset.classes == ("cat", "dog", "owl", "yak")
    assert torch.bincount(dataset.test.targets, minlength=4).tolist() == [2, 8, 0, 1]  # a fifth, and what can be
    assert torch.bincount(dataset.train.targets).tolist() == [8, 32, 1, 1]
    together = levels(dataset.train.images) + levels(dataset.test.images)
    assert sorted(together) == sorted([*range(10), *range(40), 0, 0, 1])
    assert read(tmp_path).test.images.equal(dataset.test.images)
    assert not read(tmp_path, seed=1).test.images.equal(dataset.test.images)
    assert len(read(tmp_path, test_share=0.5).test) == 26
    assert len(read(tmp_path, train=5, test=3).train) == 5


def test_a_share_of_a_train_split_is_for_testing_only_if_that_is_said(folder: Path) -> None:
    with pytest.raises(
        DataError, match=r"data\.test_share is 0\.5, but .*set has a test part of its own; leave it out"
    ):
        read(folder, test_share=0.5)
    with pytest.raises(DataError, match=r"data\.test_share is 0\.5, but the data set has a test part of its own"):
        load("digits", None, train=None, test=None, seed=0, test_share=0.5)
    (folder / "test").rename(folder / "other")
    with pytest.raises(DataError, match=r"has a train split but no test .*data\.test_share, such as 0\.2, to test on"):
        read(folder)
    assert (len(read(folder, test_share=0.5).train), len(read(folder, test_share=0.5).test)) == (2, 2)


def test_folders_without_images_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "train/cat/a.dcm", "")
    with pytest.raises(DataError, match=r"folders in .*train have no images; files that end in \.png, .* are expected"):
        read(tmp_path)
    write(tmp_path / "set/cat/a.dcm", "")
    with pytest.raises(DataError, match=r"no train split in .*set, .*; train\.npz, .* or images as CLASS/\*\.png"):
        read(tmp_path / "set")
    with pytest.raises(DataError, match=r"a\.dcm is no data set; a folder, or a file of \.csv, \.npz, \.parquet"):
        read(tmp_path / "set/cat/a.dcm")


def test_one_split_in_two_forms_is_refused(folder: Path) -> None:
    write(folder / "train.csv", "path,label\na.png,cat\n")
    with pytest.raises(DataError, match=r"set has both train\.csv and train; keep the one that is to be used"):
        read(folder)
    save(folder / "train/dog/pictures/cat/a.png", 1)
    write(folder / "train/dog/labels.csv", "path,label\na.png,cat\n")
    with pytest.raises(DataError, match=r"dog has both labels\.csv and class folders; keep the one"):
        read(folder / "train/dog")


def test_a_list_of_the_images_beside_it_counts(folder: Path) -> None:
    write(folder / "train.csv", "path,label\ndog/a.png,cat\ncat/z.PNG,dog\n")
    dataset = read(folder)
    assert (levels(dataset.train.images), dataset.train.targets.tolist()) == ([3, 2], [0, 1])
    for number in range(4):
        save(folder / f"all/pictures/{number}.png", number)
    lines = "".join(f"pictures/{number}.png,{'ab'[number % 2]}\n" for number in range(4))
    write(folder / "all/list.csv", f"path,label\n{lines}")
    assert read(folder / "all").classes == ("a", "b")
    write(folder / "train/ages.csv", "patient,age\n")
    with pytest.raises(DataError, match=r'ages\.csv has no column "path"; .*: patient, age; if the class folders'):
        read(folder / "train")


@pytest.mark.parametrize("names", [("Train", "Test"), ("training", "testing"), ("VALID", "cat")])
def test_folders_that_sound_like_splits_are_no_classes(tmp_path: Path, names: tuple[str, str]) -> None:
    for name in names:
        save(tmp_path / name / "cat/a.png", 1)
    splits = " and ".join(sorted(set(names) - {"cat"}))
    with pytest.raises(DataError, match=rf"has {splits} where folders of classes are expected; call splits train and"):
        read(tmp_path)


# ---- damage


def test_damaged_files_are_named_and_counted(folder: Path) -> None:
    damaged = folder / "train/cat/c.png"
    save(damaged, 5, (90, 90))
    damaged.write_bytes(damaged.read_bytes()[:60])
    dataset = read(folder)
    assert levels(dataset.train.images) == [4, 2, 3, 1]
    assert dataset.train.targets.tolist() == [0, 0, 1, 1]
    ((fault, count),) = dataset.faults.items()
    assert fault.startswith(f"train: images left out (the image in {damaged} cannot be decoded: ")
    assert count == 1
    for name in "defg":
        write(folder / f"train/cat/{name}.png", "no image")
    ((fault, count),) = read(folder).faults.items()
    assert (fault.count("cannot be decoded"), fault[-6:], count) == (3, "; ...)", 5)


def test_a_folder_with_nothing_that_can_be_read_is_refused(tmp_path: Path) -> None:
    for name in ("cat/a.png", "cat/b.png", "dog/a.png", "dog/b.png"):
        write(tmp_path / name, "no image")
    with pytest.raises(DataError, match=r"has no image that can be read: the image in .*png cannot be decoded"):
        read(tmp_path)


# ---- sizes and colours


def test_images_of_many_sizes_are_scaled_into_squares(folder: Path) -> None:
    save(folder / "train/dog/c.png", 8, (12, 3))
    with pytest.raises(
        DataError, match=r"dog/c\.png is 3 x 12 pixels, those before it 5 x 6; .*set data\.size, such as"
    ):
        read(folder)
    dataset = read(folder, size=4)
    assert dataset.shape == (1, 4, 4)
    assert [image.unique().tolist() for image in dataset.train.images] == [[4], [2], [3], [8], [1]]


def test_scaling_is_the_mean_of_neighbours(tmp_path: Path) -> None:
    images = torch.tensor([[10, 20, 0, 0], [30, 40, 0, 0], [0, 0, 7, 7], [0, 0, 7, 7]], dtype=torch.uint8)[None, None]
    expected = torch.nn.functional.interpolate(images.double(), (2, 2), mode="bilinear", antialias=True)
    assert (Fit(side=2)(images).double() - expected).abs().max() <= 0.5
    assert Fit(side=4)(images) is images
    floats = images.float()
    torch.testing.assert_close(Fit(side=2)(floats).double(), expected)


def test_colours(folder: Path, random_images: Callable[..., list[np.ndarray]]) -> None:
    (pixels,) = random_images(1, (6, 5, 3))
    Image.fromarray(pixels).save(folder / "train/cat/b.png")
    assert read(folder).shape == (3, 6, 5)
    dataset = read(folder, channels=1)
    assert dataset.train.images[0, 0].equal(torch.tensor(np.asarray(Image.fromarray(pixels).convert("L"))))
    assert levels(dataset.train.images)[1:] == [2, 3, 1]
    floats = torch.from_numpy(pixels).permute(2, 0, 1)[None].float()
    assert (Fit(channels=1)(floats)[0] - dataset.train.images[0]).abs().max() <= 0.51
    (folder / "train/cat/b.png").unlink()
    assert read(folder, channels=3).shape == (3, 6, 5)
    assert read(folder, channels=3).train.images[0].unique().tolist() == [2]


def test_other_sets_are_scaled_too(tmp_path: Path, random_images: Callable[..., list[np.ndarray]]) -> None:
    digits = load("digits", None, train=5, test=5, seed=0, size=4, channels=3)
    assert digits.shape == (3, 4, 4)
    for part in ("train", "test"):
        (tmp_path / "cifar10").mkdir(exist_ok=True)
        np.savez(tmp_path / f"cifar10/{part}.npz", images=np.stack(random_images(2, (6, 5, 3))), labels=[0, 1])
    grey = load("cifar10", tmp_path, train=None, test=None, seed=0, size=8, channels=1)
    assert grey.shape == (1, 8, 8)
    assert grey.normalise.mean == (pytest.approx((0.4914 + 0.4822 + 0.4465) / 3),)


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ({"channels": 2}, r"data\.channels is 2; 1 \(grey\) or 3 \(colour\) is expected"),
        ({"size": 0}, r"data\.size is 0; at least 1 is expected"),
        ({"test_share": 1}, r"data\.test_share is 1; a share between 0 and 1 is expected"),
        ({"test_share": 0.5, "partition": {"name": "own"}}, r"data\.test_share is about samples that are dealt"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(setting: dict, text: str) -> None:
    from catchment import Experiment

    with pytest.raises(ExperimentError, match=text):
        Experiment.from_dict({"data": setting})


# ---- CSV


def test_a_list_beside_its_images(tmp_path: Path) -> None:
    for level in range(5):
        save(tmp_path / f"scans/{level}.png", level)
    rows = "".join(f'scans/{level}.png;"{["no", "yes"][level % 2]}"\n' for level in (4, 3, 0, 1, 2))
    for part in ("train", "test"):
        write(tmp_path / f"{part}.csv", f"\ufeffPath;age;Label\n{rows.replace(';', ';7;')}\n")
    dataset = read(tmp_path)
    assert dataset.classes == ("no", "yes")
    assert levels(dataset.train.images) == [4, 3, 0, 1, 2]
    assert dataset.train.targets.tolist() == [0, 1, 0, 1, 0]


def test_a_list_of_a_folder_of_its_name_and_one_that_is_not_divided(tmp_path: Path) -> None:
    for level in range(4):
        save(tmp_path / f"train/{level}.png", level)
    text = "file_name,label\n" + "".join(f"{level}.png,{level % 2}\n" for level in range(4))
    write(tmp_path / "train.csv", text)
    assert sorted(levels(read(tmp_path, test_share=0.5).train.images)) != []
    write(tmp_path / "train/labels.csv", text)
    for place in (tmp_path / "train", tmp_path / "train/labels.csv"):
        dataset = read(place)
        assert (dataset.classes, len(dataset.train), len(dataset.test)) == (("0", "1"), 2, 2)
    write(tmp_path / "train/more.csv", text)
    with pytest.raises(DataError, match=r"train has labels\.csv, more\.csv; name the file that is to be used"):
        read(tmp_path / "train")


def test_files_that_are_not_there_are_named_and_counted(tmp_path: Path) -> None:
    save(tmp_path / "a.png", 1)
    save(tmp_path / "b.png", 2)
    file = write(tmp_path / "x.csv", "path,label\na.png,0\nb.png,0\nnone.png,1\n/dev/zero,1\n")
    faults = "".join(read(file, test_share=0.5).faults)
    assert f"there is no file {tmp_path}/none.png" in faults or "there is no file /dev/zero" in faults


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", r'no column "path"; its first line must name the columns, such as path,label, and is: empty'),
        ("a.png,cat\n", r'no column "path"; .* and is: a\.png, cat'),
        ("path,species\na.png,cat\n", r'no column "label"; .* and is: path, species'),
        ("path,label\n", r"x\.csv has no rows"),
        ("path,label\na.png,0\nb.png\n", r"line 3 of .*x\.csv has no path or no label"),
        ("path,label\na.png,0\n\nb.png, \n", r"line 4 of .*x\.csv has no path or no label"),
        ('path,label\n"a.png"b,0\n', r"x\.csv cannot be read as a CSV file \(.*\); write it again, in UTF-8"),
    ],
)
def test_lists_that_cannot_be_read_are_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        read(write(tmp_path / "x.csv", text))


def test_a_list_may_say_anything(tmp_path: Path) -> None:
    """Paths that no system takes are files that are not there; labels of many digits are text."""
    for name in ("a", "b", "c", "d"):
        save(tmp_path / f"{name}.png", 1)
    lines = ["a.png,1", "b.png,1", f"c.png,{'9' * 5000}", f"d.png,{'9' * 5000}"]
    dataset = read(write(tmp_path / "x.csv", "\n".join(["path,label", f"{'x' * 5000},1", "nul\0.png,1", *lines])))
    assert dataset.classes == ("1", "9" * 5000)
    assert sum(dataset.faults.values()) == 2


@pytest.mark.parametrize("name", [b"\xff", b"a\x1b[2Jb", b"a\nb"])
def test_classes_that_cannot_be_shown_are_refused(tmp_path: Path, name: bytes) -> None:
    for folder in (os.fsencode(tmp_path) + b"/" + name, os.fsencode(tmp_path) + b"/fine"):
        try:
            os.mkdir(folder)
        except OSError:
            pytest.skip("this system has no such names")
        for number in range(2):
            save(Path(os.fsdecode(folder)) / f"{number}.png", number)
    with pytest.raises(DataError, match=r"has a class called '.*\\.*'; rename it in printable characters") as caught:
        read(tmp_path)
    assert str(caught.value).isprintable()


def test_one_image_of_each_class_is_too_few(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        save(tmp_path / name / "a.png", 1)
    with pytest.raises(DataError, match="has one row of each class, and none of them can be for testing; add more"):
        read(tmp_path)


# ---- MedMNIST


@pytest.fixture
def medmnist(tmp_path: Path) -> Path:
    """A file as MedMNIST has them; an image is its row, and a part's number."""
    arrays = {}
    for number, (part, count) in enumerate((("train", 6), ("val", 2), ("test", 3))):
        arrays[f"{part}_images"] = np.full((count, 6, 5), number, np.uint8)
        arrays[f"{part}_labels"] = np.arange(count, dtype=np.uint8)[:, None] % 2
    np.savez(tmp_path / "pneumoniamnist.npz", **arrays)
    return tmp_path


@pytest.mark.parametrize("name", ["", "pneumoniamnist.npz"])
def test_a_file_of_medmnist(medmnist: Path, name: str) -> None:
    dataset = read(medmnist / name, classes=["normal", "pneumonia"] if name else None)
    assert dataset.classes == (("normal", "pneumonia") if name else ("0", "1"))
    assert (levels(dataset.train.images), levels(dataset.test.images)) == ([0] * 6, [2] * 3)
    assert dataset.train.targets.tolist() == [0, 1] * 3


def test_files_of_medmnist_that_cannot_be_used(medmnist: Path) -> None:
    with np.load(medmnist / "pneumoniamnist.npz") as arrays:
        many = {**arrays, "train_labels": np.zeros((6, 14), np.uint8)}
    np.savez(medmnist / "chestmnist.npz", **many)
    with pytest.raises(DataError, match=r"has chestmnist\.npz, pneumoniamnist\.npz; name the file"):
        read(medmnist)
    with pytest.raises(DataError, match=r"train_labels of .* are uint8 of shape \[6, 14\]; .* \[N, 1\] are expected"):
        read(medmnist / "chestmnist.npz")


# ---- devices


FORM = Form((1, 4, 4), ("bird", "cat", "dog"), HALVES)
FIT = Fit(side=4)


def test_a_device_may_have_folders_that_are_not_divided(folder: Path) -> None:
    save(folder / "train/dog/c.png", 8, (12, 3))
    write(folder / "train/dog/d.png", "no image")
    division = own_division(folder / "train", FORM, 1, 2, FIT)
    assert division.client(1).targets.tolist() == [1, 1, 2, 2, 2]
    assert levels(division.dataset.train.images) == [4, 2, 3, 8, 1]
    assert len(division.test) == 0
    assert list(division.dataset.faults.values()) == [1]
    both = own_division(folder, FORM, 0, 2, FIT)
    assert both.test.targets.tolist() == [1, 2]
    with pytest.raises(DataError, match=r"are \[1, 6, 5\], those of the server .* have the experiment say data\.size"):
        own_division(folder / "test", FORM, 0, 2)


def test_a_device_may_have_a_list_or_a_file_of_medmnist(medmnist: Path) -> None:
    form = Form((1, 4, 4), ("normal", "pneumonia"), HALVES)
    division = own_division(medmnist, form, 0, 1, FIT)
    assert (division.client(0).targets.tolist(), len(division.test)) == ([0, 1] * 3, 3)
    (medmnist / "pneumoniamnist.npz").unlink()
    save(medmnist / "a.png", 3)
    save(medmnist / "b.png", 4, (3, 9, 3))  # colour
    write(medmnist / "labels.csv", "path,label\na.png,pneumonia\nb.png,normal\n")
    division = own_division(medmnist, form, 0, 1, Fit(4, 1))
    assert (levels(division.dataset.train.images), division.client(0).targets.tolist()) == ([3, 4], [1, 0])


def test_a_device_reads_nothing_outside_of_its_folder(tmp_path: Path) -> None:
    save(tmp_path / "secret.png", 1)
    save(tmp_path / "own/dog/a.png", 1)
    (tmp_path / "own/dog/b.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(
        DataError, match=r"dog/b\.png, of .*own, lies outside of .*own, and nothing else is read; copy it"
    ):
        own_division(tmp_path / "own", FORM, 0, 1, FIT)
    (tmp_path / "own/dog/b.png").unlink()
    (tmp_path / "own/dog/b.png").symlink_to("b.png")  # leads nowhere
    assert len(own_division(tmp_path / "own", FORM, 0, 1, FIT).client(0)) == 1
    for path in ("../secret.png", tmp_path / "secret.png"):
        write(tmp_path / "listed/labels.csv", f"path,label\n{path},dog\n")
        with pytest.raises(DataError, match=r"secret\.png, of .*labels\.csv, lies outside of .*listed"):
            own_division(tmp_path / "listed", FORM, 0, 1, FIT)
