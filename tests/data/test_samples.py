"""Samples, normalisation and data sets made from arrays."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from catchment.data import Dataset, Normalisation, Samples
from catchment.errors import DataError
from catchment.tasks import CLASSIFICATION


@pytest.fixture
def samples() -> Samples:
    images = torch.arange(5 * 2 * 3 * 4, dtype=torch.uint8).view(5, 2, 3, 4)
    return Samples(images, torch.tensor([2, 0, 2, 1, 0]), torch.tensor([4, 2, 0]))


def test_a_view_names_rows_and_copies_nothing(samples: Samples) -> None:
    assert len(samples) == 3
    assert samples.ids.tolist() == [4, 2, 0]
    assert samples.targets.tolist() == [0, 2, 2]
    assert CLASSIFICATION.counts(samples.targets, 4).tolist() == [1, 0, 2, 0]
    inner = samples.select(torch.tensor([2, 1]))
    assert inner.ids.tolist() == [0, 2]
    assert inner.images is samples.images
    assert inner.labels is samples.labels


@pytest.mark.parametrize(
    ("images", "labels", "text"),
    [
        (torch.zeros(2, 3, 4), torch.zeros(2).long(), r"images are float32 of shape \[2, 3, 4\], expected uint8 or"),
        (torch.zeros(2, 1, 3, 4).double(), torch.zeros(2).long(), "images are float64"),
        (torch.zeros(2, 1, 3, 4), torch.zeros(3).long(), "2 images came with 3 labels"),
    ],
)
def test_tensors_that_are_no_samples_are_refused(images: torch.Tensor, labels: torch.Tensor, text: str) -> None:
    with pytest.raises(DataError, match=text):
        Samples(images, labels, torch.arange(2))


def test_normalisation_is_per_channel() -> None:
    images = torch.randint(0, 256, (4, 3, 5, 5), dtype=torch.uint8)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    normalised = Normalisation(255, mean, std)(images)
    assert normalised.dtype == torch.float32
    for channel in range(3):
        expected = (images[:, channel].double() / 255 - mean[channel]) / std[channel]
        torch.testing.assert_close(normalised[:, channel].double(), expected, rtol=0, atol=1e-6)
    assert images.dtype == torch.uint8


def test_one_mean_serves_all_channels_and_floats_pass_unchanged() -> None:
    images = torch.randint(0, 17, (4, 3, 5, 5), dtype=torch.uint8)
    torch.testing.assert_close(Normalisation(16, (0.5,), (0.25,))(images), (images / 16 - 0.5) / 0.25)
    floats = torch.randn(2, 3, 5, 5)
    assert Normalisation(16, (0.5,), (0.25,))(floats) is floats


@pytest.mark.parametrize(
    ("normalisation", "text"),
    [
        ((255, (0.1, 0.2), (0.3,)), "2 means but 1 standard deviations"),
        ((255, (0.1,), (0.0,)), "positive standard deviations"),
        ((0, (0.1,), (1.0,)), "positive scale"),
    ],
)
def test_wrong_normalisations_are_refused(normalisation: tuple, text: str) -> None:
    with pytest.raises(DataError, match=text):
        Normalisation(*normalisation)


def grey(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, 6, 5), dtype=np.uint8)


def test_a_data_set_of_numpy_arrays() -> None:
    images = grey(4)
    dataset = Dataset.of(images, [0, 1, 2, 1], grey(2), np.array([3, 0], dtype=np.uint8))
    assert dataset.shape == (1, 6, 5)
    assert dataset.classes == ("0", "1", "2", "3")
    assert dataset.train.images[:, 0].equal(torch.from_numpy(images))
    assert dataset.train.ids.tolist() == [0, 1, 2, 3]
    assert dataset.test.targets.tolist() == [3, 0]
    torch.testing.assert_close(dataset.normalise(dataset.train.images), (dataset.train.images / 255 - 0.5) / 0.5)


def test_a_data_set_of_tensors_with_statistics_and_names() -> None:
    images = torch.randint(0, 256, (3, 3, 8, 8), dtype=torch.uint8)
    labels = torch.tensor([0, 1, 1])
    dataset = Dataset.of(images, labels, images, labels, ["cat", "dog"], mean=(0.1, 0.2, 0.3), std=0.5)
    assert dataset.classes == ("cat", "dog")
    assert dataset.normalise == Normalisation(255, (0.1, 0.2, 0.3), (0.5, 0.5, 0.5))


def test_float_images_are_taken_as_normalised() -> None:
    images = np.random.default_rng(0).normal(size=(3, 4, 4))  # float64
    dataset = Dataset.of(images, [0, 1, 0], images, [0, 1, 0])
    assert dataset.train.images.dtype == torch.float32
    torch.testing.assert_close(dataset.normalise(dataset.train.images)[:, 0], torch.from_numpy(images).float())
    with pytest.raises(DataError, match="mean and std are for uint8 images"):
        Dataset.of(images, [0, 1, 0], images, [0, 1, 0], mean=0.5)


def test_arrays_that_cannot_be_shared_are_copied() -> None:
    images = grey(3)
    images.flags.writeable = False
    dataset = Dataset.of(images[::-1], [0, 1, 0], images, [0, 1, 0])
    assert dataset.train.images[0, 0].equal(dataset.test.images[2, 0])


def test_labels_in_a_column_and_channels_last_are_understood() -> None:
    colour = np.random.default_rng(0).integers(0, 256, (3, 6, 5, 3), dtype=np.uint8)
    dataset = Dataset.of(colour, [[0], [1], [1]], colour[:2], [[1], [0]])
    assert dataset.train.images.equal(torch.from_numpy(colour).permute(0, 3, 1, 2))
    assert dataset.train.images.is_contiguous()
    assert dataset.train.targets.tolist() == [0, 1, 1]
    assert Dataset.of(grey(2)[..., None], [0, 1], grey(2), [0, 1]).shape == (1, 6, 5)
    assert (
        Dataset.of(colour[:, :3, :3], [0, 1, 1], colour[:, :3, :3], [0, 1, 1]).train.images[0, 1, 0, 2]
        == colour[0, 1, 0, 2]
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((grey(3), [0, 1], grey(2), [0, 1]), "train part: 3 images came with 2 labels"),
        ((grey(2), [0, 1], grey(2), [0, 1, 1]), "test part: 2 images came with 3 labels"),
        ((grey(2), [0.5, 1], grey(2), [0, 1]), r"train labels are float64 of shape \[2\], expected whole numbers"),
        ((grey(2), [[0, 1], [1, 0]], grey(2), [0, 1]), r"train part: labels are int64 of shape \[2, 2\]"),
        ((grey(2).astype(int), [0, 1], grey(2), [0, 1]), "train part: images are int64"),
        ((grey(2), [0, -1], grey(2), [0, 1]), "train part: labels run from -1 to 0, but 2 classes are numbered 0 to 1"),
        ((grey(2), [0, 1], grey(2), [0, 2], ["a", "b"]), "test part: labels run from 0 to 2, but 2 classes"),
        ((grey(2)[:0], np.zeros(0, int), grey(2), [0, 2]), "the train part has no samples"),
        ((grey(2), [0, 1], grey(2)[:, :4], [0, 1]), r"train images are \[1, 6, 5\] but test images are \[1, 4, 5\]"),
        ((np.zeros((2, 3, 8, 1), np.uint8), [0, 1], grey(2), [0, 1]), r"may be \[N, C, H, W\] or \[N, H, W, C\]"),
        ((grey(2), [0, 1], grey(2), [0, 1], None, (0.1, 0.2), (1, 1)), "has 2 means but images have 1 channels"),
        ((grey(2), ["cat", "dog"], grey(2), [0, 1]), r"^train labels are <U3 of shape \[2\], and numbers are expected; "
                                                     r"classes, labels = numpy\.unique\(labels, return_inverse=True\)"),
        ((grey(2), [0, 1], ["a", "b"], [0, 1]), r"test images are <U1 of shape \[2\], and numbers are expected"),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit_are_refused(arguments: tuple, text: str) -> None:
    with pytest.raises(DataError, match=text):
        Dataset.of(*arguments)


def test_labels_that_leave_out_classes_are_told() -> None:
    images = grey(2)
    with pytest.warns(
        UserWarning, match="^labels go from 10 to 13, which makes 14 classes, and 10 of them have"
    ) as told:
        dataset = Dataset.of(images, [10, 13], images, [11, 12])
    assert [one.filename for one in told] == [__file__]
    assert len(dataset.classes) == 14
    Dataset.of(images, [1, 3], images, [1, 3], ["a", "b", "c", "d"])  # whoever names them knows how many there are
