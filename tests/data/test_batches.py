"""Batches and augmentation."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from catchment.data import Batch, Normalisation, Samples, batches
from catchment.errors import ExperimentError
from catchment.randomness import per_sample
from catchment.tasks.pixels import shifted

PLAIN = Normalisation(1, (0.0,), (1.0,))  # pixels as they are, but float


def make(count: int, shape: tuple[int, int, int] = (1, 8, 8), rows: Tensor | None = None) -> Samples:
    generator = torch.Generator().manual_seed(count)
    images = torch.randint(1, 256, (count, *shape), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 10, (count,), generator=generator)
    return Samples(images, labels, torch.arange(count) if rows is None else rows)


def joined(epoch: list[Batch]) -> Batch:
    return Batch(*(torch.cat(parts) for parts in zip(*epoch)))


@settings(max_examples=60, deadline=None)
@given(count=st.integers(0, 60), size=st.integers(1, 20), seed=st.none() | st.integers(0, 2**62))
def test_an_epoch_has_every_sample_once_in_batches_of_the_size(count: int, size: int, seed: int | None) -> None:
    samples = make(count)
    sizes = [len(batch.ids) for batch in batches(samples, size, normalise=PLAIN, seed=seed)]
    assert sum(sizes) == count
    assert all(own == size for own in sizes[:-1])
    if count > 1 and size > 1:
        assert 2 <= sizes[-1] <= size + 1
    ids = [i for batch in batches(samples, size, normalise=PLAIN, seed=seed) for i in batch.ids.tolist()]
    assert sorted(ids) == list(range(count))
    if seed is None:
        assert ids == list(range(count))


def test_a_last_single_sample_joins_the_batch_before() -> None:
    def sizes(count: int, size: int) -> list[int]:
        return [len(batch.images) for batch in batches(make(count), size, normalise=PLAIN, seed=3)]

    assert sizes(9, 4) == [4, 5]
    assert sizes(10, 4) == [4, 4, 2]
    assert sizes(1, 4) == [1]
    assert sizes(3, 1) == [1, 1, 1]


@pytest.mark.parametrize("seed", [None, 5])
def test_an_epoch_can_be_entered_at_any_batch(seed: int | None) -> None:
    def epoch(start: int) -> list[Batch]:
        samples = make(9, rows=torch.arange(9))
        return list(batches(samples, 4, normalise=PLAIN, seed=seed, augment=("flip",), augment_seed=1, start=start))

    whole = epoch(0)
    assert [len(batch.ids) for batch in whole] == [4, 5]
    (last,) = epoch(1)
    assert all(mine.equal(its) for mine, its in zip(last, whole[1]))
    assert epoch(2) == []


@pytest.mark.parametrize("augment", [(), ("crop", "flip")])
@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("rows", [None, torch.tensor([7, 2, 11, 3, 5]), torch.arange(4, 10)])
def test_ids_and_labels_stay_with_their_images(augment: tuple, seed: int | None, rows: Tensor | None) -> None:
    # All pixels of an image hold its row number, so that it is known again after a crop and a flip.
    count = 12
    images = torch.arange(1, count + 1, dtype=torch.uint8).view(count, 1, 1, 1).repeat(1, 2, 16, 16)
    samples = Samples(images, torch.arange(count) * 10, torch.arange(count) if rows is None else rows)
    epoch = joined(list(batches(samples, 4, normalise=PLAIN, seed=seed, augment=augment)))
    assert sorted(epoch.ids.tolist()) == sorted(samples.ids.tolist())
    assert (epoch.images.amax((1, 2, 3)) - 1).tolist() == epoch.ids.tolist()
    assert (epoch.labels // 10).tolist() == epoch.ids.tolist()
    if seed is None:
        assert epoch.ids.tolist() == samples.ids.tolist()


def test_the_seed_decides_the_order() -> None:
    def order(seed: int) -> list[int]:
        return joined(list(batches(make(40), 8, normalise=PLAIN, seed=seed))).ids.tolist()

    assert order(1) == order(1)
    assert order(1) != order(2)
    assert order(1) != list(range(40))


def test_images_are_normalised_float32() -> None:
    samples, normalise = make(6, (3, 4, 4)), Normalisation(255, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    for seed in (None, 1):
        for batch in batches(samples, 4, normalise=normalise, seed=seed):
            assert batch.images.dtype == torch.float32
            assert batch.images.equal(normalise(samples.images[batch.ids]))
            assert batch.labels.equal(samples.labels[batch.ids])


def test_channels_last_changes_the_memory_format_only() -> None:
    samples = make(6, (3, 4, 4))
    for usual, last in pairwise(
        next(batches(samples, 6, normalise=PLAIN, seed=1, channels_last=asked)) for asked in (False, True)
    ):
        assert usual.images.is_contiguous()
        assert last.images.is_contiguous(memory_format=torch.channels_last)
        assert last.images.equal(usual.images)


def test_a_batch_moves_to_a_device_as_a_whole() -> None:
    batch = next(batches(make(6), 6, normalise=PLAIN, seed=1))
    assert batch.to(torch.device("cpu")) is batch
    assert [tensor.device.type for tensor in batch.to(torch.device("meta"))] == ["meta"] * 3


@pytest.mark.parametrize("kind", [torch.uint8, torch.float32])
def test_changing_a_batch_in_place_does_not_reach_the_data_set(kind: torch.dtype) -> None:
    original = make(6)
    samples = Samples(original.images.to(kind), original.labels, original.index)
    images, labels = samples.images.clone(), samples.labels.clone()
    for seed in (None, 1):
        for batch in batches(samples, 3, normalise=PLAIN, seed=seed):
            batch.images.zero_()
            batch.labels.zero_()
    assert samples.images.equal(images)
    assert samples.labels.equal(labels)


def slowly_augmented(image: Tensor, number: int, names: tuple[str, ...], seed: int) -> Tensor:
    """One image, pixel by pixel."""
    top, left, flip = per_sample(seed, torch.tensor([number]), 3)[0].tolist()
    channels, height, width = image.shape
    above, beside = (height // 8, width // 8) if "crop" in names else (0, 0)
    down, right = int(top * (2 * above + 1)) - above, int(left * (2 * beside + 1)) - beside
    result = torch.zeros_like(image)
    for channel in range(channels):
        for row in range(height):
            for column in range(width):
                source_column = width - 1 - column if "flip" in names and flip < 0.5 else column
                y, x = row + down, source_column + right
                if 0 <= y < height and 0 <= x < width:
                    result[channel, row, column] = image[channel, y, x]
    return result


@pytest.mark.parametrize("names", [("crop",), ("flip",), ("crop", "flip")])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 16, 24), (1, 5, 9)])
@pytest.mark.parametrize("kind", [torch.uint8, torch.float32])
def test_augmentation_equals_a_slow_loop(names: tuple[str, ...], shape: tuple, kind: torch.dtype) -> None:
    original = make(9, shape)
    samples = Samples(original.images.to(kind), original.labels, original.index)
    for batch in batches(samples, 4, normalise=PLAIN, seed=2, augment=names, augment_seed=77):
        for number, image in zip(batch.ids.tolist(), batch.images):
            assert image.equal(slowly_augmented(samples.images[number], number, names, 77).float())


def test_augmentation_does_not_depend_on_the_batch() -> None:
    samples = make(30, (3, 16, 16))

    def by_id(view: Samples, size: int, seed: int | None) -> dict[int, Tensor]:
        epoch = batches(view, size, normalise=PLAIN, seed=seed, augment=("crop", "flip"), augment_seed=5)
        return {number: image for batch in epoch for number, image in zip(batch.ids.tolist(), batch.images)}

    whole = by_id(samples, 30, None)
    for other in (by_id(samples, 4, 9), by_id(samples.select(torch.tensor([3, 29, 17])), 2, 1)):
        assert all(image.equal(whole[number]) for number, image in other.items())


def test_crops_and_flips_take_every_value() -> None:
    # An image that counts its columns shows in its middle row where the crop began and whether it was flipped.
    width = 32
    image = torch.arange(1, width + 1, dtype=torch.uint8).expand(1, width, width)
    samples = Samples(image.expand(2000, 1, width, width), torch.zeros(2000).long(), torch.arange(2000))
    batch = next(batches(samples, 2000, normalise=PLAIN, seed=None, augment=("crop", "flip"), augment_seed=1))
    middle = batch.images[:, 0, width // 2]
    flipped = middle[:, 15] > middle[:, 16]
    assert 0.45 < flipped.float().mean() < 0.55
    shifts = torch.where(flipped, middle[:, 16], middle[:, 15]) - 16
    assert sorted(shifts.unique().tolist()) == list(range(-4, 5))
    rows = (batch.images[:, 0].amax(2) == 0).sum(1)  # black rows at the top or the bottom
    assert sorted(rows.unique().tolist()) == [0, 1, 2, 3, 4]


def test_maps_are_shifted_and_zeros_come_in() -> None:
    maps = torch.arange(1.0, 7.0).view(1, 1, 2, 3).repeat(4, 2, 1, 1)
    maps[:, 1] *= 10
    moved = shifted(maps, torch.tensor([0, 1, 0, -1]), torch.tensor([0, 0, 2, -1]))
    by_hand = [[[1, 2, 3], [4, 5, 6]], [[0, 0, 0], [1, 2, 3]], [[0, 0, 1], [0, 0, 4]], [[5, 6, 0], [0, 0, 0]]]
    assert moved[:, 0].tolist() == by_hand
    assert torch.equal(moved[:, 1], 10 * moved[:, 0])
    assert torch.equal(shifted(maps, torch.zeros(4, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)), maps)


def test_the_augmentation_seed_decides() -> None:
    def images(seed: int) -> Tensor:
        epoch = batches(make(20, (1, 16, 16)), 20, normalise=PLAIN, seed=None, augment=("crop",), augment_seed=seed)
        return next(epoch).images

    assert images(1).equal(images(1))
    assert not images(1).equal(images(2))


def test_wrong_arguments_are_refused_before_the_first_batch() -> None:
    with pytest.raises(ExperimentError, match=r'data.augment has "flp".* did you mean "flip"\?'):
        batches(make(4), 2, normalise=PLAIN, seed=None, augment=("crop", "flp"))
    with pytest.raises(ExperimentError, match="batch size 0 must be at least 1"):
        batches(make(4), 0, normalise=PLAIN, seed=None)
