"""The store of features: what it refuses, what it keeps, and the batches that it deals."""

from __future__ import annotations

import pytest
import torch

from catchment.core.spool import Spool
from catchment.families.features import Augmentation, FeatureStore
from catchment.randomness import per_sample

IDS = torch.tensor([2, 5, 7, 9])


@pytest.fixture
def store():
    """Client 0 has four samples with the features 0 to 3, client 1 two with 10 and 11, of another shape."""
    with Spool() as one, Spool() as two:
        store = FeatureStore({"1": one, "2": two})
        store.put(0, IDS, torch.arange(4.0).view(4, 1), torch.arange(4), torch.zeros(4, 2), turn=1)
        pair = torch.tensor([[10.0, 10.0], [11.0, 11.0]])
        store.put(1, torch.tensor([0, 1]), pair, torch.tensor([8, 9]), torch.zeros(2, 2), turn=1)
        yield store


def epoch(store, clients, others=(), **settings):
    settings = {"size": 2, "mixed": True, "replay": 0.0, **settings}
    generators = {"shuffle": torch.Generator().manual_seed(0), "again": torch.Generator().manual_seed(1)}
    return list(store.epoch(clients, others, **settings, **generators))


def test_a_first_upload_must_have_all_samples_that_were_dealt():
    empty = FeatureStore({})
    assert empty.refusal(0, IDS, 0, IDS) == ""
    assert empty.refusal(0, IDS[:3], 0, IDS) == "3 ids came that are not the 4 of client 0"
    assert empty.refusal(0, IDS.flip(0), 0, IDS) == "4 ids came that are not the 4 of client 0"


def test_a_client_with_data_of_its_own_says_first_which_samples_there_are(store):
    empty = FeatureStore({})
    assert empty.refusal(0, IDS, 0, None) == ""
    for wrong in (IDS[:0], IDS.flip(0)):
        assert empty.refusal(0, wrong, 0, None) == f"{len(wrong)} ids came first that are not ascending, at least one"
    assert store.refusal(0, IDS + 1, 0, None) == "4 ids came that are not the 4 of client 0"


def test_fewer_samples_stand_beside_the_upload_that_is_here(store):
    assert store.refusal(0, IDS[1:3], 1, IDS) == ""
    assert store.refusal(0, IDS[1:3], 7, IDS) == "2 of 4 samples came beside upload 7; 1 is here"
    assert store.refusal(0, torch.tensor([5, 6]), 1, IDS) == "2 ids came that are not ascending ids of client 0"
    store.put(0, IDS[1:3], torch.tensor([[50.0], [70.0]]), torch.tensor([1, 2]), torch.ones(2, 2), turn=2)
    assert store.features["1"].rows(0).flatten().tolist() == [0, 50, 70, 3]
    assert store.logits[0][:, 0].tolist() == [0, 1, 1, 0]
    assert store.turns == {0: 2, 1: 1}
    store.put(0, IDS[:0], torch.empty(0, 1), IDS[:0], torch.empty(0, 2), turn=3)  # nothing changed
    assert store.turns[0] == 2


def test_without_features_nothing_can_stand_beside_them(store):
    store.forget_features()
    assert store.refusal(0, IDS[1:3], 1, IDS) == "2 ids came that are not the 4 of client 0"
    assert store.refusal(0, IDS, 0, IDS) == ""
    assert torch.equal(store.ids[0], IDS)


def test_an_epoch_has_every_sample_once_in_batches_of_one_shape(store):
    batches = epoch(store, [0, 1])
    assert sorted(int(i) for batch in batches for i in batch.ids) == list(range(6))
    assert all(len({int(i) < 4 for i in batch.ids}) == 1 for batch in batches)
    for batch in batches:
        expected = [float(i) if i < 4 else 6.0 + i for i in batch.ids.tolist()]  # rows 4 and 5 are 10 and 11
        assert batch.images[:, 0].tolist() == expected
        assert batch.labels.tolist() == [i if i < 4 else 4 + i for i in batch.ids.tolist()]


def test_batches_by_client_do_not_mix(store):
    store.put(2, IDS, torch.full((4, 1), 5.0), torch.arange(4), torch.zeros(4, 2), turn=1)
    batches = epoch(store, [0, 2], mixed=False)
    assert [{int(i) < 4 for i in batch.ids} for batch in batches] == [{True}, {True}, {False}, {False}]


def test_replay_deals_some_of_what_others_sent(store):
    store.put(2, IDS, torch.full((4, 1), 5.0), torch.arange(4), torch.zeros(4, 2), turn=1)
    ids = [int(i) for batch in epoch(store, [0], [2], replay=0.5) for i in batch.ids]
    assert sorted(i for i in ids if i < 4) == [0, 1, 2, 3]
    assert len([i for i in ids if i >= 4]) == 2


def test_answers_go_to_the_clients_they_are_for(store):
    store.answer([1, 0], torch.arange(12.0).view(6, 2))
    assert store.answers[1].tolist() == [[0, 1], [2, 3]]
    assert store.answers[0].tolist() == [[4, 5], [6, 7], [8, 9], [10, 11]]
    assert store.rows(store.answers, [1, 0]).tolist() == torch.arange(12.0).view(6, 2).tolist()


# ---- features of plain images, augmented by the server ----------------------------------------------------------


@pytest.fixture
def plain():
    """Clients 0 and 1 have maps of ones and tens, and minus these of mirror images; client 2 has hundreds alone."""
    with Spool() as spool:
        store = FeatureStore({"1x3x3": spool})
        for k in range(3):
            maps = torch.full((4, 1, 3, 3), 10.0**k)
            rows = (IDS, maps, torch.arange(4), torch.zeros(4, 2))
            store.put(k, *rows, turn=1, mirrored=-maps if k < 2 else None)
        yield store


def test_one_of_both_is_taken_as_is_drawn_for_the_row(plain):
    # In the order 2, 1, 0 of clients, rows 4 to 11 have mirror images.
    drawn = per_sample(7, torch.arange(12), 3)[:, 0] < 0.5
    for size in (3, 5):
        for batch in epoch(plain, [2, 1, 0], size=size, augmentation=Augmentation(7, {0, 1}, mirror=True)):
            value = torch.tensor([100.0, 10.0, 1.0])[batch.ids // 4]
            expected = torch.where(drawn[batch.ids] & (batch.ids >= 4), -value, value)
            assert torch.equal(batch.images[:, 0, 1, 1], expected)
    assert 0 < int(drawn[4:].sum()) < 8


def test_only_maps_of_plain_images_are_shifted_in_both_directions(plain):
    how = Augmentation(3, {0, 1}, mirror=True, shift=2)
    steps = (per_sample(3, torch.arange(12), 3)[:, 1:] * 5).long() - 2  # down, right
    seen = {}
    for batch in epoch(plain, [0, 1, 2], augmentation=how):
        seen.update(zip(batch.ids.tolist(), batch.images))
    for row, maps in seen.items():
        down, right = steps[row].tolist() if row < 8 else (0, 0)
        ones = torch.zeros(3, 3)
        ones[max(down, 0) : 3 + min(down, 0), max(right, 0) : 3 + min(right, 0)] = 1
        assert torch.equal((maps[0] != 0).float(), ones)
    assert any(step < 0 for step in steps[:8].flatten())
    assert any(step > 0 for step in steps[:8].flatten())


def test_answers_after_training_are_of_features_as_they_came(plain):
    values = torch.cat([batch.images for batch in plain.in_order([0, 1], 3)])
    assert torch.equal(values, torch.tensor([1.0] * 4 + [10.0] * 4).view(8, 1, 1, 1).expand(8, 1, 3, 3))


def test_mirror_images_go_with_the_others(plain):
    plain.forget_features()
    assert not len(plain.features["1x3x3"])
