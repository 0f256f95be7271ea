"""Data sets dealt to clients, with and without a public part."""

from __future__ import annotations

import pytest
import torch

from catchment.data import Dataset, Division, Normalisation, Samples, describe, divide
from catchment.errors import DataError, ExperimentError
from catchment.tasks import CLASSIFICATION

IID = {"name": "iid"}


def make(train: int = 600, test: int = 120, classes: int = 4) -> Dataset:
    def part(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(count, 1, 2, 2, dtype=torch.uint8), torch.arange(count) % classes

    return Dataset.of(*part(train), *part(test))


def test_clients_hold_rows_of_the_training_images() -> None:
    dataset = make()
    division = divide(dataset, 7, {"name": "dirichlet", "alpha": 0.5}, None, 0)
    assert division.public is None
    assert division.public_test is None
    assert division.test is dataset.test
    assert len(division.clients) == 7
    for number, rows in enumerate(division.clients):
        client = division.client(number)
        assert client.images is dataset.train.images
        assert client.ids.equal(rows)
    assert division.private.ids.equal(torch.arange(600))


def test_describe_counts_the_classes_of_each_client() -> None:
    table = [[3, 0, 1, 2], [0, 5, 0, 0]]
    division = divide(make(), 2, {"name": "table", "counts": table}, None, 0)
    assert describe(division) == table
    assert len(division.private) == 11  # what nobody holds is nobody's


def test_a_view_keeps_its_row_numbers() -> None:
    whole = make()
    rows = torch.arange(100, 200)
    capped = Dataset(whole.train.select(rows), whole.test, whole.classes, whole.normalise)
    division = divide(capped, 5, IID, 0.5, 0)
    assert division.public is not None
    assert torch.cat([division.private.ids, division.public.ids]).sort().values.equal(rows)


@pytest.mark.parametrize("share", [0.5, 0.2])
def test_a_public_part_takes_its_share_of_both_parts(share: float) -> None:
    dataset = make()
    division = divide(dataset, 6, IID, share, 3)
    assert division.public is not None
    assert division.public_test is not None
    assert (len(division.public), len(division.public_test)) == (600 * share, 120 * share)  # still 5 : 1
    assert (len(division.private), len(division.test)) == (600 * (1 - share), 120 * (1 - share))
    for public, private, count in (
        (division.public, division.private, 600),
        (division.public_test, division.test, 120),
    ):
        assert torch.cat([public.ids, private.ids]).sort().values.equal(torch.arange(count))
        assert public.ids.equal(public.ids.sort().values)
    assert sum(len(rows) for rows in division.clients) == len(division.private)


def ids(samples: Samples | None) -> list[int]:
    assert samples is not None
    return samples.ids.tolist()


def test_the_seed_decides_the_division() -> None:
    def rows(seed: int) -> list[list[int]]:
        d: Division = divide(make(), 3, IID, 0.5, seed)
        return [*(own.tolist() for own in d.clients), ids(d.public), ids(d.public_test), ids(d.test)]

    assert rows(1) == rows(1)
    assert all(a != b for a, b in zip(rows(1), rows(2)))


def test_ten_thousand_clients() -> None:
    division = divide(make(20_000), 10_000, IID, None, 0)
    assert describe(division)[9_999] == CLASSIFICATION.counts(division.client(9_999).targets, 4).tolist()
    assert len(division.private) == 20_000


def test_wrong_shares_are_refused() -> None:
    for share in (0, 1, -0.5):
        with pytest.raises(ExperimentError, match=rf"data.public = {share} must be a share between 0 and 1"):
            divide(make(), 2, IID, share, 0)
    with pytest.raises(DataError, match=r"data.public = 0.001 of 120 test samples is 0 and leaves 120; both need some"):
        divide(make(), 2, IID, 0.001, 0)
    with pytest.raises(DataError, match="400 clients cannot share 300 training samples"):
        divide(make(), 400, IID, 0.5, 0)


def test_one_class_is_refused() -> None:
    with pytest.raises(DataError, match="all samples are of one class, 0, and a classifier needs two; images by class"):
        divide(make(classes=1), 2, IID, None, 0)


def test_another_data_set_can_be_public() -> None:
    private, other = make(), make(50, 20)
    division = divide(private, 6, IID, other, 0)
    assert division.public is not None
    assert division.public.images is other.train.images
    assert len(division.public) == 50
    assert division.public_test is None
    assert len(division.private) == 600  # nothing of the private set is given away
    assert division.test is private.test
    assert division.public_is_labelled  # the same classes
    assert not divide(private, 6, IID, None, 0).public_is_labelled


def test_labels_of_other_classes_are_hidden() -> None:
    other = make(50, 20, classes=7)
    division = divide(make(), 6, IID, other, 0)
    assert division.public is not None
    assert division.public.targets.unique().tolist() == [-1]
    assert not division.public_is_labelled
    assert other.train.targets.min() == 0  # the set itself stays as it is


def test_a_public_set_of_another_shape_or_range_is_refused() -> None:
    wide = Dataset.of(*(torch.zeros(9, 3, 2, 2, dtype=torch.uint8), torch.arange(9) % 4) * 2)
    with pytest.raises(DataError, match=r"data.public has images of \[3, 2, 2\], data.name of \[1, 2, 2\]"):
        divide(make(), 2, IID, wide, 0)
    sixteen = Dataset(wide.train, wide.test, wide.classes, Normalisation(16, (0.5,), (0.5,)))
    with pytest.raises(DataError, match=r"pixels of data.public run to 16, those of data.name to 255"):
        divide(wide, 2, IID, sixteen, 0)


def test_a_validation_part_is_cut_from_the_training_samples_before_all_else() -> None:
    dataset = make()
    division = divide(dataset, 6, IID, 0.5, 3, validation=0.1)
    assert division.validation is not None
    assert division.public is not None
    assert (len(division.validation), len(division.public), len(division.private)) == (60, 270, 270)
    parts = (division.validation, division.public, division.private)
    assert torch.cat([part.ids for part in parts]).sort().values.equal(torch.arange(600))
    assert len(division.test) == 60
    other = divide(dataset, 6, IID, 0.5, 4, validation=0.1)
    assert other.validation is not None
    assert not division.validation.ids.equal(other.validation.ids)


def test_without_a_validation_share_nothing_is_held_out() -> None:
    assert divide(make(), 6, IID, None, 0).validation is None
    with pytest.raises(DataError, match=r"data.validation = 0.001 of 300 train samples is 0 and leaves 300"):
        divide(make(300), 2, IID, None, 0, validation=0.001)
