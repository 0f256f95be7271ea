"""The store of features: what it refuses, what it keeps, and the batches that it deals."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from worlds import experiment

from catchment.core.spool import Spool
from catchment.errors import ModelError
from catchment.families.features import FeatureStore, check_half

IDS = torch.tensor([2, 5, 7, 9])


@pytest.fixture
def store():
    """Client 0 has four samples with the features 0 to 3, client 1 two with 10 and 11, of another shape."""
    with Spool() as one, Spool() as two:
        store = FeatureStore({"1": one, "2": two})
        store.put(0, IDS, torch.arange(4.0).view(4, 1), torch.arange(4))
        store.put(1, torch.tensor([0, 1]), torch.tensor([[10.0, 10.0], [11.0, 11.0]]), torch.tensor([8, 9]))
        yield store


def epoch(store, clients, others=(), **settings):
    generators = {"shuffle": torch.Generator().manual_seed(0), "again": torch.Generator().manual_seed(1)}
    return list(store.epoch(clients, others, size=2, **settings, **generators))


def test_an_upload_must_be_of_all_samples_of_the_client_in_their_order():
    world = experiment("fedgkt").build_world()
    own, store = world.data.clients[0], FeatureStore({})
    assert store.refusal(world, 0, own) == ""
    for wrong in (own[1:], own.flip(0), own + 1, world.data.clients[1]):
        said = f"{len(wrong)} ids came that are not the {len(own)} of client 0"
        assert store.refusal(world, 0, wrong) == said


def test_a_later_upload_takes_the_place_of_the_first(store):
    store.put(0, IDS, torch.full((4, 1), 7.0), torch.arange(4))
    assert store.take([0], torch.arange(4)).flatten().tolist() == [7, 7, 7, 7]
    store.clear()
    assert not any(map(len, store.files.values()))
    assert torch.equal(store.ids[0], IDS)
    store.put(0, IDS, torch.full((4, 1), 8.0), torch.arange(4))
    assert store.take([0], torch.arange(4)).flatten().tolist() == [8, 8, 8, 8]


def test_an_epoch_has_every_sample_once_in_batches_of_one_shape(store):
    batches = epoch(store, [0, 1])
    assert sorted(int(i) for batch in batches for i in batch.ids) == list(range(6))
    assert all(len({int(i) < 4 for i in batch.ids}) == 1 for batch in batches)
    for batch in batches:
        expected = [float(i) if i < 4 else 6.0 + i for i in batch.ids.tolist()]  # rows 4 and 5 are 10 and 11
        assert batch.images[:, 0].tolist() == expected
        assert batch.labels.tolist() == [i if i < 4 else 4 + i for i in batch.ids.tolist()]


def test_an_upload_of_no_samples_is_one(store):
    store.put(2, IDS[:0], torch.empty(0, 1), IDS[:0])
    assert epoch(store, [2]) == []
    ids = torch.cat([batch.ids for batch in epoch(store, [0, 2, 1])])
    assert sorted(ids.tolist()) == list(range(6))


def test_replay_deals_some_of_what_others_sent(store):
    store.put(2, IDS, torch.full((4, 1), 5.0), torch.arange(4))
    ids = [int(i) for batch in epoch(store, [0], [2], replay=0.5) for i in batch.ids]
    assert sorted(i for i in ids if i < 4) == [0, 1, 2, 3]
    assert len([i for i in ids if i >= 4]) == 2


def test_a_view_is_told_which_rows_of_which_clients_and_their_numbers(store):
    store.put(2, IDS, torch.full((4, 1), 5.0), torch.arange(4))
    seen = []

    def view(clients, rows, at):
        seen.append((tuple(clients), rows.tolist(), at.tolist()))
        return -store.take(clients, rows)

    batches = epoch(store, [1, 0, 2], view=view)  # client 1 has rows 0 and 1 of the epoch, 0 has 2 to 5, 2 has 6 to 9
    for batch, (clients, rows, at) in zip(batches, seen, strict=True):
        assert at == [row if clients == (1,) else 2 + row for row in rows]
        assert torch.equal(batch.images, -store.take(clients, torch.tensor(rows)))
        assert batch.ids.tolist() == at


def test_a_half_must_be_there_and_take_what_every_extractor_makes():
    world = experiment("fedgkt").build_world()
    check_half(world, "mine")
    with pytest.raises(
        ModelError, match=r"mine trains a server half on features; set models\.server, such as resnet19"
    ):
        check_half(replace(world, server_model=None), "mine")
    with pytest.raises(ModelError, match="do not fit"):
        check_half(replace(world, server_model="resnet20"), "mine")
