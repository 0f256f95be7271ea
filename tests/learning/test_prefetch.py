"""Items that a thread makes ahead."""

from __future__ import annotations

import threading

import pytest

from catchment.learning.prefetch import prefetched


def test_same_items_in_the_same_order():
    assert list(prefetched(iter([3, None, 1]))) == [3, None, 1]
    assert list(prefetched(iter([]))) == []


def test_the_next_item_is_made_while_one_is_in_use():
    made = threading.Event()

    def items():
        yield "first"
        made.set()
        yield "second"

    following = prefetched(items())
    assert next(following) == "first"
    assert made.wait(10)  # though nobody asked for it
    assert list(following) == ["second"]


def test_an_error_comes_in_its_turn():
    def items():
        yield 1
        raise ValueError("broken")

    following = prefetched(items())
    assert next(following) == 1
    with pytest.raises(ValueError, match="broken"):
        next(following)


def test_who_stops_early_leaves_no_thread_behind():
    before = threading.active_count()
    following = prefetched(iter(range(100)))
    assert next(following) == 0
    following.close()
    assert threading.active_count() == before
