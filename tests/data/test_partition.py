"""Every partition's rule."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from catchment.data import partition
from catchment.data.partition import deal
from catchment.errors import DataError, ExperimentError

FEW = settings(max_examples=60, deadline=None)
SEEDS = st.integers(0, 2**32)


def dealt(labels: Any, clients: int, seed: int = 0, **options: Any) -> list[np.ndarray]:
    return deal(np.asarray(labels), clients, options, np.random.default_rng(seed))


def balanced(samples: int, classes: int) -> np.ndarray:
    return np.random.default_rng(samples).permutation(np.arange(samples) % classes)


def counts(labels: np.ndarray, parts: list[np.ndarray]) -> np.ndarray:
    """`[clients, classes]`."""
    return np.array([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


def assert_no_sample_twice(parts: list[np.ndarray], samples: int) -> None:
    together = np.concatenate(parts)
    assert len(np.unique(together)) == len(together)
    assert set(together.tolist()) <= set(range(samples))


label_lists = st.lists(st.integers(0, 6), min_size=1, max_size=120).map(np.array)


# ---- iid


@FEW
@given(labels=label_lists, clients=st.integers(1, 20), seed=SEEDS)
def test_iid_deals_everything_in_equal_sizes(labels: np.ndarray, clients: int, seed: int) -> None:
    clients = min(clients, len(labels))
    parts = dealt(labels, clients, seed, name="iid")
    assert_no_sample_twice(parts, len(labels))
    sizes = [len(part) for part in parts]
    assert sum(sizes) == len(labels)
    assert max(sizes) - min(sizes) <= 1


def test_iid_gives_everybody_all_classes() -> None:
    labels = np.arange(10_000) // 1000  # sorted by class, as some files are
    table = counts(labels, dealt(labels, 10, name="iid"))
    assert table.min() > 60
    assert table.max() < 140


# ---- dirichlet


@FEW
@given(labels=label_lists, clients=st.integers(1, 20), seed=SEEDS, alpha=st.sampled_from([0.001, 0.05, 0.5, 1, 100]))
def test_dirichlet_deals_everything_and_full_clients_get_no_more(
    labels: np.ndarray, clients: int, seed: int, alpha: float
) -> None:
    clients = min(clients, len(labels))
    parts = dealt(labels, clients, seed, name="dirichlet", alpha=alpha, minimum=0)
    assert_no_sample_twice(parts, len(labels))
    assert sum(len(part) for part in parts) == len(labels)
    table = counts(labels, parts)
    held_before = table.cumsum(axis=1) - table
    is_full = held_before >= len(labels) / clients
    assert (table[is_full] == 0).all()


def test_the_full_client_rule_matters() -> None:
    # Without the rule, sizes of 20 clients under Dirichlet(0.1) differ far more than by the last class they got.
    labels = balanced(5000, 10)
    sizes = [len(part) for part in dealt(labels, 20, 3, name="dirichlet", alpha=0.1, minimum=0)]
    assert max(sizes) < 250 + 500


@FEW
@given(clients=st.integers(1, 12), alpha=st.sampled_from([0.1, 0.5, 5.0]), seed=SEEDS)
def test_dirichlet_meets_the_minimum(clients: int, alpha: float, seed: int) -> None:
    labels = balanced(1000, 10)
    sizes = [len(part) for part in dealt(labels, clients, seed, name="dirichlet", alpha=alpha)]
    assert min(sizes) >= 10
    assert min(len(part) for part in dealt(labels, 4, seed, name="dirichlet", minimum=100)) >= 100


@FEW
@given(labels=label_lists, seed=SEEDS, alpha=st.sampled_from([0.001, 0.1, 1.0]))
def test_dirichlet_leaves_nobody_empty_when_samples_are_few(labels: np.ndarray, seed: int, alpha: float) -> None:
    clients = len(labels) // 10 + 1
    for number in {clients, len(labels)}:
        parts = dealt(labels, number, seed, name="dirichlet", alpha=alpha)
        assert_no_sample_twice(parts, len(labels))
        assert sum(len(part) for part in parts) == len(labels)
        assert min(len(part) for part in parts) >= 1


def test_alpha_decides_how_unequal_clients_are() -> None:
    labels = balanced(10_000, 10)

    def largest_share(alpha: float) -> float:
        table = counts(labels, dealt(labels, 10, 1, name="dirichlet", alpha=alpha))
        return float((table.max(axis=1) / table.sum(axis=1)).mean())

    assert largest_share(0.1) > largest_share(1.0) + 0.1 > largest_share(100.0) + 0.2
    assert largest_share(100.0) < 0.2


def test_an_impossible_minimum_is_an_error_with_advice() -> None:
    text = (
        r"none of 1000 Dirichlet\(0.1\) draws gave each of 10 clients 90 of 1000 samples; "
        r"raise data.partition.alpha, lower data.partition.minimum, or take fewer clients"
    )
    with pytest.raises(DataError, match=text):
        dealt(balanced(1000, 10), 10, name="dirichlet", alpha=0.1, minimum=90)


# ---- classes_per_client


@FEW
@given(classes=st.integers(1, 8), clients=st.integers(1, 30), own=st.integers(1, 8), seed=SEEDS)
def test_classes_per_client(classes: int, clients: int, own: int, seed: int) -> None:
    own = min(own, classes)
    labels = np.repeat(np.arange(classes), np.random.default_rng(seed).integers(30, 60, classes))
    parts = dealt(labels, clients, seed, name="classes_per_client", classes=own)
    assert_no_sample_twice(parts, len(labels))
    table = counts(labels, parts)
    assert ((table > 0).sum(axis=1) == own).all()
    holders = (table > 0).sum(axis=0)
    assert holders.max() - holders.min() <= 1
    for label in range(classes):
        if clients * own >= classes:
            assert holders[label] > 0
        if holders[label]:  # all samples of the class, shared equally
            shares = table[table[:, label] > 0, label]
            assert shares.sum() == (labels == label).sum()
            assert shares.max() - shares.min() <= 1


def test_classes_per_client_pairs_classes_at_random() -> None:
    labels = balanced(5000, 10)
    table = counts(labels, dealt(labels, 100, name="classes_per_client", classes=2)) > 0
    assert len({tuple(row) for row in table.tolist()}) > 20


def test_a_class_must_have_a_sample_for_each_holder() -> None:
    labels = np.array([0] * 50 + [1] * 3)
    with pytest.raises(DataError, match="class 1 has 3 samples for the 5 clients that hold it; take fewer clients"):
        dealt(labels, 5, name="classes_per_client", classes=2)


# ---- main_class


@FEW
@given(
    classes=st.integers(3, 12),
    clients=st.integers(1, 40),
    main=st.integers(1, 3),
    share=st.sampled_from([0.3, 0.5, 0.8, 1.0]),
    seed=SEEDS,
)
def test_main_class(classes: int, clients: int, main: int, share: float, seed: int) -> None:
    main = min(main, classes - 1)
    labels = np.repeat(np.arange(classes), np.random.default_rng(seed).integers(60, 90, classes))
    parts = dealt(labels, clients, seed, name="main_class", share=share, classes=main)
    assert_no_sample_twice(parts, len(labels))
    table = counts(labels, parts)
    size = len(parts[0])
    assert (table.sum(axis=1) == size).all()
    assert size >= 1
    for client, row in enumerate(table):
        own = [(client * main + turn) % classes for turn in range(main)]
        others = [label for label in range(classes) if label not in own]
        assert abs(row[own].sum() - share * size) <= 0.5
        assert row[own].max() - row[own].min() <= 1
        assert row[others].max() - row[others].min() <= 1


def test_main_class_uses_everything_when_turns_come_out_even() -> None:
    labels = balanced(50_000, 10)
    table = counts(labels, dealt(labels, 10, name="main_class"))
    assert table.sum() == 50_000
    assert (table.diagonal() == 4000).all()
    labels = balanced(50_000, 100)
    table = counts(labels, dealt(labels, 10, name="main_class", classes=10))
    assert (table.sum(axis=1) == 5000).all()
    assert (table[3, 30:40] == 400).all()  # ten classes of 8 % each


def test_what_is_not_of_the_main_class_comes_from_all_others() -> None:
    labels = balanced(6000, 10)
    table = counts(labels, dealt(labels, 1000, name="main_class"))  # 5 of the main class and 1 other a client
    for main in range(10):
        together = np.delete(table[main::10].sum(axis=0), main)
        assert together.max() - together.min() <= 1


def test_main_class_clients_are_as_large_as_the_scarcest_class_allows() -> None:
    labels = np.array([0] * 100 + [1] * 1000)
    table = counts(labels, dealt(labels, 1, name="main_class"))
    assert table.tolist() == [[100, 25]]
    with pytest.raises(DataError, match=r"1000 samples are too few for 500 clients .* scarcest class has 1;"):
        dealt([0] * 999 + [1], 500, name="main_class")


# ---- table


def fedgkt() -> np.ndarray:
    """The corrected Table 6; its columns must sum to CIFAR-10's 5000 a class."""
    return np.array(
        [
            [144, 94, 1561, 133, 1099, 1466, 0, 0, 0, 0],
            [327, 28, 264, 16, 354, 2, 100, 20, 200, 3],
            [6, 6, 641, 1, 255, 4, 1, 2, 106, 1723],
            [176, 792, 100, 28, 76, 508, 991, 416, 215, 0],
            [84, 1926, 1, 408, 133, 24, 771, 0, 0, 0],
            [41, 46, 377, 541, 7, 235, 54, 1687, 666, 0],
            [134, 181, 505, 720, 123, 210, 44, 58, 663, 221],
            [87, 2, 131, 1325, 0, 1117, 704, 0, 0, 0],
            [178, 101, 5, 32, 1553, 10, 163, 9, 437, 131],
            [94, 125, 0, 147, 287, 100, 23, 217, 608, 279],
            [379, 649, 106, 90, 35, 119, 807, 819, 3, 85],
            [1306, 55, 681, 227, 202, 34, 0, 648, 0, 0],
            [1045, 13, 53, 6, 77, 70, 482, 7, 761, 494],
            [731, 883, 15, 161, 387, 552, 4, 1051, 0, 0],
            [4, 97, 467, 899, 0, 407, 50, 64, 1098, 797],
            [264, 2, 93, 266, 412, 142, 806, 2, 243, 1267],
        ]
    )


def test_table_6_of_fedgkt_deals_cifar10_exactly() -> None:
    labels = balanced(50_000, 10)
    parts = dealt(labels, 16, name="table", file="fedgkt_table6")
    assert_no_sample_twice(parts, 50_000)
    assert (counts(labels, parts) == fedgkt()).all()
    assert (fedgkt().sum(axis=0) == 5000).all()


def test_a_table_that_asks_for_too_much_is_refused_or_scaled() -> None:
    labels = np.repeat(np.arange(10), [500] * 4 + [400] + [500] * 5)
    with pytest.raises(DataError, match=r"needs 5000 samples of class 0, but there are 500; .*partition.scale = true"):
        dealt(labels, 16, name="table", file="fedgkt_table6")
    table = counts(labels, dealt(labels, 16, name="table", file="fedgkt_table6", scale=True))
    assert (table.sum(axis=0) == 400).all()  # the scarcest class decides for all
    assert np.abs(table - fedgkt() * 0.08).max() < 1


def test_a_table_that_fits_is_not_scaled() -> None:
    labels = np.array([0] * 9 + [1] * 7)
    table = [[3, 1], [2, 0]]
    for scale in (False, True):
        assert counts(labels, dealt(labels, 2, name="table", counts=table, scale=scale)).tolist() == table


def test_scaling_goes_by_largest_remainders() -> None:
    labels = np.array([0] * 10)
    table = counts(labels, dealt(labels, 3, name="table", counts=[[7], [8], [5]], scale=True))
    assert table.tolist() == [[4], [4], [2]]  # 3.5, 4.0, 2.5: of two equal remainders the first


def test_a_table_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("# two clients\n1,2\n\n3, 0\n")
    labels = np.array([0] * 5 + [1] * 5)
    assert counts(labels, dealt(labels, 2, name="table", file=str(file))).tolist() == [[1, 2], [3, 0]]
    with pytest.raises(ExperimentError, match="table has 2 rows for 3 clients"):
        dealt(labels, 3, name="table", file=str(file))
    with pytest.raises(DataError, match="table has 2 columns, but labels go up to 2"):
        dealt([0, 1, 2], 2, name="table", file=str(file))
    file.write_text("1,2\n3\n")
    with pytest.raises(DataError, match=r"mine.csv must have a row per client and a column per class, all rows of one"):
        dealt(labels, 2, name="table", file=str(file))
    file.write_text("1,many\n")
    with pytest.raises(DataError, match=r"mine.csv must hold whole numbers separated by commas: .*'many'"):
        dealt(labels, 1, name="table", file=str(file))


@pytest.mark.parametrize("table", [[], 5, [1, 2], [[1], 2], [[1, -1]], [[0.5]]])
def test_counts_that_are_no_table_are_refused(table: Any) -> None:
    with pytest.raises(DataError, match=r"the partition table in data.partition.counts must have a row per client"):
        dealt([0, 1], 1, name="table", counts=table)


# ---- all of them

EVERY: list[dict[str, Any]] = [
    {"name": "iid"},
    {"name": "dirichlet", "alpha": 0.3},
    {"name": "classes_per_client", "classes": 3},
    {"name": "main_class"},
    {"name": "table", "counts": [[5, 6, 7, 8, 9]] * 8},
]


@pytest.mark.parametrize("options", EVERY, ids=lambda options: options["name"])
def test_partitions_are_deterministic_and_random(options: dict[str, Any]) -> None:
    labels = balanced(1000, 5)
    first, again, other = (dealt(labels, 8, seed, **options) for seed in (1, 1, 2))
    assert all((a == b).all() for a, b in zip(first, again))
    assert any(len(a) != len(b) or (a != b).any() for a, b in zip(first, other))
    for part in first:
        assert part.dtype == np.int64
        assert (np.diff(part) > 0).all()


@pytest.mark.parametrize("options", EVERY[:4], ids=lambda options: options["name"])
def test_ten_thousand_clients_are_cheap(options: dict[str, Any]) -> None:
    labels = balanced(60_000, 10)
    start = time.process_time()
    parts = dealt(labels, 10_000, **options)
    assert time.process_time() - start < 2
    assert_no_sample_twice(parts, 60_000)
    assert min(len(part) for part in parts) >= 1


def test_more_clients_than_samples_is_an_error() -> None:
    with pytest.raises(DataError, match="11 clients cannot share 10 training samples"):
        dealt(balanced(10, 2), 11, name="iid")
    with pytest.raises(ExperimentError, match="0 clients cannot be dealt anything"):
        dealt(balanced(10, 2), 0, name="iid")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "a partition needs a name; known: classes_per_client, dirichlet, iid, main_class, own, table"),
        ({"name": "dirichlt"}, 'unknown partition "dirichlt"; did you mean "dirichlet"?'),
        ({"name": "dirichlet", "alhpa": 1}, 'partition "dirichlet" has no option "alhpa"; did you mean "alpha"?'),
        ({"name": "dirichlet", "labels": 1}, 'partition "dirichlet" has no option "labels"'),
        ({"name": "iid", "alpha": 1}, 'partition "iid" has no option "alpha"; known: none'),
        ({"name": "dirichlet", "alpha": 0}, "data.partition.alpha = 0 must be a number above 0"),
        ({"name": "dirichlet", "alpha": "a"}, "data.partition.alpha = 'a' must be a number"),
        ({"name": "dirichlet", "minimum": -1}, "data.partition.minimum = -1 must be a whole number, 0 or more"),
        ({"name": "classes_per_client", "classes": 6}, "data.partition.classes = 6 must be a whole number from 1 to 5"),
        ({"name": "classes_per_client", "classes": 1.5}, "data.partition.classes = 1.5 must be a whole number"),
        ({"name": "main_class", "share": 0}, "data.partition.share = 0 must be above 0 and at most 1"),
        ({"name": "main_class", "classes": 5}, "data.partition.classes = 5 must be a whole number from 1 to 4"),
        ({"name": "table"}, "needs one of data.partition.counts and data.partition.file"),
        ({"name": "table", "counts": [[1]], "file": "a"}, "needs one of data.partition.counts"),
        ({"name": "no.module:at_all"}, 'partition "no.module:at_all": there is no module "no.module"'),
    ],
)
def test_what_is_unknown_or_out_of_range_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ExperimentError, match=text.replace("?", r"\?")):
        deal(balanced(100, 5), 4, options, np.random.default_rng(0))


def test_a_missing_table_names_those_that_come_along() -> None:
    with pytest.raises(DataError, match=r"table fedgkt_table7 cannot be read \(.*\); .* one of: fedgkt_table6"):
        dealt(balanced(100, 5), 4, name="table", file="fedgkt_table7")


# ---- the user's own


def odd_and_even(labels: np.ndarray, clients: int, step: int = 2) -> list[np.ndarray]:
    return [np.arange(len(labels))[k::step][::-1] for k in range(clients)]


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    broken: dict[str, Any] = {
        "odd_and_even": odd_and_even,
        "too_few": lambda: [[1]],
        "twice": lambda: [[1, 2], [2]],
        "outside": lambda: [[1, 2], [100]],
        "fractions": lambda: [[1, 2], [0.5]],
        "drawn": lambda generator, labels, **rest: [generator.permutation(len(labels))[:5], np.array([], float)],
    }
    for name, function in broken.items():
        monkeypatch.setattr(partition, f"own_{name}", function, raising=False)


@pytest.mark.usefixtures("own")
def test_a_users_function() -> None:
    parts = dealt(balanced(10, 2), 2, name="catchment.data.partition:own_odd_and_even")
    assert [part.tolist() for part in parts] == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]
    parts = dealt(balanced(10, 2), 2, name="catchment.data.partition:own_odd_and_even", step=5)
    assert [part.tolist() for part in parts] == [[0, 5], [1, 6]]
    first, second = (dealt(balanced(9, 2), 2, 7, name="catchment.data.partition:own_drawn", any=1) for _ in "ab")
    assert first[0].tolist() == second[0].tolist()
    assert len(first[1]) == 0
    with pytest.raises(ExperimentError, match='has no option "stp"; did you mean "step"'):
        dealt(balanced(10, 2), 2, name="catchment.data.partition:own_odd_and_even", stp=5)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("function", "text"),
    [
        ("too_few", "returned 1 parts for 2 clients"),
        ("twice", "dealt sample 2 2 times"),
        ("outside", "dealt positions 1 to 100, but there are 10 samples, numbered from 0"),
        ("fractions", "gave client 1 no list of whole numbers but float64"),
    ],
)
def test_what_a_users_function_returns_is_checked(function: str, text: str) -> None:
    with pytest.raises(DataError, match=text):
        dealt(balanced(10, 2), 2, name=f"catchment.data.partition:own_{function}")
